"""Parses YAML text into plain values with the line and column of each, for configurations, thresholds and job specs.

The text is untrusted: its size, depth and number of values are limited before anything is built, and aliases are
refused because a few lines of them can stand for billions of values. For services and tools only: the agent never
imports PyYAML.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

import yaml

from lockstep.contracts.errors import ConfigError, FileAccessError, MalformedError

_DEPTH_MAX = 16
_SCALAR_CHARS_MAX = 1000
_PART_CHARS = 60  # of a key in a message

Path = tuple[str | int, ...]
"""Keys and list indices from the top down."""

# YAML 1.1 requires a dot and a sign, as in `2.0e+9`; people write 2e9.
_EXPONENT = re.compile(r"[+-]?[0-9][0-9_]*(\.[0-9_]*)?[eE][+-]?[0-9]{1,3}")
_KINDS = {f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "bool", "null")}


@dataclass(frozen=True, slots=True)
class Places:
    """Where values and keys are in the text `name`: line and column by path, from 1 on. Empty for values not read."""

    name: str
    values: Mapping[Path, tuple[int, int]] = field(default_factory=dict)
    keys: Mapping[Path, tuple[int, int]] = field(default_factory=dict)

    def of(self, path: Path, *, key: bool = False) -> str:
        """Return name, line and column of the value at `path`, or of the nearest above it that is in the text."""
        places = self.keys if key else self.values
        for length in range(len(path), -1, -1):
            found = places.get(path[:length]) or self.values.get(path[:length])
            if found is not None:
                return f"{self.name}, line {found[0]}, column {found[1]}"
        return self.name

    def refuse(self, path: Path, *, got: object, expected: str, key: bool = False) -> MalformedError:
        """Return an error that names the place of `path`."""
        return MalformedError(dotted(path), where=self.of(path, key=key), got=got, expected=expected)


def dotted(path: Path) -> str:
    """Return a path in its usual notation."""
    return ".".join(str(part)[:_PART_CHARS] for part in path) or "text"


@dataclass(frozen=True, slots=True)
class TextLimit:
    """Limits on a text: its bytes, and the number of values in it."""

    text_bytes: int = 256 << 10
    values: int = 20_000


PAGE = TextLimit()
"""A hand-written file is a page; long content (a profile's operators) lies in a file of its own."""


def read_yaml_file(file: FilePath, what: str, limit: TextLimit = PAGE) -> Any:
    """Return the values of a YAML file, or None if it has none; `what` names the file in errors.

    Raises
    ------
    ConfigError
        It cannot be read, or as `read_yaml`; the message names the file, line and column.
    """
    try:
        with file.open("rb") as opened:
            data = opened.read(limit.text_bytes + 1)
        return read_yaml(data.decode("utf-8-sig"), f"{what} {file}", limit)[0]
    except OSError as error:
        raise FileAccessError(f"{what} {file}", error) from None
    except MalformedError as error:
        raise ConfigError(str(error)) from None
    except ValueError as error:  # no UTF-8, or a NUL in the file's name
        raise ConfigError(f"{what} {str(file)!r}: expected YAML in UTF-8: {error}") from None


def read_yaml(text: str, name: str, limit: TextLimit = PAGE) -> tuple[Any, Places]:
    """Return the values of a text called `name`, and their places.

    Raises
    ------
    MalformedError
        The text is too large, too deep, no YAML, holds an alias, a key twice, or a value of a kind that JSON has not.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > limit.text_bytes:
        raise MalformedError("text", where=name, got=f"{size} bytes", expected=f"at most {limit.text_bytes}")
    try:
        _check_size(text, name, limit.values)
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        places = Places(name, {}, {})
        return (None if node is None else _value(node, (), loader, places)), places
    except (yaml.MarkedYAMLError, yaml.reader.ReaderError) as error:
        mark: Any = getattr(error, "problem_mark", None)
        where = _place(name, mark)
        problem = getattr(error, "problem", None) or getattr(error, "reason", error)
        raise MalformedError("text", where=where, got=f"a syntax error ({problem})", expected="YAML") from None


def parse_value(text: str, what: str) -> Any:
    """Return the value of the YAML `text`, given for `what` on a command line.

    Raises
    ------
    MalformedError
        As `read_yaml`.
    """
    return read_yaml(text, what)[0]


def _check_size(text: str, name: str, values_max: int) -> None:
    """Walk the events, which takes no recursion, and refuse what would be dear to build."""
    depth = values = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        where = _place(name, event.start_mark)
        if isinstance(event, yaml.AliasEvent):
            raise MalformedError("value", where=where, got=f"alias *{event.anchor}", expected="the value itself")
        values += isinstance(event, yaml.NodeEvent)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEPTH_MAX or values > values_max:
            got = f"{values} values, {depth} deep"
            raise MalformedError("text", where=where, got=got, expected=f"at most {values_max}, {_DEPTH_MAX} deep")


def _place(name: str, mark: Any) -> str:
    return name if mark is None else f"{name}, line {mark.line + 1}, column {mark.column + 1}"


def _value(node: yaml.Node, path: Path, loader: yaml.SafeLoader, places: Places) -> Any:
    place = (node.start_mark.line + 1, node.start_mark.column + 1)
    places.values[path] = place  # type: ignore[index]  # filled here, read-only for others
    if isinstance(node, yaml.SequenceNode):
        return [_value(child, (*path, index), loader, places) for index, child in enumerate(node.value)]
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node, path, loader, places)
    found: dict[str, Any] = {}
    for key_node, child in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise places.refuse(path, got="a key that is a list or a mapping", expected="a name")
        key = str(key_node.value)
        if len(key) > _SCALAR_CHARS_MAX:
            raise places.refuse(path, got=f"a key of {len(key)} characters", expected=f"at most {_SCALAR_CHARS_MAX}")
        places.keys[*path, key] = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)  # type: ignore[index]
        if key in found:
            raise places.refuse((*path, key), got=f"{key!r} twice", expected="each key once", key=True)
        found[key] = _value(child, (*path, key), loader, places)
    return found


def _scalar(node: yaml.ScalarNode, path: Path, loader: yaml.SafeLoader, places: Places) -> Any:
    text = node.value
    if len(text) > _SCALAR_CHARS_MAX:
        raise places.refuse(path, got=f"{len(text)} characters", expected=f"at most {_SCALAR_CHARS_MAX}")
    if node.style is None and _EXPONENT.fullmatch(text):
        return float(text.replace("_", ""))
    if node.tag not in _KINDS:
        return text
    try:
        return loader.construct_object(node)
    except ValueError:
        raise places.refuse(path, got=text, expected="a number") from None
