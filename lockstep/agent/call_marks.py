"""HOT (budget 1,500 ns a call): the common collective and the common wait, each with its marks in one frame.

The code that appends a mark is copied here (mark_block.py explains its lines): a call costs 80 ns, and a microsecond
with cold caches. Common paths call few different functions and hold few closure cells: each is cold memory. What is
not common goes to functions of the caller's, which make the same marks one by one.
"""

from collections.abc import Callable, Mapping, Sized
from threading import get_ident
from types import MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

from lockstep.agent.collective_marks import CollectiveMarks
from lockstep.agent.descriptors import pwrite
from lockstep.agent.mark_block import LAST, STEP, pack_headed, pack_plain
from lockstep.contracts.marks import KIND_BITS, ORDINAL_MASK, PAYLOAD_BYTES_MAX, SIZE_BITS, SYNCHRONOUS, MarkKind

if TYPE_CHECKING:
    from lockstep.agent.groups import GroupUse

_EXPECT, _WAIT_BEGIN, _WAIT_END = (int(kind) for kind in (MarkKind.EXPECT, MarkKind.WAIT_BEGIN, MarkKind.WAIT_END))
_PAYLOAD_UNIT = 1 << SIZE_BITS
"""A byte of payload in the argument of an issue mark; sums and products share their code, shifts have another."""


class KernelCalls(NamedTuple):
    """What a kernel calls: torch, `issue_any` and `complete` for what is not common, and the failure boundary.

    `issue_any` returns the ordinal of the collective, None if nothing is recorded. `complete` is called for tensors
    that are not on the host, and returns whether it noted when the collective ends.
    `look_at_keys` returns the keys behind the kernel's and whether the tensors are on the host; it is called once for
    each key set, which `raw_repr` identifies.
    """

    redispatch: Callable[..., Any]
    raw_repr: Callable[[Any], int]
    unbox_group: Callable[[Any], Any]
    unbox_work: Callable[[Any], Any]
    look_at_keys: Callable[[Any], tuple[Any, bool]]
    issue_any: Callable[[int, Any], int | None]
    complete: Callable[[int, bool, Any, Any], bool]
    absorbs: Callable[..., bool]


