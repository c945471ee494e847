"""An operator's inputs as a trace records them: shapes, formats and scalars."""

import json
from dataclasses import dataclass
from math import prod
from typing import Any

from lockstep.diagnosis.roofline.formats import item_bytes, number_format

_TEXT_MAX_CHARS = 1 << 16
_AXES_MAX = 16
_AXIS_MAX = 1 << 40
_ELEMENTS_MAX = 1 << 60
_PARTS = 2  # dimensions and types; scalars may follow


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of `shape`; `number_format` is empty where the trace's name of it is unknown."""

    shape: tuple[int, ...]
    number_format: str

    @property
    def elements(self) -> int:
        """Return the number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int | None:
        """Return the size, None if the format is unknown."""
        each = item_bytes(self.number_format)
        return None if each is None else each * self.elements


@dataclass(frozen=True, slots=True)
class Operands:
    """Inputs by position, None where one is no tensor; `scalars` are the others' values, empty if not recorded."""

    tensors: tuple[Tensor | None, ...]
    scalars: tuple[str, ...] = ()
    output: tuple[int, ...] | None = None
    """The output's shape, where the trace records it elsewhere."""

    def tensor(self, position: int) -> Tensor | None:
        """Return the tensor at `position`, None if there is none."""
        return self.tensors[position] if position < len(self.tensors) else None

    def integers(self, position: int) -> tuple[int, ...] | None:
        """Return a list of integers such as a stride, None if the trace does not have it."""
        value = _decoded(self.scalars[position]) if position < len(self.scalars) else None
        if isinstance(value, list) and all(type(each) is int for each in value):
            return tuple(value)
        return None

    def flag(self, position: int) -> bool | None:
        """Return a boolean scalar, None if the trace does not have it."""
        text = self.scalars[position] if position < len(self.scalars) else ""
        return {"True": True, "False": False}.get(text)


def parse_operands(text: str) -> Operands | None:
    """Return the operands of a shape text, `[dims, types]` or `[dims, types, scalars]` as JSON, None if it is none."""
    value = _decoded(text)
    if not isinstance(value, list) or len(value) < _PARTS or not all(isinstance(part, list) for part in value[:_PARTS]):
        return None
    dims, types = value[:_PARTS]
    scalars = value[_PARTS] if len(value) > _PARTS and isinstance(value[_PARTS], list) else []
    tensors = tuple(_tensor(shape, kind) for shape, kind in zip(dims, types, strict=False))
    return Operands(tensors, tuple(str(each) for each in scalars))


def ascend_operands(shapes: str, types: str) -> Operands:
    """Return the operands of the columns of kernel_details.csv: `"4096,512;512,64"` and `DT_BF16;DT_BF16`."""
    if max(len(shapes), len(types)) > _TEXT_MAX_CHARS:
        return Operands(())
    parts = shapes.strip('"').split(";"), types.strip('"').split(";")
    return Operands(tuple(_ascend_tensor(shape, kind) for shape, kind in zip(*parts, strict=False)))


def _ascend_tensor(shape: str, kind: str) -> Tensor | None:
    axes = [axis.strip() for axis in shape.split(",") if axis.strip()]
    if not axes or not all(axis.isdecimal() and len(axis) <= len(str(_AXIS_MAX)) for axis in axes):
        return None
    return _tensor([int(axis) for axis in axes], kind)


def _tensor(shape: object, kind: object) -> Tensor | None:
    if not isinstance(shape, list) or not isinstance(kind, str) or len(shape) > _AXES_MAX:
        return None
    if not all(type(axis) is int and 0 <= axis <= _AXIS_MAX for axis in shape):
        return None
    number = number_format(kind) if prod(shape) <= _ELEMENTS_MAX else ""
    return Tensor(tuple(shape), number) if number else None


def _decoded(text: str) -> Any:
    if len(text) > _TEXT_MAX_CHARS:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
