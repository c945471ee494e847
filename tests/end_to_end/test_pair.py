"""Two coordinators: one page and one capture for a fault, and either may be killed while the page is open."""

import asyncio
import contextlib
import json
import threading
import urllib.parse

import pytest

from benchmarks.services import Service
from lockstep.contracts import topics
from lockstep.contracts.codec import decode
from lockstep.serving.broker import BrokerConfig
from lockstep.serving.mqtt import MqttBroker
from tests.end_to_end.fake_nodes import FakeNodes
from tests.support import servers
from tests.support.alert_loop import (
    NODES,
    RANKS_PER_NODE,
    RUN,
    SLOW,
    check_page,
    exported,
    lockstep,
    quick_routes,
    scrape_jobs,
)
from tests.support.policy_file import policy_file
from tests.support.servers import LIVE_LIMIT_S, PATIENCE_S, WAIT_S, get_json, mosquitto, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.timeout(LIVE_LIMIT_S)]
REPLICA_DOWN, DOWN = "LockstepCoordinatorReplicaDown", "LockstepCoordinatorDown"
C = "lockstep_coordinator"


@contextlib.contextmanager
def capture_requests(port):
    """Yield a list that grows by every capture request on the bus."""
    seen = []
    ready, stop = threading.Event(), asyncio.Event()

    def take(topic, payload):
        seen.append(decode(topic, payload))

    async def listen():
        broker = MqttBroker(BrokerConfig(broker_port=port))
        async with broker.connect(client_id="witness", on_message=take, packet_max_bytes=1 << 20) as session:
            await session.subscribe([f"{topics.PREFIX}/run/+/{topics.REQUEST}/+"])
            ready.set()
            await stop.wait()
            await session.close()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(listen()))
    thread.start()
    try:
        assert ready.wait(30)
        yield seen
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


class Pair:
    """Two coordinators, the alerts that they cause, and the capture requests that they publish."""

    def __init__(self, folder, parts):
        enter = parts.enter_context
        site, roots = exported(folder), [folder / f"shared{node}" for node in range(NODES)]
        self.pager, broker = enter(servers.webhook()), enter(mosquitto(folder))
        self.requests = enter(capture_requests(broker.port))
        self.coordinators = {name: self._coordinator(folder, name, broker.port) for name in ("a", "b")}
        for coordinator in self.coordinators.values():
            parts.callback(coordinator.stop)
            coordinator.start()
        quick = {"batch_seconds": 0.2, "announce_seconds": 1, "scan_seconds": 0.2}
        for node, root in enumerate(roots):
            root.mkdir()
            places = {"node": f"n{node}", "root": root, "spool_directory": folder / f"spool{node}"}
            process, url, log = enter(lockstep(folder, broker.port, "exporter", **quick, **places))
            servers.wait_ready(f"{url}/-/ready", process, log)
        for coordinator in self.coordinators.values():
            coordinator.wait_ready("/-/ready")
        self._manager = enter(servers.alertmanager(folder, quick_routes(site, self.pager.url)))
        jobs = scrape_jobs(site, self.coordinators["a"].url, self._manager)
        exporters, coordinators = jobs["scrape_configs"]
        addresses = [coordinator.url for coordinator in self.coordinators.values()]
        exporters["http_sd_configs"] = [{"url": f"{url}/api/v1/targets", "refresh_interval": "1s"} for url in addresses]
        coordinators["static_configs"] = [{"targets": [url.removeprefix("http://") for url in addresses]}]
        self._prometheus = enter(servers.prometheus(folder, json.dumps(jobs)))
        self.nodes = FakeNodes(roots, RUN, RANKS_PER_NODE)
        enter(self.nodes.stepping())

    @staticmethod
    def _coordinator(folder, name, port):
        settings = {"name": name, "broker_port": port, "state_directory": folder / f"state-{name}"}
        policy = policy_file(folder, {"run.recover_steps": 20, "profile.cooldown_seconds": 1})
        settings |= {"domains": f"dp={NODES * RANKS_PER_NODE}", "policy_file": policy}
        return Service("coordinator", f"coordinator-{name}", folder, settings)

    def value(self, name, metric):
        """Return one value of a coordinator's page, None while it does not answer."""
        return (self.coordinators[name].scrape() or {}).get(f"{metric}{{}}")

    def leader(self):
        """Return the name of the one coordinator that leads, None while there is none or more than one."""
        found = [name for name in self.coordinators if self.value(name, f"{C}_leader") == 1]
        return found[0] if len(found) == 1 else None

    def incident_ids(self):
        """Return the ids of the open incidents of each coordinator that answers."""
        pages = [get_json(f"{one.url}/api/v1/incidents?state=open") for one in self.coordinators.values()]
        return [{incident["id"] for incident in page["incidents"]} for page in pages if page]

    def notified(self, name, status):
        """Return the notifications of an alert."""
        return [alert for _, alert in self.pager.alerts(alertname=name) if alert["status"] == status]

    def firing(self, name):
        """Return the alerts of a name that Alertmanager has."""
        alerts = get_json(f"{self._manager}/api/v2/alerts") or []
        return [alert for alert in alerts if alert["labels"]["alertname"] == name]

    def down_in_vain(self):
        """Return for how many seconds no coordinator was reported to answer though one had for the last ten.

        On a machine with strangers it may be that neither answers within a second.
        """
        up = 'up{job="lockstep-coordinator"}[10s]'
        answers = f"count(min_over_time({up}) == 1 and count_over_time({up}) > 5) > 0"
        query = f'count_over_time((ALERTS{{alertname="{DOWN}",alertstate="firing"}} and on () ({answers}))[20m:1s])'
        page = get_json(f"{self._prometheus}/api/v1/query?{urllib.parse.urlencode({'query': query})}")
        return sum(int(series["value"][1]) for series in page["data"]["result"])

    def step(self, name):
        """Return the last step that a coordinator has evaluated."""
        return (self.coordinators[name].scrape() or {}).get(f'lockstep_run_step{{run="{RUN}"}}', -1)


