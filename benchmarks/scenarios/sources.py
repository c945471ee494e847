"""Of which state of the detector and the scenarios a figure is."""

import hashlib
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_SOURCES = (
    "coordinator/detect",
    "coordinator/decide",
    "coordinator/intake",
    "coordinator/settings",
    "benchmarks/scenarios",
)


def digest_of_sources() -> str:
    """Return what identifies the detector and the scenarios: a digest of their source files."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in _SOURCES for path in (_ROOT / folder).rglob("*.py")):
        digest.update(str(path.relative_to(_ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
