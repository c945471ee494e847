"""HOT (budget 5,000 ns a batch): how many samples and tokens a batch holds, and what work they are.

Looks at names, shapes and types only. Nothing is copied, nothing is read from a device, and no values are read but
those of a mask or of sequence boundaries in host memory that the training asked to be counted by, or that are few.
So padding counts as tokens unless LOCKSTEP_TOKENS names the mask: the device works on it all the same.
No code of the batch's class runs, unless the training names a part: a mapping may read its parts from a store.

May live here: what a batch looks like. Not here: torch (the counter is given its types), hooks, settings' texts.
"""

from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice, pairwise
from typing import Any

from lockstep.agent.throughput.options import OFF, Quantity, ThroughputOptions
from lockstep.contracts.records import MISSING

DEPTH = 3
"""Containers inside containers: ({"input_ids": ...}, labels) is two deep."""
ITEMS_MAX = 16
"""Items of one container that are looked at: a list of a thousand texts must not cost a thousand looks."""
BOUNDARIES_MAX = 64
"""Sequence boundaries that are read without being asked to; each costs 0.1 us."""

TOKEN_NAMES = frozenset(("input_ids", "tokens", "token_ids", "input", "src_tokens", "decoder_input_ids"))
"""What Hugging Face, Megatron-LM, torchtitan and fairseq call token ids."""
BOUNDARY_NAMES = frozenset(("cu_seqlens", "cu_seqlens_q", "cu_seq_lens_q"))
"""Cumulative lengths of packed sequences, from 0, as flash attention takes them."""
_LEAVES = frozenset((str, bytes, int, float, bool, type(None)))
_MATRIX_DIMENSIONS = 2
_WORK_MAX = 1 << 62  # a record holds 64 bits, and sums of a few batches

Counts = tuple[int, int, int]
"""(samples, tokens, work): the work is the sum of squared sequence lengths; MISSING is not known."""
UNKNOWN: Counts = (MISSING, MISSING, MISSING)


class BatchCounter:
    """Counts the batches of one rank. `integers` are the types that token ids have; `complain` takes one line."""

    def __init__(
        self, options: ThroughputOptions, tensor_type: Any, integers: frozenset[Any], complain: Callable[[str], None]
    ) -> None:
        self._options = options
        self._tensor_type = tensor_type
        self._integers = integers
        self._complain: Callable[[str], None] | None = complain
        self._counted_step = -1
        self._is_plain = options.tokens == options.samples == Quantity()

    def count(self, batch: Any, step: int) -> Counts:
        """Return what `batch` adds to the running `step`."""
        tensor, holder = self._first(batch, None, DEPTH)
        counts = UNKNOWN if tensor is None or not tensor.ndim else self._by_shape(tensor, holder)
        if self._is_plain:
            return counts
        samples = self._chosen(self._options.samples, counts[0], batch, step, _rows)
        tokens = self._chosen(self._options.tokens, counts[1], batch, step, _size)
        self._counted_step = step
        if self._options.tokens.path and isinstance(tokens, list):
            return samples, sum(tokens), _squares(tokens)
        return samples, tokens, counts[2]

    def _by_shape(self, tensor: Any, holder: Any) -> Counts:
        """Return the counts by the shape of a batch's first tensor; `holder` has its neighbours by name, if any."""
        dimensions = tensor.ndim
        is_text = tensor.dtype in self._integers and (holder is not None or dimensions == _MATRIX_DIMENSIONS)
        if getattr(tensor, "is_nested", False):  # torch's alone have that
            return _nested(tensor, is_text=is_text)
        shape = tensor.shape
        if not is_text:
            return shape[0], MISSING, MISSING
        tokens = tensor.numel()
        if holder is not None:
            boundaries = self._boundaries(holder)
            if boundaries is not None:
                lengths = _few_lengths(boundaries)
                return boundaries.numel() - 1, tokens, MISSING if lengths is None else _squares(lengths)
            if tokens == shape[-1] and not self._is_one_sequence(holder, tokens):
                return MISSING, tokens, MISSING
        if dimensions == 1:
            return 1, tokens, _squares([tokens])
        return shape[0], tokens, tokens * shape[-1]

    def _boundaries(self, holder: Any) -> Any:
        for name in BOUNDARY_NAMES:
            boundaries = holder.get(name, None)  # with a default: not every mapping has one of its own
            if isinstance(boundaries, self._tensor_type) and boundaries.ndim == 1 and boundaries.numel():
                return boundaries if boundaries.dtype in self._integers else None
        return None

    def _is_one_sequence(self, holder: Any, tokens: int) -> bool:
        """Whether a row of tokens is one sequence: packed ones begin their positions again."""
        positions = holder.get("position_ids", None)
        if not isinstance(positions, self._tensor_type) or positions.numel() != tokens:
            return True
        return bool(positions.is_cpu) and int(positions.reshape(-1)[-1]) == tokens - 1

    def _first(self, value: Any, holder: Any, depth: int) -> tuple[Any, Any]:
        """Return the first tensor in `value`, named token ids before others, and the mapping that named it."""
        if type(value) in _LEAVES:  # first: torch's own test of what is no tensor takes 0.5 us
            return None, None
        if isinstance(value, self._tensor_type):
            return value, holder
        if isinstance(value, list | tuple):
            # Tensors in a list inside a list are samples of a size of their own: the outer list's length counts.
            return self._first_of((item for item in value[:ITEMS_MAX] if not isinstance(item, list | tuple)), depth)
        fields = _fields(value)
        if not fields:
            return None, None
        for name, item in islice(fields.items(), ITEMS_MAX):
            if name in TOKEN_NAMES and isinstance(item, self._tensor_type):
                return item, fields
        return self._first_of(fields.values(), depth)

    def _first_of(self, items: Iterable[Any], depth: int) -> tuple[Any, Any]:
        for item in islice(items, ITEMS_MAX if depth else 0):
            found = self._first(item, None, depth - 1)
            if found[0] is not None:
                return found
        return None, None

    def _chosen(
        self, quantity: Quantity, automatic: int, batch: Any, step: int, read: Callable[[Any, str], Any]
    ) -> Any:
        """Return a quantity by its setting: its automatic count, nothing, a constant, or what `read` finds."""
        if quantity.mode:
            return MISSING if quantity.mode == OFF else automatic
        if quantity.per_step is not None:
            return MISSING if step == self._counted_step else quantity.per_step
        value = batch
        for part in quantity.path:
            value = _item(value, part)
        if isinstance(value, self._tensor_type) or type(value) is int:
            return read(value, quantity.path[-1])
        if self._complain is not None:
            where = ".".join(quantity.path)
            held = ", ".join(_names(batch)) or type(batch).__name__
            self._complain(f"no tensor or whole number at {where!r} of a batch that holds {held:.200}: not counted")
            self._complain = None
        return MISSING


