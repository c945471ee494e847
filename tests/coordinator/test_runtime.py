"""The whole coordinator: real broker, real HTTP, a wire that plays exporter."""

import asyncio
import time

import aiohttp
import pytest

from coordinator.decide import events as ev
from coordinator.intake import coalescer
from coordinator.intake.streams import Receipt
from lockstep.contracts import topics
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.messages import CallNode, CaptureRequest, CaptureResult, TraceSummary
from lockstep.serving.broker import BrokerConfig
from lockstep.serving.local_broker import LocalBroker
from lockstep.serving.mqtt import MqttBroker
from tests.coordinator.conftest import announce, running, until
from tests.coordinator.scenarios import Scenario, generate
from tests.support.servers import WAIT_S, free_port
from tests.support.wire import wired

FAULTY = generate(Scenario(degrees="dp=4", steps=80).with_fault("compute", 2, seconds=0.4, begin=40))


def trace(rank, request, work_ns):
    """Return the summary of a rank whose `forward` took `work_ns`."""
    tree = [
        CallNode(parent=-1, name="train.py(1): step", kind="python", total_ns=work_ns, self_ns=0, count=3),
        CallNode(parent=0, name="train.py(9): forward", kind="python", total_ns=work_ns, self_ns=work_ns, count=3),
    ]
    return TraceSummary(
        run="job",
        node="n0",
        rank=rank,
        request_id=request,
        window_ns=3 * work_ns,
        steps=3,
        trace_bytes=1,
        event_count=6,
        tree=tree,
    )


async def play(wire, first, last, start_s):
    for step in range(first, last):
        await wire.send(topics.STEPS, FAULTY.batch(step, step + 1, start_s=start_s))


@pytest.mark.servers
async def test_from_records_to_the_function_over_a_real_broker(mosquitto, tmp_path):
    """Announce, steps, incident, request, summaries, diagnosis; all of it is there after a restart, and reported once."""
    now = time.time()
    settings = {"broker_port": mosquitto, "state_directory": str(tmp_path)}
    async with wired(MqttBroker(BrokerConfig(broker_port=mosquitto))) as wire:
        await wire.announce(announce(0, 1, 2, 3, heartbeat_s=now))
        async with running(**settings) as coordinator:
            await until(coordinator._bus.connected.is_set)
            await play(wire, 0, 50, now)
            request = await asyncio.wait_for(wire.requests.get(), WAIT_S)
            assert (request.ranks, request.steps, request.stacks) == ([2, 0, 1], 3, True)
            assert request.first_step > 42
            for rank, work_ns in ((2, 900_000_000), (0, 100_000_000), (1, 100_000_000)):
                answer = CaptureResult(run="job", node="n0", rank=rank, request_id=request.request_id, state="done")
                await wire.send(topics.ANSWER, answer)
                await wire.send(topics.SUMMARY, trace(rank, request.request_id, work_ns))
            machine = coordinator._runs.by_name["job"].machine
            await until(lambda: str(machine.state) == "diagnosed")
            async with (
                aiohttp.ClientSession(f"http://127.0.0.1:{coordinator.http_port}") as client,
                client.get("/api/v1/incidents?run=job") as response,
            ):
                (found,) = (await response.json())["incidents"]
            assert (found["ranks"], found["cause"], found["detected_step"]) == ([2], "compute", 42)
            assert "forward" in found["function"]
            assert found["advice"]
        async with running(**settings) as coordinator:
            await until(coordinator._bus.connected.is_set)
            await play(wire, 50, 80, now)
            await until(lambda: "job" in coordinator._runs.by_name)
            machine = coordinator._runs.by_name["job"].machine
            await until(lambda: machine.step_result is not None and machine.step_result.step == 79)
            (again,) = machine.tracker.incidents.values()
            assert (again.id, again.function) == (found["id"], found["function"])
            assert machine.tracker.incidents_total == 1


