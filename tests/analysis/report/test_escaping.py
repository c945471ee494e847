"""Names come from hostile traces: whatever they are, they stay text."""

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.analysis.report import render
from lockstep.html.markup import TEXT_MAX, escaped, tag
from tests.analysis.report import made
from tests.analysis.report.reader import read

HOSTILE = "</script></style></title><svg onload=alert(1)>\"'><!--<![CDATA[&lt;"
KEYS = {"class", "bound", "cause", "bottleneck"}
"""Texts that choose a colour or a title: tests of hostile ones keep them, or replace them all the same way."""


def with_texts(value, text, *, keep=frozenset()):
    """Return a summary with every text replaced, keys of `blame` and roofs included."""
    if isinstance(value, dict):
        return {
            (text if key in {"bf16", "tf32"} else key): each if key in keep else with_texts(each, text, keep=keep)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [with_texts(each, text, keep=keep) for each in value]
    return text if isinstance(value, str) else value


SMALL = made.summary(2, slow=1)


@settings(max_examples=15, deadline=None)
@given(st.one_of(st.text(max_size=40), st.sampled_from([HOSTILE, "\x00\u202e", "a" * 5000, "\ud800", "{x}", "%s"])))
def test_no_text_changes_the_page(text):
    """The elements and attributes of a page are those of a page with harmless names."""
    harmless = read(render(with_texts(SMALL, "name"))).skeleton()
    page = render(with_texts(SMALL, "x" + text))
    assert read(page).skeleton() == harmless
    page.encode()


@pytest.mark.parametrize("keep", [frozenset(), KEYS])
def test_a_function_named_as_markup_is_shown_as_text(keep):
    """The hostile name appears on the page, escaped, and adds no element that could run."""
    page = render(with_texts(SMALL, HOSTILE, keep=keep))
    document = read(page)
    assert HOSTILE in document.find("section", id="localisation")[0].text
    assert page.count("<script") == 1
    assert "onload" not in {key for each in document.find("svg") for key in each.attributes}


def test_the_page_forbids_the_browser_to_fetch():
    """The policy allows this style and this script alone; nothing on the page names another place."""
    document = read(render(made.summary()))
    policy = next(each.attributes["content"] for each in document.find("meta") if "http-equiv" in each.attributes)
    assert "default-src 'none'" in policy
    assert not [
        each
        for name in ("a", "link")
        for each in document.find(name)
        if not each.attributes["href"].startswith(("#", "data:,"))
    ]
    assert not [name for name in ("img", "iframe", "object", "base", "form") if document.find(name)]


@given(st.text(max_size=300))
def test_a_text_survives_but_for_what_cannot_be_seen(text):
    """Reading an escaped text gives the text back, cut, with its white space as single spaces."""
    shown = read(tag("p", text)).children[0].text
    assert len(shown) <= TEXT_MAX
    if text.isprintable() and len(text) <= TEXT_MAX and not any(char.isspace() and char != " " for char in text):
        assert shown == text


@pytest.mark.parametrize("char", ["\x00", "\x1b", "\u202e", "\u2066", "\ud800", "\u200b", "\ufeff"])
def test_what_cannot_be_seen_is_replaced(char):
    """A character that hides text or turns its direction is shown as a replacement."""
    assert escaped(f"a{char}b") == "a\ufffdb"


def test_a_summary_is_not_changed():
    """Rendering leaves the caller's summary as it was."""
    summary = made.summary(3)
    before = copy.deepcopy(summary)
    render(summary)
    assert json.dumps(summary) == json.dumps(before)
