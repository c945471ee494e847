"""A run's last steps as a trace, asked over HTTP."""

from tests.coordinator.test_runs import NOW, announce, play
from tests.coordinator.web import FAULTY, Site, get

PATH = "/api/v1/runs/job/trace"


async def test_the_trace_of_an_open_incident_is_a_file_to_open():
    """All its steps, as an attachment; what its card on the page links to; no longer there when it is closed."""
    async with Site() as site:
        play(site.runs, FAULTY, 0, 60)
        machine = site.runs.by_name["job"].machine
        (incident,) = machine.tracker.incidents
        wanted = f"{PATH}?incident={incident}"
        assert f'href="{wanted}"' in await get(site, "/runs/job")
        async with site.client.get(wanted) as response:
            assert "attachment" in response.headers["Content-Disposition"]
            events = (await response.json())["traceEvents"]
        assert {event["pid"] for event in events} == {0, 1, 2, 3}
        machine.tracker.close_all(NOW)
        assert "expected an open one" in (await get(site, wanted, 404))["error"]
        assert [event for event in (await get(site, PATH))["traceEvents"] if event["ph"] == "i"] == []


async def test_a_run_without_a_step_has_an_empty_trace_and_no_run_has_none():
    """Neither is a failure of the server."""
    async with Site() as site:
        site.runs.take(announce(0, run="young"), NOW)
        assert (await get(site, "/api/v1/runs/young/trace"))["traceEvents"] == []
        await get(site, "/api/v1/runs/nobody/trace", 404)
