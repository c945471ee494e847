"""HTML and SVG as text, escaped by construction: only `Html` goes into a document as it is, every other text is text.

Names come from traces, and a trace may be hostile. Besides the five characters of markup, what a reader could not see
or what would turn the text around it is replaced, and a name without end is cut.
"""

import re
from collections.abc import Iterable
from html import escape

TEXT_MAX = 500
NAME_MAX = 200
"""Characters of one text, and of one name, that are shown; the JSON summary has all of them."""
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_SPACES = re.compile(r"[\t\n\r\f\v\u0085\u2028\u2029]+")
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufffe\uffff]")
_NUMBER_CELL = '<td class="number"'
_VOID = frozenset({"br", "meta", "link"})


class Html(str):
    """Text that is markup already; joined with other strings it becomes a plain one, which would be escaped again."""

    __slots__ = ()


def escaped(text: str) -> Html:
    """Return a text as markup, cut to `TEXT_MAX` characters."""
    if isinstance(text, Html):
        return text
    return Html(escape(_UNSEEN.sub(_REPLACEMENT, _SPACES.sub(" ", cut(text, TEXT_MAX)))))


def cut(text: str, most: int = NAME_MAX) -> str:
    """Return a text of at most so many characters."""
    return text if len(text) <= most else text[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"


def join(parts: Iterable[str]) -> Html:
    """Return texts and markup one after the other."""
    return Html("".join(map(escaped, parts)))


def tag(name: str, /, *children: str, **attributes: str | float | None) -> Html:
    """Return an element; `class_` is class, `data_value` is data-value, an attribute that is None is left out."""
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


def soft(*children: str) -> Html:
    """Return a remark."""
    return tag("p", *children, class_="soft")


def code(text: str) -> Html:
    """Return a name out of a trace."""
    return tag("code", cut(text) or "(no name)")


def items(rows: Iterable[str]) -> Html:
    """Return a list, nothing if it is empty."""
    made = [tag("li", row) for row in rows]
    return tag("ul", *made) if made else Html()


def folded(summary: str, *children: str) -> Html:
    """Return what is read on demand; printed pages show it."""
    return tag("details", tag("summary", summary), *children)


def section(name: str, title: str, *children: str) -> Html:
    """Return a part of the page with its heading."""
    return tag("section", tag("h2", title), *children, id=name)


def left_out(name: str, title: str, why: str) -> Html:
    """Return the one line that stands for a section without data."""
    return section(name, title, soft(why))


class Cell(Html):
    """A cell of a table, made by `cell`."""

    __slots__ = ()


def cell(content: str, *, value: float | None = None, is_number: bool = False) -> Cell:
    """Return a cell; `value` is what its column is sorted by and what a test reads."""
    is_number = is_number or value is not None
    return Cell(tag("td", content, class_="number" if is_number else None, data_value=value))


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> Html:
    """Return a table that scrolls inside itself where the page is narrow; heads stand over numbers as these do."""
    cells = [[each if isinstance(each, Cell) else cell(each) for each in row] for row in rows]
    first = cells[0] if cells else []
    numeric = [each.startswith(_NUMBER_CELL) for each in first]
    made = [
        tag("th", head, scope="col", class_="number" if numeric[at : at + 1] == [True] else None)
        for at, head in enumerate(heads)
    ]
    inner = tag("table", tag("thead", tag("tr", *made)), tag("tbody", *(tag("tr", *row) for row in cells)))
    return tag("div", inner, class_="scroll", tabindex=0, role="region", aria_label="table")
