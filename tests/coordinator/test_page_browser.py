"""The pages in Chromium: the map, both schemes, narrow and wide, by keyboard, live, with and without scripts."""

import contextlib
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest

from lockstep.contracts.messages import CaptureResult, TraceSummary
from tests.coordinator.conftest import START_UNIX_S, announce
from tests.coordinator.test_runs import NOW, play, two_nodes
from tests.coordinator.web import FAULTY, TOKEN, Server
from tests.support.browser import chromium
from tests.support.servers import WAIT_S

pytestmark = [pytest.mark.servers, pytest.mark.timeout(120)]
CELLS = """(...cells) => {
  const box = document.getElementById("heat"), canvas = box.querySelector("canvas"), at = box.dataset;
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return cells.map(([row, step]) => {
    const x = Math.round(+at.gutter + (step + 0.5) * at.cellWidth), y = Math.round(+at.head + (row + 0.5) * at.rowHeight);
    return [0, 1, 2].map(part => data[4 * (y * canvas.width + x) + part]).reduce((one, other) => one + other);
  });
}"""
"""Brightness of cells of the map, 0 to 765; read once, because Chromium complains of many readings."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    token = tmp_path_factory.mktemp("token") / "token"
    token.write_text(TOKEN)
    with contextlib.closing(Server(str(token))) as made:
        yield made


@pytest.fixture(scope="module")
def browser():
    with chromium() as made:
        yield made


@pytest.fixture
def tab(browser, server):
    """Give the tab; afterwards neither console nor page has complained, and nothing came from elsewhere."""
    browser.call("Emulation.setScriptExecutionDisabled", value=False)
    browser.complaints.clear()
    yield browser
    assert [each for each in browser.complaints if not each.startswith(f"fetched {server.url}/")] == []


def show(tab, url, *, width=1400, scheme="light"):
    tab.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
    features = [
        {"name": "prefers-color-scheme", "value": scheme},
        {"name": "prefers-reduced-motion", "value": "reduce"},
    ]
    tab.call("Emulation.setEmulatedMedia", features=features)
    tab.call("Page.navigate", url=url)
    tab.wait("Page.loadEventFired")


def until(tab, expression, seconds=WAIT_S):
    """Return the first true value of an expression of the page."""
    end = time.monotonic() + seconds
    while not (value := tab.ask(expression)):
        assert time.monotonic() < end, (expression, tab.ask("document.body.innerText.slice(0, 2000)"))
        time.sleep(0.05)
    return value


def press(tab, key, times=1):
    for _ in range(times):
        for kind in ("rawKeyDown", "keyUp"):
            code = {"Tab": 9, "Enter": 13}.get(key, 0)
            tab.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)


def open_map(tab, server, **look):
    show(tab, f"{server.url}/runs/job", **look)
    until(tab, "document.getElementById('heat').dataset.last")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_the_map_shows_who_is_slow(tab, server, width, scheme):
    """The slow rank's cells stand out from the ground after the onset and not before; nothing is wider than the screen."""
    open_map(tab, server, width=width, scheme=scheme)
    steps = int(tab.ask("document.getElementById('heat').dataset.steps"))
    last = int(tab.ask("document.getElementById('heat').dataset.last"))
    cells = [2, steps - 3], [2, steps - (last - 39) - 3], [1, steps - 3]
    after, before, healthy = tab.ask(f"({CELLS})(...{[*cells]})")
    assert abs(before - healthy) < 90
    assert (healthy - after if scheme == "light" else after - healthy) > 250
    assert tab.ask("document.documentElement.scrollWidth") <= width
    show(tab, f"{server.url}/", width=width, scheme=scheme)
    assert tab.ask("document.documentElement.scrollWidth") <= width
    assert "Slow rank: rank 2" in tab.ask("document.getElementById('open').innerText")
    assert tab.ask("document.querySelector('.runs a').getAttribute('href')") == "/runs/job"
    assert tab.ask("getComputedStyle(document.querySelector('.live'), '::before').animationName") == "none"


