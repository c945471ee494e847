"""Scripts, styles and the icon of the pages: files in this folder, read once, named by what is in them.

A name that changes with the content may be kept by a browser for ever, and versions are never mixed.
"""

import hashlib
from pathlib import Path

_FOLDER = Path(__file__).parent / "static"
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_DIGEST_DIGITS = 12

BODIES = {file.name: file.read_bytes() for file in sorted(_FOLDER.iterdir()) if file.suffix in _TYPES}
_DIGESTS = {name: hashlib.sha256(body).hexdigest()[:_DIGEST_DIGITS] for name, body in BODIES.items()}


def path_of(name: str) -> str:
    """Return where a file is served."""
    return f"/static/{_DIGESTS[name]}/{name}"


def found(digest: str, name: str) -> tuple[bytes, str] | None:
    """Return the content of a file and its type; None where there is none, or no longer."""
    if _DIGESTS.get(name) != digest:
        return None
    return BODIES[name], _TYPES[Path(name).suffix]
