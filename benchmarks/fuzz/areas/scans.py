"""Kineto traces in small pieces by the C extensions and in Python: equal columns and call trees, or the same error."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from random import Random

import numpy as np

from benchmarks.fuzz.areas.trace_files import changed_trace
from benchmarks.fuzz.harness import ACCEPTED, SurpriseError
from lockstep.contracts.errors import MalformedError
from lockstep.trace.calls import build_calls
from lockstep.trace.columns import TraceColumns
from lockstep.trace.kineto.decode import TraceDecoder
from lockstep.trace.kineto.load import columns_of
from lockstep.trace.kineto.scanned import Scan, compiled_scan
from lockstep.trace.source import TraceSource
from lockstep.trace.span_table import compiled_build

_MAX_BYTES = 1 << 24


class Scans:
    """One trace in each case, cut at another size each time; by one core and by several."""

    name = "scans"

    def begin(self, _: Random) -> None:
        """Make a folder."""
        scan, build = compiled_scan(), compiled_build()
        if scan is None or build is None:
            raise RuntimeError("the extensions of lockstep.trace are not built: setup.py build_ext --inplace")
        self._scan, self._build = scan, build
        self._folder = tempfile.TemporaryDirectory(prefix="lockstep-fuzz-")

    def close(self) -> None:
        """Remove it."""
        self._folder.cleanup()

    def run(self, randoms: Sequence[Random]) -> Iterator[str | BaseException]:
        """Read one trace in each case, in every way."""
        path = Path(self._folder.name) / "trace.json"
        for random in randoms:
            path.write_bytes(changed_trace(random))
            chunk_bytes = random.choice((64, 512, 4096, 1 << 20))
            try:
                yield self._read(path, chunk_bytes)
            except Exception as error:  # noqa: BLE001  (whatever it is, it is the finding)
                yield error

    def _read(self, path: Path, chunk_bytes: int) -> str | BaseException:
        ways: tuple[tuple[Scan | None, int], ...] = ((None, 1), (self._scan, 1), (self._scan, 3))
        found = [_columns(path, chunk_bytes, scan, cores) for scan, cores in ways]
        if not _equal(found[0], found[1]) or not _equal(found[1], found[2]):
            return SurpriseError("Python, the scan, and the scan in threads read different columns")
        if isinstance(found[0], str):
            return "no usable trace"
        if build_calls(found[0], self._build) != build_calls(found[0]):
            return SurpriseError("Python and the extension build different call trees")
        return ACCEPTED


def _columns(path: Path, chunk_bytes: int, scan: Scan | None, cores: int) -> TraceColumns | str:
    source = TraceSource(path, max_bytes=_MAX_BYTES, chunk_bytes=chunk_bytes)
    try:
        return columns_of(TraceDecoder(source, block_bytes=chunk_bytes, scan=scan, cores=cores), source)
    except MalformedError as error:
        return str(error)


def _equal(one: TraceColumns | str, other: TraceColumns | str) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    pairs = ((getattr(one, each.name), getattr(other, each.name)) for each in fields(TraceColumns) if each.compare)
    return all(np.array_equal(*pair) if isinstance(pair[0], np.ndarray) else pair[0] == pair[1] for pair in pairs)