def test_the_map_by_keyboard(tab, server):
    """Tab comes to it, the focus shows, arrows read cells aloud, Enter takes the rank into the form."""
    open_map(tab, server)
    for _ in range(40):
        press(tab, "Tab")
        if tab.ask("document.activeElement.id") == "heat":
            break
    assert tab.ask("document.activeElement.id") == "heat"
    assert tab.ask("parseFloat(getComputedStyle(document.activeElement).outlineWidth)") >= 2
    cell_text = "document.getElementById('cell').textContent"
    assert tab.ask(cell_text).startswith("rank 2, step ")
    assert "incident: slow rank, cause data, since step 40" in tab.ask(cell_text)
    press(tab, "ArrowDown")
    assert tab.ask(cell_text).startswith("rank 3, step ")
    press(tab, "Home")
    press(tab, "ArrowRight")
    press(tab, "PageUp")
    assert tab.ask(cell_text).startswith("rank 0, step ")
    assert "own work 4" in tab.ask(cell_text)
    press(tab, "Enter")
    assert tab.ask("document.forms.profile.elements.ranks.value") == "2, 0"
    tab.ask(
        "document.getElementById('by').value = 'dp', document.getElementById('by').dispatchEvent(new Event('change'))"
    )
    until(tab, f"{cell_text}.includes('dp0 is ranks 0-3')")


@pytest.mark.smoke
def test_a_step_shows_without_loading_the_page(tab, server):
    """A new step arrives by events: tile and map follow, what was unfolded stays so, focus too."""
    open_map(tab, server)
    until(tab, "document.getElementById('live').textContent === 'live'")
    tab.ask("window.mark = 1, document.querySelector('.card details').open = true")
    tab.ask("document.querySelector('.card details summary').focus()")
    last = server.do(lambda: server.site.runs.by_name["job"].machine.step_result.step)
    server.do(play, server.site.runs, FAULTY, last + 1, last + 3)
    until(tab, f"document.getElementById('heat').dataset.last === '{last + 2}'")
    until(tab, f"document.querySelector('.tiles').innerText.includes('{last + 2}')")
    assert tab.ask("window.mark") == 1
    assert tab.ask("document.querySelector('.card details').open")
    assert tab.ask("document.activeElement.tagName") == "SUMMARY"


def next_steps(tab, server):
    """Play steps of the job, so many that what it has lost reads otherwise in whole seconds, until the page shows them."""
    last = server.do(lambda: server.site.runs.by_name["job"].machine.step_result.step) + 3
    server.do(play, server.site.runs, FAULTY, last - 2, last + 1)
    until(tab, f"document.querySelector('.tiles').innerText.includes('{last}')")


def test_what_somebody_copies_or_clicks_is_not_replaced(tab, server):
    """A selection and a press of the mouse outlast a step, a forgotten selection does not; then what is new shows."""
    open_map(tab, server)
    until(tab, "document.getElementById('live').textContent === 'live'")
    lost = "[...document.querySelectorAll('#open dt')].find(each => each.textContent === 'Lost so far').nextSibling"
    before = tab.ask(f"{lost}.textContent")
    tab.ask(f"getSelection().selectAllChildren({lost})")
    next_steps(tab, server)
    assert tab.ask("getSelection().toString()").strip() == before
    tab.ask("getSelection().removeAllRanges()")
    next_steps(tab, server)
    until(tab, f"{lost}.textContent !== {before!r}")
    edge = tab.ask(
        "(({x, y}) => ({x: x + 9, y: y + 9}))(document.querySelector('#open summary').getBoundingClientRect())"
    )
    mouse = {"button": "left", "clickCount": 1, **edge}
    tab.call("Input.dispatchMouseEvent", type="mousePressed", **mouse)
    next_steps(tab, server)
    tab.call("Input.dispatchMouseEvent", type="mouseReleased", **mouse)
    assert tab.ask("document.querySelector('#open details').open")
    # Until the page has noted when: the event comes later, and the clock must not jump before it.
    noted = "new Promise(done => document.addEventListener('selectionchange', done, {once: true}))"
    before = tab.ask(
        f"(noted => (getSelection().selectAllChildren({lost}), noted.then(() => {lost}.textContent)))({noted})"
    )
    tab.ask("(now => { performance.now = () => now() + 61000; })(performance.now.bind(performance)), 0")
    next_steps(tab, server)
    until(tab, f"{lost}.textContent !== {before!r}")


