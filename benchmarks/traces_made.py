"""Large traces for the benchmarks: a recording again and again, each copy after the one before and with ids of its own.

The layout stays the recorder's, byte for byte but for the numbers, so that what is measured is what is met.

    python benchmarks/traces_made.py recording.json.gz out.json megabytes
"""

import gzip
import re
import sys
from pathlib import Path

_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_SHIFTED = re.compile(rb'("(?:ts|id|correlation|External id|Ev Idx|Python id|Python parent id)": *)(\d+)')
_TIME_KEY = b'"ts"'
_GAP_US = 1000
_MB = 1e6


def write_repeated(recording: Path, path: Path, size_bytes: int) -> int:
    """Write `recording` (JSON or gzip) as often as makes at least `size_bytes`; return the number of copies."""
    text = recording.read_bytes()
    text = gzip.decompress(text) if text[:2] == b"\x1f\x8b" else text
    start = _found(text).end()
    end = text.rindex(b"}", start, text.rindex(b"]", start, _events_end(text))) + 1
    parts = _SHIFTED.split(text[start:end])
    times = [int(number) for key, number in zip(parts[1::3], parts[2::3], strict=True) if key.startswith(_TIME_KEY)]
    ids = [int(number) for key, number in zip(parts[1::3], parts[2::3], strict=True) if not key.startswith(_TIME_KEY)]
    shifts = {True: max(times) - min(times) + _GAP_US, False: max(ids, default=0) + 1}
    steps = [shifts[key.startswith(_TIME_KEY)] for key in parts[1::3]]
    numbers = [int(number) for number in parts[2::3]]
    copies = max(1, -(-size_bytes // (end - start)))
    with path.open("wb") as file:
        file.write(text[:start])
        for copy in range(copies):
            parts[2::3] = [b"%d" % (number + copy * step) for number, step in zip(numbers, steps, strict=True)]
            file.write((b",\n  " if copy else b"") + b"".join(parts))
        file.write(text[end:])
    return copies


def _found(text: bytes) -> re.Match[bytes]:
    found = _EVENTS.search(text)
    if found is None:
        raise SystemExit("the recording has no traceEvents")
    return found


def _events_end(text: bytes) -> int:
    """Return a place behind the list of events: where the keys behind it begin, or the end."""
    behind = [text.rfind(key) for key in (b'"traceName"', b'"baseTimeNanoseconds"', b'"deviceProperties"', b'"INFO"')]
    start = text.rindex(b'"ph"')
    return min((place for place in behind if place > start), default=len(text))


def main() -> None:
    """Write one trace."""
    recording, path, megabytes = sys.argv[1:]
    copies = write_repeated(Path(recording), Path(path), int(float(megabytes) * _MB))
    print(f"{path}: {Path(path).stat().st_size / _MB:.1f} MB, {copies} copies")


if __name__ == "__main__":
    main()