async def test_batches_wait_for_each_other_and_not_for_ever(monkeypatch):
    """A batch is not taken by itself; news of its run, and the end of the coordinator, do not overtake it."""
    monkeypatch.setattr(coalescer, "COALESCE_S", 3600.0)
    now = time.time()
    receipts = [Receipt(1), Receipt(2)]
    for receipt in receipts:
        receipt.hold()
    async with running(broker=LocalBroker()) as coordinator:
        coordinator._on_message(announce(0, 1, 2, 3, heartbeat_s=now), None)
        coordinator._on_message(FAULTY.batch(0, 1, start_s=now), receipts[0])
        machine = coordinator._runs.by_name["job"].machine
        coordinator._on_message(announce(0, 1, 2, 3, heartbeat_s=now + 1), None)
        assert machine.step_result is None
        assert not receipts[0].is_settled
        coordinator._on_message(announce(0, 1, 2, 3, heartbeat_s=now, state="finished"), None)
        assert machine.step_result.step == 0
        assert receipts[0].is_settled
        coordinator._on_message(FAULTY.batch(1, 2, start_s=now), receipts[1])
        assert machine.step_result.step == 0
    assert machine.step_result.step == 1
    assert receipts[1].is_settled


async def test_a_port_in_use_is_named():
    """The error names which key, which port and where."""
    async with running() as first:
        with pytest.raises(ConfigError, match=f"http_port: got {first.http_port}"):
            async with running(http_port=first.http_port):
                pass