def test_times_are_utc_and_the_readers_own(tab, server):
    """Next to UTC are the reader's clock and how long ago it was; both survive a refreshment, once."""
    opened = server.do(lambda: next(iter(server.site.runs.by_name["job"].machine.tracker.incidents.values())))
    tab.call("Emulation.setTimezoneOverride", timezoneId="Asia/Kolkata")
    try:
        open_map(tab, server)
        at = datetime.fromtimestamp(opened.opened_unix_ns / 1e9, UTC)
        here = at.astimezone(timezone(timedelta(hours=5, minutes=30)))
        card_time = "document.querySelector('.card time').textContent"
        expected = f"{at:%Y-%m-%d %H:%M:%S} UTC, {here:%H:%M:%S} here"
        assert tab.ask(card_time).startswith(expected)
        until(tab, "document.getElementById('live').textContent === 'live'")
        last = server.do(lambda: server.site.runs.by_name["job"].machine.step_result.step)
        server.do(play, server.site.runs, FAULTY, last + 1, last + 2)
        until(tab, f"document.querySelector('.tiles').innerText.includes('{last + 1}')")
        assert tab.ask(card_time).count("here") == 1
    finally:
        tab.call("Emulation.setTimezoneOverride", timezoneId="")


def test_a_page_that_waits_for_its_run(tab, server):
    """A run that is not there yet appears without loading by hand; before its first step there is no empty map."""
    show(tab, f"{server.url}/runs/later")
    until(tab, "document.getElementById('live').textContent === 'this run is not watched any more'")
    server.do(server.site.runs.take, announce(0, 1, run="later"), NOW)
    tab.wait("Page.loadEventFired")
    until(tab, "document.getElementById('cell')?.textContent === 'No undisturbed step yet.'")
    assert tab.ask("document.getElementById('heat').offsetHeight") == 0
    assert tab.ask("document.getElementById('legend').offsetHeight") == 0
    tab.call("Page.navigate", url="about:blank")
    tab.wait("Page.loadEventFired")
    server.do(server.site.runs.forget, "later")
    tab.complaints[:] = [each for each in tab.complaints if "404" not in each]


def test_a_long_name_breaks_no_other_column(tab, server):
    """States are one word, on one line."""
    name = "a-name-that-somebody-made-very-long-" + "x" * 80
    server.do(server.site.runs.take, announce(0, 1, run=name), NOW)
    for width in (400, 900, 1400):
        show(tab, f"{server.url}/", width=width)
        heights = tab.ask("[...document.querySelectorAll('.runs .badge')].map(each => each.offsetHeight)")
        assert max(heights) < 30, width
        assert tab.ask("document.documentElement.scrollWidth") <= width
    server.do(server.site.runs.forget, name)


def request_capture(tab, token):
    tab.ask(f"document.forms.profile.elements.token.value = {token!r}")
    tab.ask("document.forms.profile.elements.ranks.value = '1, 2-3'")
    tab.ask("document.querySelector('#profile button').click()")


def deliver(site, error):
    capture = site.runs.by_name["job"].machine.captures.current
    for rank in capture.ranks:
        about = {"run": "job", "node": "n0", "rank": rank, "request_id": capture.request_id}
        site.runs.take(CaptureResult(**about, state="done", cost_ns=10**9), NOW)
        summary = TraceSummary(**about, window_ns=1, steps=2, trace_bytes=1, event_count=1, tree=[], error=error)
        site.runs.take(summary, NOW)


def test_a_profile_with_a_wrong_and_a_right_token(tab, server):
    """Refused with the reason; accepted, followed to its end rank by rank; the token is kept in the tab only."""
    open_map(tab, server)
    status = "document.getElementById('profile-status').textContent"
    request_capture(tab, "wrong")
    until(tab, f"{status}.startsWith('Refused: Authorization')")
    assert [each for each in tab.complaints if "401" in each]
    tab.complaints.clear()
    assert tab.ask("sessionStorage.getItem('token')") is None
    server.do(lambda: setattr(server.site.runs.by_name["job"].machine.captures, "current", None))
    request_capture(tab, TOKEN)
    until(tab, f"{status}.includes('is accepted')")
    assert (tab.ask("sessionStorage.getItem('token')"), tab.ask("localStorage.length")) == (TOKEN, 0)
    until(tab, "document.getElementById('profile-ranks').children.length === 3")
    server.do(deliver, server.site, "no trace <b>")
    until(tab, f"{status} === 'No rank delivered a trace.'")
    assert "rank 2: refused (no trace <b>)" in tab.ask("document.getElementById('profile-ranks').innerText")
    assert tab.ask("document.querySelector('#profile progress').value") == 3


def pause(site, run):
    """Play steps of another run, with ten minutes without one in their midst."""
    two_nodes(site.runs, run=run)
    play(site.runs, FAULTY, 0, 45, run=run)
    play(site.runs, FAULTY, 45, 80, run=run, start_s=START_UNIX_S + 600)


