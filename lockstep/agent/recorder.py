"""HOT (budget 300 ns a mark, 5,000 ns a step): the marks of the running step, and the record they become at its end.

Owns the lists of the running step; hooks call the methods below, which note times and nothing else. Not here: torch,
the failure boundary (hooks get these methods guarded), the decision who records (agent.py).

Threads: everything belongs to the training thread, whose id is `thread`; calls from others return at once. 0 is
no thread's id, so a recorder with `thread == 0` is inert: before training begins, after a failure, in a forked child.
Two exceptions: a backward on a GPU issues collectives from autograd's own thread while the training thread is inside
it, and `Collective.done_ns` is set by the backend's thread. Both are single stores or appends, atomic under the GIL.
"""

from collections.abc import Callable
from threading import get_ident
from time import monotonic_ns, thread_time_ns

from lockstep.agent.account import (
    BACKWARD,
    DATA,
    FORWARD,
    KIND_COUNT,
    OPTIMIZER,
    UNKNOWN_NS,
    Collective,
    Marks,
    Shares,
    account,
)
from lockstep.contracts.records import DOMAIN_KINDS, MISSING, RECORD_FIELDS, RECORD_INDEX, Flag

_NONE = -1
_EMPTY_RECORD = [MISSING] * len(RECORD_FIELDS)
_KIND_INDEX = tuple(RECORD_INDEX[f"{kind}_wait_ns"] for kind in DOMAIN_KINDS)
_BYTES, _COUNT, _SHORTEST = (
    RECORD_INDEX[f"tp_{field}"] - RECORD_INDEX["tp_wait_ns"] for field in ("bytes", "count", "shortest_ns")
)
_COMPUTE = RECORD_INDEX["compute_ns"]
_SAMPLES = RECORD_INDEX["samples"]
_TOKENS = RECORD_INDEX["tokens"]
_AGENT = RECORD_INDEX["agent_ns"]
_MEASURED_COUNT = RECORD_INDEX["cpu_ns"] + 1
_WARM_UP = int(Flag.WARM_UP)


