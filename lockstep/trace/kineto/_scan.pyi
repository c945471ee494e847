EVENT_BYTES: int

def scan(
    text: bytes, end: int, /
) -> (
    tuple[int, int, bytes, bytes, bytes, bytes, list[tuple[bytes, bytes]], bytes, list[tuple[bytes, bytes]], bytes]
    | None
): ...
