"""The map as a client gets it: bounded, once per step, of groups that there are."""

import asyncio
import json

import numpy as np
import pytest

from coordinator.api.heatmap import HEAT_MAPS, KEPT_MAX
from coordinator.page import heat
from lockstep.contracts.domains import pack_ranks
from lockstep.contracts.messages import GroupInfo
from tests.coordinator.conftest import announce
from tests.coordinator.scenarios import Scenario, generate
from tests.coordinator.test_runs import NOW, play
from tests.coordinator.web import FAULTY, Site, get

PATH = "/api/v1/runs/job/heatmap"


@pytest.fixture
async def site():
    async with Site() as made:
        play(made.runs, FAULTY, 0, 50)
        yield made


async def test_the_map_of_a_run(site):
    """Its steps, rows, groups to choose from, the incident at its onset, the slow rank first."""
    heatmap = await get(site, PATH)
    assert (heatmap["run"], heatmap["steps"][-1], heatmap["rows"]["ranks"]) == ("job", 49, ["0", "1", "2", "3"])
    assert heatmap["group_kinds"] == ["node", "dp"]
    assert [group["name"] for group in heatmap["groups"]] == ["host-n0", "host-n1"]
    (mark,) = heatmap["incidents"]
    assert (heatmap["steps"][mark["column"]], mark["rows"]) == (40, [[2, 2]])
    assert heatmap["worst"][0]["rank"] == 2
    assert (await get(site, f"{PATH}?by=dp"))["groups"] == [{"name": "dp0", "ranks": "0-3"}]


async def test_what_is_not_there_is_named(site):
    """Unknown runs and groups; a run without a step has an empty map."""
    assert "expected one of node, dp" in (await get(site, f"{PATH}?by=<x>", 400))["error"]
    await get(site, "/api/v1/runs/nobody/heatmap", 404)
    site.runs.take(announce(0, run="young"), NOW)
    assert (await get(site, "/api/v1/runs/young/heatmap"))["steps"] == []


async def test_a_map_is_made_once_for_all_who_look(site, monkeypatch):
    """Ten at the same time, and the eleventh later, share one; the next step has its own; few are kept."""
    made = []
    real = heat.heat_map
    monkeypatch.setattr("coordinator.api.heatmap.heat_map", lambda *given: made.append(given) or real(*given))
    await asyncio.gather(*(get(site, PATH) for _ in range(10)))
    await get(site, PATH)
    assert len(made) == 1
    play(site.runs, FAULTY, 50, 51)
    assert (await get(site, PATH))["steps"][-1] == 50
    assert len(made) == 2
    for step in range(51, 80):
        play(site.runs, FAULTY, step, step + 1)
        await get(site, PATH)
    for by in ("dp", "node"):
        await get(site, f"{PATH}?by={by}")
    assert len(site.app[HEAT_MAPS]._rendered) <= KEPT_MAX


async def test_a_large_run_with_long_names_is_bounded():
    """2,048 ranks in tp, dp and pp, names as long as they may be: below 400 KB, every value JSON."""
    recording = generate(Scenario(degrees="tp=8,dp=64,pp=4", steps=3))
    world = recording.topology.world_size
    async with Site() as site:
        groups = [
            GroupInfo(kind=d.kind, name=f"{d.name}-{'n' * 100}", ranks=pack_ranks(d.ranks))
            for d in recording.topology.domains
        ]
        for first in range(0, world, 64):
            ranks = range(first, first + 64)
            node = f"{first}-{'é' * 60}"
            site.runs.take(announce(*ranks, world=world, run="big", node=node, groups=groups[:200]), NOW)
        for step in range(3):
            batches = [
                recording.batch(step, step + 1, run="big", ranks=range(first, first + 64), node=f"{first}-{'é' * 60}")
                for first in range(0, world, 64)
            ]
            site.runs.take_batches(batches, NOW + step)
        site.runs.tick(NOW + 1000)
        async with site.client.get("/api/v1/runs/big/heatmap?by=tp") as response:
            body = await response.read()
    heatmap = json.loads(body, parse_constant=pytest.fail)
    assert len(body) < 400_000
    assert len(heatmap["rows"]["ranks"]) <= 512
    assert sum(heatmap["rows"]["counts"]) == world
    assert np.all(np.array(heatmap["rows"]["groups"]) < len(heatmap["groups"]))
