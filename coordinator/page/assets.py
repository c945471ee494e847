"""Scripts, styles and the icon of the pages: files in `static`, read once and named by a digest of their content.

Because the name changes with the content, browsers may cache a file forever and never mix versions.
"""

import hashlib
from pathlib import Path

_FOLDER = Path(__file__).parent / "static"
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_DIGEST_DIGITS = 12

BODIES = {file.name: file.read_bytes() for file in sorted(_FOLDER.iterdir()) if file.suffix in _TYPES}
_DIGESTS = {name: hashlib.sha256(body).hexdigest()[:_DIGEST_DIGITS] for name, body in BODIES.items()}


def path_of(name: str) -> str:
    """Return the path under which a file is served."""
    return f"/static/{_DIGESTS[name]}/{name}"


def found(digest: str, name: str) -> tuple[bytes, str] | None:
    """Return the content and the media type of a file; None if there is no such file or version."""
    if _DIGESTS.get(name) != digest:
        return None
    return BODIES[name], _TYPES[Path(name).suffix]
