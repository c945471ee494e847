"""The page in a real browser: Debian's Chromium, without a window."""

import pytest

from lockstep.analysis.report import render
from lockstep.analysis.report.page import SECTIONS
from tests.analysis.report import made
from tests.analysis.report.test_escaping import HOSTILE, with_texts
from tests.support.browser import chromium

pytestmark = pytest.mark.servers

VISIBLE = """[...document.querySelectorAll("h1, article, section, section > h2, figure svg")]
  .filter(each => each.checkVisibility() && each.getBoundingClientRect().height > 0).length"""
HIDDEN = """[...document.querySelectorAll("h1, article, section, section > h2, figure svg")]
  .filter(each => !each.closest("details:not([open])")
    && !(each.checkVisibility() && each.getBoundingClientRect().height > 0)).length"""
OUTSIDE = """[...document.querySelectorAll("figure text, figure circle, figure rect, nav a, h2, dd, p")]
  .filter(each => each.checkVisibility() && !each.closest(".scroll"))
  .filter(each => { const box = each.getBoundingClientRect(); return box.width && (box.left < -0.5 || box.right > innerWidth + 0.5); })
  .map(each => each.textContent.slice(0, 40))"""
OVERLAPS = """[...document.querySelectorAll("figure svg")].flatMap(picture => {
  const boxes = [...picture.querySelectorAll("text")].filter(each => each.checkVisibility())
    .map(each => [each.textContent, each.getBoundingClientRect()]);
  return boxes.flatMap(([text, a], at) => boxes.slice(at + 1)
    .filter(([, b]) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
      && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3)
    .map(([other]) => text + " | " + other));
})"""
CONTRAST = """(() => {
  const channels = colour => colour.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const light = colour => channels(colour).map(value => value / 255)
    .map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
    .reduce((sum, value, at) => sum + value * [0.2126, 0.7152, 0.0722][at], 0);
  const contrast = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const back = light(getComputedStyle(document.body).backgroundColor);
  const text = [...document.querySelectorAll("p, dd, dt, td, th, li, h1, h2, a, summary")]
    .map(each => contrast(light(getComputedStyle(each).color), back));
  const marks = [...document.querySelectorAll("rect.compute, rect.communication, rect.host, rect.overlap, path.flagged")]
    .map(each => contrast(light(getComputedStyle(each).fill), back));
  return [Math.min(...text), Math.min(...marks), back];
})()"""


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


@pytest.fixture(params=["job", "hostile", "empty", "many"])
def page(request, tmp_path):
    """Return a page of a job, of one whose names are markup, of nothing, and of more ranks than are shown."""
    summaries = {
        "job": made.summary,
        "hostile": lambda: with_texts(made.summary(), HOSTILE * 20, keep={"class", "cause"}),
        "empty": dict,
        "many": lambda: made.summary(300),
    }
    path = tmp_path / f"{request.param}.html"
    path.write_text(render(summaries[request.param]()))
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_the_page_reads_at_any_width_in_both_schemes(browser, page, width, scheme):
    """No complaint, nothing fetched, nothing outside the window, every section visible, no label on another."""
    browser.open(page, width=width, scheme=scheme)
    assert browser.complaints == []
    assert browser.ask("document.documentElement.scrollWidth") <= width
    assert browser.ask(OUTSIDE) == []
    assert browser.ask("[...document.querySelectorAll('section')].map(each => each.id)") == list(SECTIONS)
    assert browser.ask(HIDDEN) == 0
    assert browser.ask(VISIBLE) >= 2 * len(SECTIONS) + 2
    assert browser.ask(OVERLAPS) == []
    text, marks, back = browser.ask(CONTRAST)
    assert text >= 4.5
    assert marks is None or marks >= 3
    assert (back < 0.1) == (scheme == "dark")


def test_tables_sort(browser, tmp_path):
    """A click on a head sorts by the figures behind the texts, a second one the other way."""
    path = tmp_path / "page.html"
    path.write_text(render(made.summary()))
    browser.open(path, width=1400, scheme="light")
    column = """(() => { const table = document.querySelector("#breakdown table");
      [...table.querySelectorAll("th")].find(each => each.textContent === "free").querySelector("button").click();
      return [...table.tBodies[0].rows].map(row => Number(row.cells[0].dataset.value)); })()"""
    free = [rank["breakdown"]["free_ns"] for rank in made.summary()["ranks"]]
    expected = sorted(range(8), key=lambda number: -free[number])
    assert browser.ask(column) == expected
    assert browser.ask(column) == expected[::-1]
    assert browser.complaints == []


def test_a_hostile_page_runs_nothing(browser, tmp_path):
    """Markup in a name makes no element; a script that a fault let through is stopped by the page's policy."""
    path = tmp_path / "page.html"
    whole = render(with_texts(made.summary(), HOSTILE))
    path.write_text(whole)
    browser.open(path, width=1400, scheme="light")
    assert browser.ask("document.querySelectorAll('[onload]').length") == 0
    path.write_text(whole.replace("</nav>", "</nav><script>document.title = 'taken'</script>", 1))
    browser.open(path, width=1400, scheme="light")
    assert browser.ask("document.title") != "taken"
    assert any("Content Security Policy" in each for each in browser.complaints)
    browser.complaints.clear()


def test_printing_opens_what_is_folded_and_fits_the_paper(browser, tmp_path):
    """On paper, 720 px wide, every folded table is there and in one colour scheme."""
    path = tmp_path / "page.html"
    path.write_text(render(made.summary()))
    browser.open(path, width=720, scheme="dark", medium="print")
    shown = "[...document.querySelectorAll('details table, details figure')].map(each => each.checkVisibility())"
    assert set(browser.ask(shown)) == {True}
    assert browser.ask("document.documentElement.scrollWidth") <= 720
    assert browser.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