async def test_a_state_directory_that_is_a_file_is_named(tmp_path):
    """Nothing starts."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="state_directory"):
        async with running(state_directory=str(tmp_path / "file")):
            pass


async def test_it_serves_without_a_broker_and_leaves_nothing_behind():
    """An unreachable broker shows in readiness and in a metric; after the end no task is left."""
    before = asyncio.all_tasks()
    async with (
        running(broker_port=free_port()) as coordinator,
        aiohttp.ClientSession(f"http://127.0.0.1:{coordinator.http_port}") as client,
    ):
        async with client.get("/-/ready") as response:
            assert response.status == 503
        async with client.patch("/api/v1/policy", json={}) as response:
            assert response.status == 403
        async with client.get("/metrics") as response:
            page = await response.text()
        assert "lockstep_coordinator_mqtt_connected 0.0" in page
        assert 'lockstep_coordinator_http_refusals_total{code="401"} 0.0' in page
        assert 'lockstep_coordinator_http_refusals_total{code="403"} 1.0' in page
    left = {task for task in asyncio.all_tasks() - before if not task.done()}
    assert left == set()


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
async def test_what_was_not_evaluated_comes_again_after_a_restart_and_counts_once(tmp_path, monkeypatch, kill):
    """Steps that one rank never reported are in memory only; whatever end the coordinator finds, none is lost or twice."""
    now, broker = time.time(), LocalBroker()
    settings = {"broker": broker, "state_directory": str(tmp_path)}
    async with wired(broker) as wire:
        await wire.announce(announce(0, 1, 2, 3, heartbeat_s=now))
        async with running(**settings) as first:
            await until(first._bus.connected.is_set)
            await play(wire, 0, 20, now)
            half = FAULTY.batch(20, 21, start_s=now, ranks=[0, 1])
            await wire.send(topics.STEPS, half)
            await until(lambda: first._runs.by_name["job"].evaluated.step == 19)
            first.on_tick(time.time())
            await until(lambda: committed(wire) == 20)
            if kill:  # nothing more is written
                monkeypatch.setattr(first._effects.writer, "remember", lambda **_: None)
        assert committed(wire) == 20
        async with running(**settings) as second:
            await until(second._bus.connected.is_set)
            await wire.send(topics.STEPS, FAULTY.batch(20, 21, start_s=now, ranks=[2, 3]))
            await play(wire, 21, 30, now)
            await until(lambda: "job" in second._runs.by_name and second._runs.by_name["job"].evaluated.step == 29)
            second.on_tick(time.time())
            await until(lambda: committed(wire) == len(wire.frames))
            assert second._runs.by_name["job"].evaluated.records == 4 * 30
            assert second._streams.ledger["settled"] == 4 * 30


def committed(wire):
    """Return up to where all coordinators have committed."""
    return min((each.committed for each in wire.acknowledged.values()), default=0)


async def test_one_of_a_pair_orders_the_capture_and_both_explain_the_incident(tmp_path):
    """Two coordinators decide alike: one incident id, one request, and the evidence reaches both."""
    now, broker = time.time(), LocalBroker()
    async with wired(broker) as wire:
        await wire.announce(announce(0, 1, 2, 3, heartbeat_s=now))
        async with running(broker=broker, name="a") as first, running(broker=broker, name="b") as second:
            for each in (first, second):
                await until(each._bus.connected.is_set)
            for each in (first, second):
                await until(lambda each=each: each._leadership.peers(time.time()) == 1)
                each._leadership.update(time.time() + 3)
            assert (first._leadership.leads, second._leadership.leads) == (True, False)
            await play(wire, 0, 50, now)
            request = await asyncio.wait_for(wire.requests.get(), WAIT_S)
            for rank, work_ns in ((2, 900_000_000), (0, 100_000_000), (1, 100_000_000)):
                answer = CaptureResult(run="job", node="n0", rank=rank, request_id=request.request_id, state="done")
                await wire.send(topics.ANSWER, answer)
                await wire.send(topics.SUMMARY, trace(rank, request.request_id, work_ns))
            machines = [each._runs.by_name["job"].machine for each in (first, second)]
            await until(lambda: [str(machine.state) for machine in machines] == ["diagnosed"] * 2)
            (one,), (other,) = (machine.tracker.incidents.values() for machine in machines)
            assert one.id == other.id
            assert "forward" in one.function
            assert other.function == one.function
            assert wire.requests.empty()
            assert request.term == first._leadership.term


async def test_the_follower_orders_what_its_leader_died_with(tmp_path):
    """The leader ends before it could order the capture: the other one takes a higher term and orders the same."""
    now, broker = time.time(), LocalBroker()
    async with wired(broker) as wire, running(broker=broker, name="b") as follower:
        await wire.announce(announce(0, 1, 2, 3, heartbeat_s=now))
        await until(follower._bus.connected.is_set)
        assert not follower._leadership.leads
        await play(wire, 0, 50, now)
        await until(lambda: "job" in follower._runs.by_name)
        machine = follower._runs.by_name["job"].machine
        await until(lambda: machine.captures.current is not None)
        await until(lambda: not wire.requests.qsize())
        follower._leadership._connected_s -= 10
        follower.on_tick(time.time())
        request = await asyncio.wait_for(wire.requests.get(), WAIT_S)
        assert request.request_id == machine.captures.current.request_id
        assert request.term == follower._leadership.term > 0


async def test_a_capture_of_a_rank_that_no_node_announces_ends_nothing():
    """After a restart the leader may remember a capture whose ranks are still to be announced: the service goes on."""
    now, broker = time.time(), LocalBroker()
    async with wired(broker) as wire, running(broker=broker) as coordinator:
        await wire.announce(announce(0, 1, 2, 3, heartbeat_s=now))
        await until(lambda: "job" in coordinator._runs.by_name)
        coordinator._leadership.leads = True
        order = ev.RequestCapture(
            cause_id="c", request=CaptureRequest(request_id=7, ranks=[2, 99], first_step=1, steps=3)
        )
        coordinator._effects.perform([("job", [order])])
        assert (await asyncio.wait_for(wire.requests.get(), WAIT_S)).ranks == [2]


async def test_a_task_of_a_run_that_raises_ends_nothing(monkeypatch):
    """A surprise in a request is a counted fault of its run."""
    now, broker = time.time(), LocalBroker()
    async with wired(broker) as wire, running(broker=broker) as coordinator:
        await wire.announce(announce(0, 1, 2, 3, heartbeat_s=now))
        await until(lambda: "job" in coordinator._runs.by_name)
        coordinator._leadership.leads = True
        monkeypatch.setattr(coordinator._bus, "publish_request", None)
        order = ev.RequestCapture(cause_id="c", request=CaptureRequest(request_id=7, ranks=[2], first_step=1, steps=3))
        coordinator._effects.perform([("job", [order])])
        await until(lambda: coordinator._runs.isolation.dropped["handle", "failed"] == 1)