def _fields(value: Any) -> Any:
    """Return the named items that a dictionary or an object holds; None for what has none."""
    kind = type(value)
    if kind is dict:
        return value
    if isinstance(value, dict):
        return dict(dict.items(value))
    if isinstance(value, UserDict):  # Hugging Face's batches; their own dict is 4 times as fast as they are
        return _fields(value.data)
    held = getattr(value, "__dict__", None)
    if held is None and hasattr(kind, "__dataclass_fields__"):
        return {name: getattr(value, name, None) for name in kind.__dataclass_fields__}
    return held


def _item(value: Any, part: str) -> Any:
    if isinstance(value, list | tuple):
        return value[int(part)] if part.isdecimal() and int(part) < len(value) else getattr(value, part, None)
    fields = value if isinstance(value, Mapping) else _fields(value)
    return fields.get(part, None) if fields is not None else None


def _names(batch: Any) -> Iterator[str]:
    fields = _fields(batch) if not isinstance(batch, list | tuple) else range(len(batch))
    return (str(name) for name in islice(fields or (), ITEMS_MAX))


def _rows(value: Any, _name: str) -> int:
    if type(value) is int:
        return value
    return value.shape[0] if value.ndim else _scalar(value)


def _size(value: Any, name: str) -> int | list[int]:
    """Return tokens, or the lengths of sequences where a mask or boundaries show them."""
    if type(value) is int:
        return value
    if not value.ndim:
        return _scalar(value)
    if name in BOUNDARY_NAMES:
        lengths = _lengths_between(value)
        return MISSING if lengths is None else lengths
    return _masked(value) if "mask" in name else int(value.numel())


def _masked(mask: Any) -> int | list[int]:
    """Return the ones of a mask: those of each row of a matrix."""
    if not mask.is_cpu:
        return MISSING
    lengths: list[int] = mask.sum(-1).long().reshape(-1).tolist()
    if min(lengths, default=0) < 0:  # what is added to scores, not a mask of ones and zeros
        return MISSING
    return lengths if mask.ndim == _MATRIX_DIMENSIONS else sum(lengths)


def _nested(tensor: Any, *, is_text: bool) -> Counts:
    """Return what a nested tensor counts for, whose sequences differ in length: it has no shape of its own."""
    if not is_text:
        return tensor.size(0), MISSING, MISSING
    tokens, offsets = tensor.numel(), getattr(tensor, "_offsets", None)
    lengths = None if offsets is None else _few_lengths(offsets)
    return tensor.size(0), tokens, _squares(lengths) if lengths and sum(lengths) == tokens else MISSING


def _scalar(value: Any) -> int:
    return int(value) if value.is_cpu else MISSING


def _few_lengths(boundaries: Any) -> list[int] | None:
    """Return the lengths between boundaries that are few and in host memory, else None."""
    return _lengths_between(boundaries) if boundaries.numel() <= BOUNDARIES_MAX else None


def _lengths_between(boundaries: Any) -> list[int] | None:
    """Return the lengths that ascending boundaries in host memory leave between them, or None."""
    if not boundaries.is_cpu or boundaries.ndim != 1:
        return None
    lengths = [after - before for before, after in pairwise(boundaries.tolist())]
    return lengths if min(lengths, default=0) >= 0 else None


def _squares(lengths: list[int]) -> int:
    work = sum(length * length for length in lengths)
    return work if work < _WORK_MAX else MISSING
