"""Step time over time as a client gets it, and what a restart of the coordinator leaves of it."""

import pytest

from coordinator.decide.saved_run import SavedRun
from coordinator.record.step_series import INTERVALS_MAX
from coordinator.store import Store
from tests.coordinator.test_runs import FAULTY, play, runs, two_nodes
from tests.coordinator.web import Site, get

PATH = "/api/v1/runs/job/series"


@pytest.fixture
async def site():
    async with Site() as made:
        play(made.runs, FAULTY, 0, 60)
        yield made


async def test_the_series_of_a_run(site):
    """All steps but those of the interval under way, in order, longer where the rank was slow."""
    answer = await get(site, PATH)
    made = answer["points"]
    assert (answer["run"], answer["ranks"], made[0]["first_step"]) == ("job", 4, 0)
    assert sum(each["steps"] for each in made) == made[-1]["last_step"] + 1
    assert made[-1]["step_seconds"] > 1.1 * made[0]["step_seconds"]
    assert made[-1]["part_seconds"].keys() >= {"data", "host", "gc", "dp_wait"}
    later = await get(site, f"{PATH}?since_step={made[-1]['first_step']}")
    assert later["points"] == made[-1:]
    assert len((await get(site, f"{PATH}?points=2"))["points"]) <= 2


@pytest.mark.parametrize("query", ["points=0", f"points={INTERVALS_MAX + 1}", "since_step=-1", "since_step=1e3"])
async def test_a_bad_query_is_refused_by_name(site, query):
    """Got and expected."""
    error = (await get(site, f"{PATH}?{query}", 400))["error"]
    assert error.startswith(f"{query.split('=')[0]}: got ")
    assert "expected a whole number from" in error


def test_a_restarted_coordinator_goes_on_with_the_series(tmp_path):
    """What the store kept is what the run begins with; damaged bytes cost the series only."""
    watch = runs()
    two_nodes(watch)
    play(watch, FAULTY, 0, 60)
    memory = watch.by_name["job"].memory(with_learnt=False, with_series=True)
    store = Store(str(tmp_path))
    store.keep([], {"job": memory})
    store.keep([], {"job": SavedRun()})  # without a series: the last one stays
    memories = store.load_runs()
    later = runs(memories)
    two_nodes(later)
    assert later.by_name["job"].series.to_bytes() == memory.series
    store._database.execute("UPDATE series SET body = x'00'")
    damaged = runs(store.load_runs())
    two_nodes(damaged)
    assert damaged.by_name["job"].series.complete() == []
    store.forget_learnt(["job"])
    assert store.load_runs()["job"].series is None
    store.close()
