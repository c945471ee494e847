"""Peaks of a device: arithmetic and memory, the two lines of the roofline.

Both are the vendors' figures (`contracts.peaks`); the arithmetic of Ascend follows from its cores and their clock. An
operator is not evaluated if its device lacks one of the two.
"""

from dataclasses import dataclass

from lockstep.contracts.peaks import memory_bytes_per_second, peak_flops_per_second, peaks_of

_CUBE_FLOPS_PER_CYCLE = {"fp16": 8192, "bf16": 8192, "int8": 16384}
"""A cube multiplies 16 x 16 x 16 a cycle; measured rows agree to 4 digits: cube_fops = mac_fp16_ratio cycles 8192."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """The peaks of `device` in `number_format`; `source` states whose figures they are."""

    device: str
    number_format: str
    flops_per_second: float
    bytes_per_second: float
    source: str

    @property
    def ridge(self) -> float:
        """Return AI_necessary, the intensity in FLOP per byte at which both lines meet."""
        return self.flops_per_second / self.bytes_per_second

    def seconds(self, flops: float, moved_bytes: float) -> float:
        """Return the least time in which the device can do this work."""
        return max(flops / self.flops_per_second, moved_bytes / self.bytes_per_second)


def cube_flops_per_second(cores: int, mhz: float, number_format: str) -> float | None:
    """Return the peak of `cores` cubes at `mhz` (msprof-analyze operator_mfu), None for a format unknown to cubes."""
    per_cycle = _CUBE_FLOPS_PER_CYCLE.get(number_format)
    return None if per_cycle is None else cores * mhz * 1e6 * per_cycle


def rated_mhz(device: str) -> float | None:
    """Return the vendor's rated clock of the device's cubes, MHz, None if unknown."""
    row = peaks_of(device)
    return None if row is None or row.cubes is None else row.cubes.mhz


def roof_of(device: str, number_format: str) -> Roof | None:
    """Return the roof of a device as the framework names it, None if one of its two lines is unknown.

    `number_format` is one of contracts.peaks.DTYPES or of the cube. Slices of a device (MIG) have none.
    """
    row, memory = peaks_of(device), memory_bytes_per_second(device)
    if row is None or memory is None:
        return None
    flops = peak_flops_per_second(device, number_format)
    if flops is None and row.cubes is not None:
        flops = cube_flops_per_second(*row.cubes, number_format)
    if flops is None:
        return None
    return Roof(
        device=device,
        number_format=number_format,
        flops_per_second=flops,
        bytes_per_second=memory,
        source=row.source,
    )