def drag(tab, box, first, last):
    """Drag over a part of the first chart, shares of its width."""
    edge = tab.ask(f"(({{x, y, width}}) => ({{x, y, width}}))(document.querySelector({box!r}).getBoundingClientRect())")
    for kind, share in (("mouseMoved", first), ("mousePressed", first), ("mouseMoved", last), ("mouseReleased", last)):
        at = {"x": edge["x"] + share * edge["width"], "y": edge["y"] + 40}
        tab.call("Input.dispatchMouseEvent", type=kind, button="left", buttons=1, clickCount=1, **at)


@pytest.mark.parametrize("width", [390, 1440])
def test_a_run_over_time(tab, server, width):
    """A pause is a gap, a point reads its steps, dragging zooms all charts, and an incident leads to its card."""
    name = f"paused-{width}"
    server.do(pause, server.site, name)
    show(tab, f"{server.url}/runs/{name}", width=width)
    until(tab, "document.getElementById('charts').dataset.last")
    assert tab.ask("document.documentElement.scrollWidth") <= width
    assert tab.ask("document.querySelectorAll('.uplot').length") == 3
    assert tab.ask("document.getElementById('charts').dataset.gaps") == "1"
    tab.ask("document.getElementById('charts').scrollIntoView()")
    drag(tab, ".u-over", 0.02, 0.3)
    spans = "(({from, to}) => to - from)(document.getElementById('charts').dataset)"
    until(tab, f"{spans} < 300")
    assert tab.ask("document.getElementById('series-at').textContent").count("UTC, step") == 1
    tab.ask("document.getElementById('range').dispatchEvent(new Event('change'))")
    assert tab.ask(spans) > 600
    link = tab.ask("document.querySelector('#lanes a').getAttribute('href')")
    assert tab.ask(f"document.querySelector({link!r}).className").startswith("card")
    assert "Slow rank: rank 2, data: from step 40" in tab.ask("document.querySelector('#lanes a').title")
    show(tab, f"{server.url}/")
    server.do(server.site.runs.forget, name)


def test_runs_are_searched_and_sorted(tab, server):
    """Both outlast a refreshment; a click on a head sorts, the same click again turns the order round."""
    for name in ("a-quiet-run", "b-quiet-run"):
        server.do(two_nodes, server.site.runs, name)
    show(tab, f"{server.url}/")
    names = "[...document.querySelectorAll('.runs tbody tr')].filter(each => !each.hidden).map(each => each.cells[0].textContent)"
    assert tab.ask(names) == ["job", "a-quiet-run", "b-quiet-run"]
    tab.ask("document.querySelector('.runs th button').click()")
    assert tab.ask(names) == ["a-quiet-run", "b-quiet-run", "job"]
    tab.ask("document.querySelector('.runs th button').click()")
    assert tab.ask("document.querySelector('.runs th').getAttribute('aria-sort')") == "descending"
    tab.ask(
        "document.getElementById('search').value = 'QUIET a-', document.getElementById('search').dispatchEvent(new Event('input'))"
    )
    last = server.do(lambda: server.site.runs.by_name["job"].machine.step_result.step)
    server.do(play, server.site.runs, FAULTY, last + 1, last + 2)
    until(tab, f"document.querySelector('.runs').textContent.includes('{last + 1}')")
    assert tab.ask(names) == ["a-quiet-run"]
    assert tab.ask("document.getElementById('search-count').textContent").startswith("1 of ")
    for name in ("a-quiet-run", "b-quiet-run"):
        server.do(server.site.runs.forget, name)


def test_without_scripts_the_page_shows_the_same(tab, server):
    """Runs, incident, slowest ranks with their last steps as pictures; what needs a script is not there."""
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    show(tab, f"{server.url}/runs/job", width=400)
    assert "Slow rank: rank 2" in tab.ask("document.body.innerText")
    assert tab.ask("document.querySelector('#slowest tbody tr td').innerText") == "2"
    assert tab.ask("document.querySelectorAll('#slowest svg')[0].querySelectorAll('.l8, .l7').length") > 5
    assert "The map needs JavaScript" in tab.ask("document.body.innerText")
    assert tab.ask("getComputedStyle(document.getElementById('profile')).display") == "none"
    assert tab.ask("document.documentElement.scrollWidth") == 400
