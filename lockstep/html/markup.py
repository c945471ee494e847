"""Builds HTML and SVG that is escaped by construction: only `Html` is inserted unchanged, other strings are escaped.

Names come from traces, and a trace may be hostile. In addition to the five special characters of markup, invisible and
text-reversing characters are replaced, and long texts are cut.
"""

import re
from collections.abc import Iterable
from html import escape

TEXT_MAX = 500
NAME_MAX = 200
"""Characters of a text and of a name that are shown; the JSON summary has them in full."""
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_SPACES = re.compile(r"[\t\n\r\f\v\u0085\u2028\u2029]+")
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufffe\uffff]")
_NUMBER_CELL = '<td class="number"'
_VOID = frozenset({"br", "meta", "link"})


class Html(str):
    """A string that is markup already. Concatenation with `str` gives a plain string, which would be escaped again."""

    __slots__ = ()


def escaped(text: str) -> Html:
    """Return a text as markup, cut to `TEXT_MAX` characters."""
    if isinstance(text, Html):
        return text
    return Html(escape(_UNSEEN.sub(_REPLACEMENT, _SPACES.sub(" ", cut(text, TEXT_MAX)))))


def cut(text: str, max_chars: int = NAME_MAX) -> str:
    """Return the text, cut to `max_chars` characters with an ellipsis."""
    return text if len(text) <= max_chars else text[: max_chars - 1] + "\N{HORIZONTAL ELLIPSIS}"


def join(parts: Iterable[str]) -> Html:
    """Return texts and markup concatenated; texts are escaped."""
    return Html("".join(map(escaped, parts)))


def tag(name: str, /, *children: str, **attributes: str | float | None) -> Html:
    """Return an element; `class_` becomes class and `data_value` data-value; attributes that are None are omitted."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(_plain(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{written}>" if name in _VOID else f"<{name}{written}>{join(children)}</{name}>")


def _plain(value: str | float) -> str:
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) else f"{value:.3f}".rstrip("0").rstrip(".")


def muted(*children: str) -> Html:
    """Return a paragraph in muted text."""
    return tag("p", *children, class_="soft")


def code(text: str) -> Html:
    """Return a name as code, cut to `NAME_MAX` characters."""
    return tag("code", cut(text) or "(no name)")


def items(rows: Iterable[str]) -> Html:
    """Return a list; empty markup if there are no rows."""
    made = [tag("li", row) for row in rows]
    return tag("ul", *made) if made else Html()


def folded(summary: str, *children: str) -> Html:
    """Return a collapsible section, which printed pages show expanded."""
    return tag("details", tag("summary", summary), *children)


def section(name: str, title: str, *children: str) -> Html:
    """Return a section with its heading."""
    return tag("section", tag("h2", title), *children, id=name)


def left_out(name: str, title: str, why: str) -> Html:
    """Return a section that only states why it has no data."""
    return section(name, title, muted(why))


class Cell(Html):
    """A cell of a table, made by `cell`."""

    __slots__ = ()


def cell(content: str, *, value: float | None = None, is_number: bool = False) -> Cell:
    """Return a cell; `value` is the sort key of its column, and readable by tests."""
    is_number = is_number or value is not None
    return Cell(tag("td", content, class_="number" if is_number else None, data_value=value))


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> Html:
    """Return a table that scrolls horizontally on narrow pages.

    Headings of numeric columns are aligned like the numbers.
    """
    cells = [[each if isinstance(each, Cell) else cell(each) for each in row] for row in rows]
    first = cells[0] if cells else []
    numeric = [each.startswith(_NUMBER_CELL) for each in first]
    made = [
        tag("th", head, scope="col", class_="number" if numeric[at : at + 1] == [True] else None)
        for at, head in enumerate(heads)
    ]
    inner = tag("table", tag("thead", tag("tr", *made)), tag("tbody", *(tag("tr", *row) for row in cells)))
    return tag("div", inner, class_="scroll", tabindex=0, role="region", aria_label="table")