class CallMarks(CollectiveMarks):
    """Wrappers that mark calls: `kernel` stands in front of a collective, `waiting` around a call that waits."""

    __slots__ = ()

    def kernel(  # noqa: C901, PLR0915  (one frame)
        self,
        calls: KernelCalls,
        known: "Mapping[int, GroupUse]",
        captures: Sized,
        *,
        group_index: int,
        payload_index: int,
        async_index: int,
        is_list: bool,
        bits: int,
    ) -> Callable[..., Any]:
        """Return a kernel for torch's dispatcher, called with a key set and the operator's arguments.

        It marks the common case itself: one tensor on the host, or a list of one, in a group of `known` (by `id`), on
        the training thread, while `captures` is empty. Indices are those of the operator's arguments; `bits` are the
        operator's bits in a call site. Exceptions of the agent go to `calls.absorbs`, those of torch pass.
        """
        redispatch, raw_repr, unbox_group, unbox_work = calls[:4]
        buffer, block, clock, words, use_of = self, self._block, self._clock, self._issue_words, known.get
        in_flight, done, end_in_flight = self.in_flight, self.done, self._end_in_flight
        met_keys: dict[int, tuple[Any, bool]] = {}
        has_future = True
        asynchronous_bits, synchronous_bits = bits << KIND_BITS, (bits | SYNCHRONOUS) << KIND_BITS

        def kernel(keyset: Any, *args: Any) -> Any:  # noqa: C901, PLR0912, PLR0915  (as above)
            nonlocal has_future
            raw_keys = raw_repr(keyset)
            try:
                keys_behind, is_on_host = met_keys[raw_keys]
            except KeyError:
                keys_behind, is_on_host = met_keys[raw_keys] = calls.look_at_keys(keyset)
            is_synchronous = len(args) > async_index and args[async_index] is False
            ordinal, payload_bytes = None, -1
            try:
                use: Any = use_of(id(unbox_group(args[group_index])))
                if use is not None and is_on_host and get_ident() == buffer.thread and not captures:
                    tensor = args[payload_index]
                    if is_list:
                        tensor = tensor[0] if len(tensor) == 1 else None
                    if tensor is not None and buffer._device is None:
                        try:
                            payload_bytes = tensor.nbytes
                        except RuntimeError:  # sparse
                            payload_bytes = -1
                if payload_bytes < 0:
                    ordinal = calls.issue_any(bits | SYNCHRONOUS if is_synchronous else bits, args)
                else:
                    if payload_bytes > PAYLOAD_BYTES_MAX:  # noqa: PLR1730  (a call)
                        payload_bytes = PAYLOAD_BYTES_MAX
                    head = use.issue_head + (synchronous_bits if is_synchronous else asynchronous_bits)
                    now = clock()
                    at = buffer._at  # one turn
                    ordinal = buffer._issued
                    buffer._issued = ordinal + 1 if ordinal != ORDINAL_MASK else 0
                    buffer._at = at + STEP
                    pack_headed(block, at, now, head, ordinal, payload_bytes * _PAYLOAD_UNIT + use.size)
                    if now >= buffer._due_ns or at >= LAST:
                        buffer._store()
                    word = use.word
                    words[word] = words[word] + 1  # fewer bytecodes than +=
                    words[word + 1] = now
                    if pwrite(*buffer._issue_stores[use.slot]) < 0:
                        buffer.failures += 1
                    if buffer._wants_poll:
                        buffer._poll()
            except Exception as error:  # part of the failure boundary (boundary.py)
                if not calls.absorbs(calls.issue_any, error):
                    raise
            result = redispatch(keys_behind, *args)
            if ordinal is None:
                return result
            try:
                if not is_on_host and calls.complete(ordinal, is_synchronous, args[payload_index], result):
                    return result
                if not is_synchronous and has_future:
                    try:  # a backend has none for an operator, and to ask costs 40 us: once is enough
                        future = unbox_work(result[-1] if type(result) is tuple else result).get_future()
                    except RuntimeError:
                        has_future = False
                    else:
                        if future.done():  # torch swallows what signal handlers raise in a callback
                            done(ordinal)
                        else:
                            key = buffer._attempt, ordinal
                            in_flight[key] = future
                            future.add_done_callback(MethodType(end_in_flight, key))
                        return result
                if payload_bytes < 0 or get_ident() != buffer.thread:
                    buffer.expect(ordinal)
                    return result
                now = clock()
                at = buffer._at  # one turn
                buffer._at = at + STEP
                pack_headed(block, at, now, _EXPECT, ordinal, 0)
                if now >= buffer._due_ns or at >= LAST:
                    buffer._store()
            except Exception as error:  # as above
                if not calls.absorbs(calls.complete, error):
                    raise
            return result

        return kernel

    def waiting(  # noqa: C901  (one frame)
        self, wait: Callable[..., Any], works_for_backward: Callable[[], Any], absorbs: Callable[..., bool]
    ) -> Callable[..., Any]:
        """Return `wait`, enclosed in marks on the training thread and on threads that work for its backward."""
        buffer, block, clock, elsewhere = self, self._block, self._clock, self._waiting_elsewhere

        def waited(*args: Any, **kwargs: Any) -> Any:
            own = get_ident()
            if own != buffer.thread or buffer._device is not None:
                return elsewhere(wait, works_for_backward, absorbs, args, kwargs)
            try:
                now = clock()
                at = buffer._at  # one turn
                buffer._at = at + STEP
                pack_plain(block, at, now, _WAIT_BEGIN, 0)
                if now >= buffer._event_due_ns or at >= LAST:
                    buffer._store()
            except Exception as error:  # part of the failure boundary (boundary.py)
                if not absorbs(waited, error):
                    raise
            try:
                return wait(*args, **kwargs) if kwargs else wait(*args)  # without a second dictionary
            finally:
                if buffer.thread == own:
                    try:
                        now = clock()
                        at = buffer._at  # one turn
                        buffer._at = at + STEP
                        pack_plain(block, at, now, _WAIT_END, 0)
                        if now >= buffer._due_ns or at >= LAST:
                            buffer._store()
                        if buffer._wants_poll:
                            buffer._poll()
                    except Exception as error:  # as above
                        if not absorbs(waited, error):
                            raise

        return waited

    def _waiting_elsewhere(
        self,
        wait: Callable[..., Any],
        works_for_backward: Callable[[], Any],
        absorbs: Callable[..., bool],
        args: Any,
        kwargs: Any,
    ) -> Any:
        """Wait, with the marks of another thread or those of a device."""
        if get_ident() != self.thread and not works_for_backward():
            return wait(*args, **kwargs)
        begin, end = self.wait_begin, self.wait_end
        try:
            begin()
        except Exception as error:  # part of the failure boundary (boundary.py), without its frames
            if not absorbs(begin, error):
                raise
        try:
            return wait(*args, **kwargs)
        finally:
            try:
                end()
            except Exception as error:  # as above
                if not absorbs(end, error):
                    raise