def test_one_page_and_one_capture_while_either_is_killed(tmp_path):
    """The page neither doubles nor resolves; the survivor orders the capture with a higher term, then leads on."""
    with contextlib.ExitStack() as parts:
        pair = Pair(tmp_path, parts)
        wait_until(lambda: min(pair.step("a"), pair.step("b")) > 60, WAIT_S, "a run that both evaluate")
        leader = wait_until(pair.leader, WAIT_S, "one leader")
        survivor = "b" if leader == "a" else "a"
        assert [pair.value(name, f"{C}_peers") for name in "ab"] == [1, 1]

        pair.nodes.slow_rank = 2
        page, *_ = wait_until(lambda: pair.notified(SLOW, "firing"), WAIT_S, "the page")
        check_page(page, 2)
        wait_until(lambda: len(pair.incident_ids()) == 2 and all(pair.incident_ids()), WAIT_S, "the incident in both")
        first, second = pair.incident_ids()
        assert first == second
        wait_until(lambda: pair.requests, WAIT_S, "the capture")
        before = list(pair.requests)
        assert len({request.term for request in before}) == 1
        assert len({(request.node, request.request_id) for request in before}) == len(before)

        pair.coordinators[leader].kill()
        wait_until(lambda: pair.leader() == survivor, WAIT_S, "the other one leads")
        wait_until(lambda: pair.firing(REPLICA_DOWN), WAIT_S, "the warning about the one that is gone")
        after = wait_until(lambda: pair.requests[len(before) :], WAIT_S, "the capture of the other one")
        assert min(request.term for request in after) > before[0].term
        evaluated = pair.step(survivor)
        wait_until(lambda: pair.step(survivor) > evaluated + 100, WAIT_S, "steps that one alone evaluates")
        assert len(pair.firing(SLOW)) == 1
        assert pair.notified(SLOW, "resolved") == []

        pair.coordinators[leader].start()
        pair.coordinators[leader].wait_ready("/-/ready")
        wait_until(lambda: pair.step(leader) >= pair.step(survivor) - 40 > evaluated, WAIT_S, "both evaluate again")
        assert pair.leader() == survivor
        assert len(pair.firing(SLOW)) == 1
        assert pair.notified(SLOW, "resolved") == []

        pair.nodes.slow_rank = None
        wait_until(lambda: pair.notified(SLOW, "resolved"), PATIENCE_S, "the end of the page")
        assert all(": rank 2 on " in alert["annotations"]["summary"] for alert in pair.notified(SLOW, "firing"))
        assert pair.down_in_vain() == 0
