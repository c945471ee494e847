# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Sums of ranks' parts that are the same, bit for bit, on every rank and in every run.

Terms are added in the order given, element by element. Half precision (float16, bfloat16) is added in float32 and
rounded once, to nearest, ties to even. Integers wrap.

Array names end in E (elements).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.contracts.errors import ConfigError

BLOCK_ELEMENTS = 1 << 15
"""Summed at a time: 128 KiB of float32 stay in a core's second-level cache while all terms are added."""

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """How numbers are kept (`dtype`), and whether 16 raw bits are a bfloat16."""

    dtype: np.dtype[Any]
    bfloat16: bool = False

    @property
    def name(self) -> str:
        """The kind on the wire."""
        return "bf16" if self.bfloat16 else self.dtype.str

    @property
    def wide(self) -> bool:
        """Whether sums are formed in float32."""
        return self.bfloat16 or self.dtype == np.float16


def kind_of(dtype: np.dtype[Any], *, bfloat16: bool) -> Kind:
    """Return the kind of numbers of `dtype`.

    Raises
    ------
    ConfigError
        They cannot be added: no integers or floats, another byte order, or bfloat16 that are not uint16.
    """
    if dtype.kind not in "iufc" or not dtype.isnative:
        raise ConfigError(f"dtype: got {dtype.str}, expected integers, floats or complex numbers of this machine")
    if bfloat16 and dtype != np.uint16:
        raise ConfigError(f"dtype: got {dtype.str}, expected uint16, the raw bits of bfloat16")
    return Kind(dtype, bfloat16)


def add_in_order(terms: Sequence[Array], out_E: Array, kind: Kind) -> None:
    """Write `terms[0] + terms[1] + ...` to `out_E`, which overlaps none of them; all have its shape and dtype."""
    with np.errstate(over="ignore", invalid="ignore"):
        for begin in range(0, len(out_E), BLOCK_ELEMENTS):
            block = slice(begin, begin + BLOCK_ELEMENTS)
            if kind.wide:
                _add_wide([term[block] for term in terms], out_E[block], kind)
            else:
                _add([term[block] for term in terms], out_E[block])


def _add(terms: Sequence[Array], out_E: Array) -> None:
    if len(terms) == 1:
        out_E[:] = terms[0]
        return
    np.add(terms[0], terms[1], out=out_E)
    for term_E in terms[2:]:
        np.add(out_E, term_E, out=out_E)


def _add_wide(terms: Sequence[Array], out_E: Array, kind: Kind) -> None:
    total_E = _widen(terms[0], kind)
    for term_E in terms[1:]:
        np.add(total_E, _widen(term_E, kind), out=total_E)
    out_E[:] = _bfloat16(total_E) if kind.bfloat16 else total_E


def _widen(term_E: Array, kind: Kind) -> npt.NDArray[np.float32]:
    if not kind.bfloat16:
        return term_E.astype(np.float32)
    bits_E = term_E.astype(np.uint32)
    bits_E <<= 16
    return bits_E.view(np.float32)


def _bfloat16(total_E: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Return the nearest bfloat16, ties to even; a NaN stays one."""
    bits_E = total_E.view(np.uint32)
    rounded_E = (bits_E + np.uint32(0x7FFF) + ((bits_E >> 16) & 1)) >> 16
    return np.where(np.isnan(total_E), (bits_E >> 16) | 0x40, rounded_E).astype(np.uint16)
