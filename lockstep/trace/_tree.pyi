from typing import TypeAlias

_Buffer: TypeAlias = bytes | memoryview

def build(
    starts: _Buffer, ends: _Buffer, calls: _Buffer, annotations: _Buffer, moments: _Buffer, places: _Buffer, /
) -> tuple[bytes, bytes, bytes, bytes, list[bytes]]: ...