class Recorder:
    """Marks of one rank's training thread.

    `on_step(record, next_step)` takes each finished record and returns flags for the step that begins; `adopt()` is
    asked when a thread that is not the training thread trains, and answers whether it now is the one.
    """

    def __init__(self, on_step: Callable[[list[int], int], int], adopt: Callable[[], bool]) -> None:
        self.thread = 0
        self.step = 0
        self._on_step = on_step
        self._adopt = adopt
        self._seen_kinds: set[int] = set()
        self._backward_known = False
        self._depth = [0, 0, 0, 0]
        self._open = _NONE
        self._outer_optimizer: object = None
        self.begin_attempt(0, lambda _now_ns: None)

    def begin_attempt(self, now_ns: int, beat: Callable[[int], None]) -> None:
        """Forget everything and begin step 0, which is a warm-up: what came before it is not known exactly.

        `beat(now_ns)` is given a sign of life at most marks.
        """
        self._beat = beat
        self.step = 0
        self._last_kind = _NONE
        self._seen_kinds.clear()
        self._depth[:] = (0, 0, 0, 0)
        self._open = _NONE
        self._opened_ns = self._last_ns = self._start_ns = now_ns
        self._cpu_start_ns = thread_time_ns()
        self._flags = _WARM_UP
        self._clear()

    def _clear(self) -> None:
        self._marks = Marks()
        self._samples = self._tokens = MISSING
        self._agent_ns = 0
        self._trained = self._due = False

    # Spans of the training thread. The outermost wins: what runs inside a span belongs to it, except that a
    # backward inside an optimizer step (a closure) is a backward.

    def enter_data(self) -> None:
        """Begin to wait for a batch."""
        if get_ident() != self.thread:
            return
        self._depth[DATA] += 1
        if self._open == _NONE:
            self._open = DATA
            self._opened_ns = monotonic_ns()

    def leave_data(self) -> bool:
        """End it; return whether the batch is this step's own."""
        if get_ident() != self.thread or not self._depth[DATA]:
            return False
        now = monotonic_ns()
        self._depth[DATA] -= 1
        if self._depth[DATA] or self._open != DATA:
            return False
        self._marks.spans.append((DATA, self._opened_ns, now))
        self._open = _NONE
        self._last_ns = now
        self._trained = True
        self._beat(now)
        return True

    def count_batch(self, samples: int, tokens: int) -> None:
        """Add what a batch holds; MISSING is not known."""
        if samples != MISSING:
            self._samples = samples if self._samples == MISSING else self._samples + samples
        if tokens != MISSING:
            self._tokens = tokens if self._tokens == MISSING else self._tokens + tokens

    def enter_backward(self) -> None:
        """Begin a backward; what ran since the last span was its forward."""
        if get_ident() != self.thread and not self._adopt():
            return
        depth = self._depth
        depth[BACKWARD] += 1
        if depth[BACKWARD] != 1:
            return
        now = monotonic_ns()
        if self._open == _NONE:
            self._marks.spans.append((FORWARD, self._last_ns, now))
        elif self._open == OPTIMIZER:
            self._marks.spans.append((OPTIMIZER, self._opened_ns, now))
        else:
            return
        self._open = BACKWARD
        self._opened_ns = now
        self._trained = True
        self._beat(now)

    def leave_backward(self) -> None:
        """End it, and the step with it if an optimizer stepped inside."""
        if get_ident() != self.thread or not self._depth[BACKWARD]:
            return
        now = monotonic_ns()
        self._depth[BACKWARD] -= 1
        if self._depth[BACKWARD] or self._open != BACKWARD:
            return
        self._marks.spans.append((BACKWARD, self._opened_ns, now))
        self._last_ns = now
        self._backward_known = True
        if self._depth[OPTIMIZER]:
            self._open = OPTIMIZER
            self._opened_ns = now
        else:
            self._open = _NONE
        if self._due:
            self._end_step(now)

    def enter_optimizer(self, optimizer: object) -> None:
        """Begin an optimizer's step, which may contain those of others."""
        if get_ident() != self.thread and not self._adopt():
            return
        if optimizer is self._outer_optimizer:  # its last step raised, so it never left
            self._depth[OPTIMIZER] = 0
            if self._open == OPTIMIZER:
                self._open = _NONE
        self._depth[OPTIMIZER] += 1
        if self._depth[OPTIMIZER] != 1:
            return
        self._outer_optimizer = optimizer
        if self._open == _NONE:
            self._open = OPTIMIZER
            self._opened_ns = monotonic_ns()

    def leave_optimizer(self) -> None:
        """End it; the outermost one ends the training step if there was training since the last end."""
        if get_ident() != self.thread or not self._depth[OPTIMIZER]:
            return
        now = monotonic_ns()
        self._depth[OPTIMIZER] -= 1
        if self._depth[OPTIMIZER]:
            return
        self._outer_optimizer = None
        if self._open == OPTIMIZER:
            self._marks.spans.append((OPTIMIZER, self._opened_ns, now))
            self._open = _NONE
            self._last_ns = now
            if self._trained:
                self._end_step(now)
        elif self._open == BACKWARD:  # optimizers fused into the backward: the step ends where that does
            self._due = True

    # Communication and garbage collection.

    def records_here(self) -> bool:
        """Whether a collective issued by the calling thread, now, belongs to the training thread's step."""
        return get_ident() == self.thread or (self.thread != 0 and self._open == BACKWARD)

    def issue(self, collective: Collective) -> None:
        """Note a collective at its issue."""
        self._marks.collectives.append(collective)
        self._last_kind = collective.kind
        self._seen_kinds.add(collective.kind)
        self._beat(collective.issue_ns)

    def block(self, start_ns: int, end_ns: int) -> None:
        """Note that the training thread waited for communication, of the kind that was issued last."""
        if self._last_kind != _NONE:
            self._marks.blocks.append((start_ns, end_ns, self._last_kind))
            self._beat(end_ns)

    def collected(self, start_ns: int, end_ns: int) -> None:
        """Note a garbage collection of the training thread."""
        self._marks.gcs.append((start_ns, end_ns))

    def spend(self, agent_ns: int) -> None:
        """Add to what the agent cost the training thread in this step: step ends and collectives.

        The marks, under 1 us each, are not timed: that would double them.
        """
        self._agent_ns += agent_ns

    def flag(self, flags: int) -> None:
        """Mark the running step."""
        self._flags |= flags

    # The end of a step.

    def _end_step(self, now: int) -> None:
        marks = self._marks
        samples, tokens, agent_ns = self._samples, self._tokens, self._agent_ns
        self._clear()
        shares = account(self._start_ns, now, marks)
        cpu_ns = thread_time_ns()
        record = self._record(now, shares, len(marks.gcs), cpu_ns - self._cpu_start_ns)
        record[_SAMPLES] = samples
        record[_TOKENS] = tokens
        record[_AGENT] = agent_ns
        if self._seen_kinds:
            self._write_domains(record, shares, marks.collectives)
        self.step += 1
        self._start_ns = self._last_ns = now
        self._cpu_start_ns = cpu_ns
        self._beat(now)
        self._flags = self._on_step(record, self.step)
        self._agent_ns += monotonic_ns() - now

    def _record(self, now: int, shares: Shares, gc_count: int, cpu_ns: int) -> list[int]:
        """Return the record without batch and domains, stored as one slice in the order of RECORD_FIELDS."""
        wall = shares.wall_ns
        known = self._backward_known
        record = _EMPTY_RECORD.copy()
        record[:_MEASURED_COUNT] = (
            self.step,
            self._start_ns,
            now,
            self._flags,
            shares.data_ns,
            shares.compute_ns,
            shares.host_ns,
            shares.gc_ns,
            gc_count,
            wall[FORWARD] if known else MISSING,
            wall[BACKWARD] if known else MISSING,
            wall[OPTIMIZER],
            cpu_ns,
        )
        return record

    def _write_domains(self, record: list[int], shares: Shares, collectives: list[Collective]) -> None:
        payload = [0] * KIND_COUNT
        count = [0] * KIND_COUNT
        shortest = [MISSING] * KIND_COUNT
        for collective in collectives:
            kind = collective.kind
            count[kind] += 1
            payload[kind] += collective.payload_bytes
            if collective.done_ns > 0:
                took = collective.done_ns - collective.issue_ns
                if took < shortest[kind] or shortest[kind] == MISSING:
                    shortest[kind] = took
            elif collective.done_ns == UNKNOWN_NS and shares.waits_ns[kind] != MISSING:
                # The thread was told to go on, not that it is done: what it waited is not known, and what little it
                # was seen waiting stays part of its own work, so that the parts still sum to the step.
                record[_COMPUTE] += shares.waits_ns[kind]
                shares.waits_ns[kind] = MISSING
        for kind in self._seen_kinds:
            at = _KIND_INDEX[kind]
            record[at] = shares.waits_ns[kind]
            record[at + _BYTES] = payload[kind]
            record[at + _COUNT] = count[kind]
            record[at + _SHORTEST] = shortest[kind]
