"""Pages and their files over HTTP: headers, what is not there, and work that is done once."""

import asyncio
import gzip
import re
from dataclasses import replace

import pytest

from coordinator.api import pages
from coordinator.api.pages import PAGES
from coordinator.decide.incidents import CLOSED
from coordinator.page.overview import render_page
from tests.coordinator.conftest import announce
from tests.coordinator.test_runs import NOW, play
from tests.coordinator.web import FAULTY, Site, get


@pytest.fixture
async def site():
    async with Site() as made:
        play(made.runs, FAULTY, 0, 50)
        yield made


async def test_browsers_are_held_to_this_server(site):
    """No inline script or style, nothing from elsewhere; files may be kept for ever, pages never."""
    async with site.client.get("/runs/job") as response:
        policy = response.headers["Content-Security-Policy"]
        page = await response.text()
        assert response.headers["Cache-Control"] == "no-store"
    assert "unsafe" not in policy
    assert {"default-src 'none'", "script-src 'self'", "style-src 'self'"} <= set(policy.split("; "))
    assert not re.search(r"<style| style=| on[a-z]+=|http:", page)
    for path in re.findall(r'(?:src|href)="(/static/[^"]+)"', page):
        async with site.client.get(path) as response:
            assert response.status == 200
            assert "immutable" in response.headers["Cache-Control"]
    await get(site, "/static/000000000000/page.js", 404)


async def test_runs_that_are_not_there_or_have_not_begun(site):
    """A page that states it, its name escaped; a run before its first step has a page without figures."""
    page = await get(site, "/runs/%3Cb%3E", 404)
    assert "No run &#x27;&lt;b&gt;&#x27; is watched now" in page
    site.runs.take(announce(0, run="young"), NOW)
    assert "No undisturbed step yet" in await get(site, "/runs/young")


async def test_open_incidents_show_where_their_ranks_run(site):
    """On all pages and in the report; a group's ranks are everywhere, and a rank without a host is nowhere."""
    book = site.runs.by_name["job"].machine.tracker
    (found,) = book.incidents.values()
    for path in ("/", "/runs/job", f"/incidents/{found.id}"):
        assert "<dt>Host</dt><dd>host-n1</dd>" in await get(site, path), path
    book.incidents[found.id] = replace(found, scope="node", ranks=(0, 2, 3))
    assert "<dd>host-n0, host-n1</dd>" in await get(site, "/runs/job")
    for change in ({"scope": "group"}, {"ranks": (77,)}):
        book.incidents[found.id] = replace(found, **change)
        assert "<dt>Host</dt>" not in await get(site, "/runs/job"), change


async def test_a_run_that_is_gone_leaves_its_incidents(site):
    """An engineer who was paged at night finds them in the morning."""
    (found,) = site.runs.by_name["job"].machine.tracker.incidents.values()
    site.store.keep_incident(replace(found, run="gone", id="gone-1", state=CLOSED, closed_step=50, closed_unix_ns=1))
    page = await get(site, "/runs/gone", 404)
    assert "No run &#x27;gone&#x27; is watched now" in page
    assert 'href="/incidents/gone-1"' in page
    assert "Recently closed" not in await get(site, "/runs/never", 404)


async def test_a_page_is_made_once_for_all_who_look(site, monkeypatch):
    """Ten at once share one; a change of the run makes another; small and large browsers get the same text."""
    made = []
    monkeypatch.setattr(pages, "render_page", lambda *given: made.append(1) or render_page(*given))
    await asyncio.gather(*(get(site, "/") for _ in range(10)))
    assert len(made) == 1
    play(site.runs, FAULTY, 50, 51)
    text = await get(site, "/")
    assert len(made) == 2
    assert site.app[PAGES].bytes_kept < 100_000
    async with site.client.get("/", headers={"Accept-Encoding": "identity"}) as response:
        assert (await response.text(), response.headers.get("Content-Encoding")) == (text, None)
    (kept,) = site.app[PAGES]._rendered.values()
    assert gzip.decompress(kept.zipped) == kept.body
