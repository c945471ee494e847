"""The coordinator process: creates its parts, starts and stops them in order.

One event loop, one task group. Steps are evaluated on the event loop: a step of 10,240 ranks takes 2 ms, less than it
would cost to hand its arrays to a thread and back. Step batches are coalesced first (`coalescer.py`).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from coordinator.api.event_stream import BROADCAST
from coordinator.api.services import Services
from coordinator.app import make_app
from coordinator.bus import Bus
from coordinator.decide.events import Event
from coordinator.decide.incidents import Incident
from coordinator.decide.saved_run import SavedRun
from coordinator.detect.scope import is_watched
from coordinator.effects import Effects
from coordinator.evidence import make_evidence
from coordinator.fleet.history import FleetHistory
from coordinator.fleet.recorder import FleetRecorder
from coordinator.intake.coalescer import BatchCoalescer
from coordinator.intake.devices import DeviceTable
from coordinator.intake.streams import Receipt, Streams
from coordinator.leadership import Leadership
from coordinator.notify import count_notifications, make_notifier
from coordinator.notify.node_patcher import make_node_patcher
from coordinator.record.journal import CoordinatorStart
from coordinator.record.recorder import Recorder
from coordinator.runs import Runs
from coordinator.settings.config import CoordinatorConfig
from coordinator.settings.control import Control
from coordinator.settings.reload import Reloader, read_settings
from coordinator.settings.specs import Specs
from coordinator.snapshot import Snapshot
from coordinator.state_writer import StateWriter
from coordinator.store import Store
from lockstep.contracts.codec import Message
from lockstep.contracts.messages import NodeAnnouncement, StepBatch
from lockstep.contracts.metrics import RECORDING_STATES
from lockstep.contracts.version import VERSION
from lockstep.serving.fault_isolation import outcomes_of
from lockstep.serving.messaging import Broker
from lockstep.serving.mqtt import MqttBroker
from lockstep.serving.process import OwnProcess, ProcessFamilies
from lockstep.serving.web import HTTP_PORT, Web, naming_port

if TYPE_CHECKING:
    from coordinator.evidence.scheduler import EvidenceScheduler
    from coordinator.notify.node_patcher import NodePatcher
    from coordinator.notify.notifier import Notifier

_log = logging.getLogger(__name__)

_TICK_S = 1.0
_CLOSE_S = 5.0  # deadline of each stage of the shutdown


class Coordinator:
    """The coordinator of a cluster. Construction has no side effects; `run` owns every file, socket and task.

    `started` is set when HTTP is bound; `http_port` is then the actual port. `/-/ready` and a metric show whether the
    broker is connected. `reread` loads the configuration again and may block; without it, a reload only reads again the
    files that the configuration names. `broker` defaults to the configured one.
    """

    def __init__(
        self,
        config: CoordinatorConfig,
        reread: Callable[[], CoordinatorConfig] | None = None,
        broker: Broker | None = None,
        port_name: str = HTTP_PORT,
    ) -> None:
        self.config = config
        self._port_name = port_name
        self._broker = broker or MqttBroker(config)
        self._reread = reread or (lambda: config)
        self._reloader: Reloader | None = None
        self.started = asyncio.Event()
        self.http_port = config.http_port
        self._tasks: set[asyncio.Task[None]] = set()
        self._evidence: EvidenceScheduler | None = None
        self._notifier: Notifier | None = None
        self._node_patcher: NodePatcher | None = None
        self._group: asyncio.TaskGroup | None = None
        self._process = OwnProcess()
        self._process_families: ProcessFamilies = ()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then shut down in order.

        Raises
        ------
        ConfigError
            The port is in use, or the state directory or a file that the configuration names cannot be used.
        """
        settings = await asyncio.to_thread(read_settings, self.config)
        store = await asyncio.to_thread(Store, self.config.state_directory)
        try:
            memories = await asyncio.to_thread(store.load_runs)
            self._control = Control(settings, await asyncio.to_thread(store.load_policy), time.time())
            await self._serve(stop, store, memories)
        finally:
            await asyncio.to_thread(store.close)

    async def _serve(self, stop: asyncio.Event, store: Store, memories: dict[str, SavedRun]) -> None:
        await self._resume(store, memories)
        self._connect()
        history = await self._watch_incidents(store)
        self._make_effects(store)
        services = self._make_services(store, history)
        app = make_app(services)
        self._broadcast = app[BROADCAST]
        guard = self._web = Web(self.config.web_config_file, is_token=services.is_token)
        guard.protect(app)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=_CLOSE_S)
        await runner.setup()
        try:
            await self._bind(runner, guard)
            bus_stop = asyncio.Event()
            async with asyncio.TaskGroup() as self._group:
                self._start_tasks(bus_stop)
                self._process_families = self._process.read()
                self.started.set()
                await stop.wait()
                await self._shut_down(runner, bus_stop)
        finally:
            self._group = None
            await runner.cleanup()

    async def _resume(self, store: Store, memories: dict[str, SavedRun]) -> None:
        """Restore runs, specifications and streams from the store."""
        self._recorder = await asyncio.to_thread(self._make_recorder, memories)
        self._runs = Runs(self.config, self._control.policy(), memories, time.perf_counter, self._recorder)
        self._runs.set_policies(self._control.policy, time.time())
        self._specs = Specs(self._control.specs, await asyncio.to_thread(store.load_specifications))
        self._runs.expect(self._specs.of, await asyncio.to_thread(store.load_windows))
        name, incarnation = self.config.coordinator_name, time.time_ns()
        offsets, ledger = await asyncio.to_thread(store.load_streams)
        self._streams = Streams(name, incarnation, offsets, ledger)
        self._leadership = Leadership(name, incarnation)
        self._devices = DeviceTable(self._knows)

    def _connect(self) -> None:
        self._bus = Bus(
            self._broker,
            streams=self._streams,
            leadership=self._leadership,
            on_message=self._on_message,
            now_s=time.time,
            has_capacity=lambda run, step: self._runs.has_capacity(run, step, self._coalescer.flush),
            on_connect=lambda: self._runs.begin_session(time.time()),
            on_disconnect=lambda: self._runs.end_session(time.time()),
        )
        self._coalescer = BatchCoalescer(self._take_batches)

    async def _watch_incidents(self, store: Store) -> FleetHistory:
        """Create everything that reacts to incidents: evidence, notifications, node conditions, the fleet's history."""
        self._evidence = await asyncio.to_thread(
            make_evidence, self.config, self._runs, self._devices, spawn=self._spawn, feed=self._feed, now_s=time.time
        )
        self._notifier = await asyncio.to_thread(
            make_notifier,
            lambda: self._control.config,
            self._runs,
            store,
            self._leadership,
            spawn=self._spawn,
            now_s=time.time,
        )
        self._node_patcher = await asyncio.to_thread(
            make_node_patcher, self.config, self._runs, self._leadership, time.time
        )
        history = FleetHistory(await asyncio.to_thread(store.load_sightings), time.time())
        self._fleet = FleetRecorder(history, self._runs, self._devices, store, spawn=self._spawn, feed=self._feed)
        return history

    def _make_effects(self, store: Store) -> None:
        writer = StateWriter(self._runs, self._bus, store, self._streams, self._on_incident)
        self._effects = Effects(self._runs, self._bus, writer, self._spawn, time.time, leadership=self._leadership)

    def _make_services(self, store: Store, history: FleetHistory) -> Services:
        changing = asyncio.Lock()
        self._reloader = Reloader(
            self._reread, self._control, apply=self._reconfigure, now_s=time.time, changing=changing
        )
        return Services(
            control=self._control,
            runs=self._runs,
            store=store,
            streams=self._streams,
            snapshot=self._snapshot,
            perform=self._effects.perform,
            now_s=time.time,
            is_ready=self._bus.connected.is_set,
            reload=self._reloader.reload,
            changing=changing,
            specs=self._specs,
            fleet=history,
        )

    def _start_tasks(self, bus_stop: asyncio.Event) -> None:
        self._spawn(self._bus.run(bus_stop), "bus")
        self._spawn(self._coalescer.run(), "coalescer")
        self._spawn(self._tick(), "tick")
        self._spawn(self._effects.writer.keep_writing(), "store writer")
        if self._recorder is not None:
            self._spawn(self._recorder.keep_writing(), "recorder")
        if self._notifier is not None:
            self._notifier.start()
        if self._node_patcher is not None:
            self._spawn(self._node_patcher.run(), "node conditions")

    async def _bind(self, runner: web.AppRunner, guard: Web) -> None:
        host, port = self.config.http_host, self.config.http_port
        site = web.TCPSite(runner, host, port, ssl_context=guard.context)
        with naming_port(host, port, self._port_name):
            await site.start()
        self.http_port = int(runner.addresses[0][1])
        _log.info("coordinator on %s://%s:%d/", guard.scheme, host, self.http_port)

    async def _shut_down(self, runner: web.AppRunner, bus_stop: asyncio.Event) -> None:
        """Stop accepting, leave the bus, finish pending work, write the rest; each stage has a deadline."""
        await runner.cleanup()
        if self._notifier is not None:
            self._notifier.stop()
        if self._node_patcher is not None:
            self._node_patcher.stop()
        bus_stop.set()
        bus = {task for task in self._tasks if task.get_name() == "bus"}
        if bus:
            await asyncio.wait(bus, timeout=_CLOSE_S)
        lasting = {task for task in self._tasks if task.get_name() in ("coalescer", "tick", "store writer")}
        for task in lasting:
            task.cancel()
        self._coalescer.flush()
        recording = {task for task in self._tasks if task.get_name() == "recorder"}
        passing = self._tasks - lasting - recording
        if passing:
            await asyncio.wait(passing, timeout=_CLOSE_S)
        if self._recorder is not None and recording:
            self._recorder.stop()
            await asyncio.wait(recording, timeout=_CLOSE_S)
        for task in self._tasks:
            task.cancel()
        self._effects.writer.remember(all_of_it=True)
        await self._effects.writer.flush()

    def _make_recorder(self, memories: dict[str, SavedRun]) -> Recorder | None:
        if not self.config.record_directory:
            return None
        start = CoordinatorStart(
            policy=self._control.policy(), domains=self.config.domains, order=self.config.order, memories=memories
        )
        directory = Path(self.config.record_directory)
        return Recorder(directory, start, time.time(), quota_bytes=self.config.record_quota_bytes)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        assert self._group is not None
        task = self._group.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _on_message(self, message: Message, receipt: Receipt | None) -> None:
        if isinstance(message, StepBatch):
            assert receipt is not None  # steps arrive on a spooled channel
            self._coalescer.add(message, receipt)
            return
        if self._runs.is_news(message):
            self._coalescer.flush()
        self._effects.perform(self._runs.take(message, time.time()))
        if isinstance(message, NodeAnnouncement):
            self._devices.note(message)

    def _knows(self, run: str, node: str) -> bool:
        known = self._runs.by_name.get(run)
        return known is not None and known.membership.ranks_of(node) is not None

    def _on_incident(self, run: str, incident: Incident) -> None:
        self._fleet.on_incident(run, incident)
        if self._evidence is not None:
            self._evidence.on_incident(run, incident)
        if self._notifier is not None:
            self._notifier.on_incident(run, incident)

    def _feed(self, run: str, event: Event) -> None:
        self._effects.perform(self._runs.feed(run, event))

    def _take_batches(self, batches: Sequence[StepBatch], receipts: Sequence[Receipt]) -> None:
        self._effects.perform(self._runs.take_batches(batches, time.time(), receipts))
        self._bus.resume()

    async def _tick(self) -> None:
        """Call `on_tick` every `_TICK_S`."""
        while True:
            await asyncio.sleep(_TICK_S)
            self.on_tick(time.time())

    def on_tick(self, now_s: float) -> None:
        """Do the periodic work: evaluate steps that have waited long enough, and end what has expired."""
        self._coalescer.flush()
        self._effects.perform(self._runs.tick(now_s))
        if self._leadership.update(now_s):
            _log.info("this coordinator is now the leader and requests captures, term %d", self._leadership.term)
            self._effects.take_over()
        self._devices.trim()
        self._fleet.on_tick(now_s)
        if self._evidence is not None:
            self._evidence.on_tick(now_s)
        if self._notifier is not None:
            self._notifier.on_tick(now_s)
        if self._node_patcher is not None:
            self._node_patcher.on_tick()
        self._effects.writer.remember()
        self._bus.resume()
        self._process_families = self._process.read()

    def request_reload(self) -> None:
        """Schedule a reload of the configuration; ignored during startup and shutdown."""
        if self._group is not None and self._reloader is not None:
            self._spawn(self._reloader.on_signal(), "reload")

    def _reconfigure(self) -> None:
        self._runs.configure(self._control.config)
        self._specs.configure(self._control.specs)
        self._runs.expect(self._specs.of)
        self._effects.perform(self._runs.set_policies(self._control.policy, time.time()))

    def _snapshot(self) -> Snapshot:
        runs = self._runs
        return Snapshot(
            runs=tuple(
                runs.snapshot_of(run) for run in runs.by_name.values() if is_watched(run.name, run.policy.scope.runs)
            ),
            messages_received=dict(self._bus.counts.received),
            messages_rejected=dict(self._bus.counts.rejected),
            announcements_refused=dict(runs.refusals.counts),
            records_rejected=dict(runs.rejected),
            records_lost=dict(self._bus.counts.lost),
            records_evaluated=runs.detection.records_evaluated,
            frames=dict(self._streams.frames),
            frames_unsettled=self._streams.unsettled,
            inputs_dropped=outcomes_of(
                self._bus.isolation,
                runs.isolation,
                self._effects.isolation,
                self._fleet.isolation,
                self._web.isolation,
                self._broadcast.isolation,
                *(() if self._evidence is None else (self._evidence.isolation,)),
                *(() if self._notifier is None else self._notifier.isolations()),
            ),
            leads=self._leadership.leads,
            peers=self._leadership.peers(time.time()),
            is_connected=self._bus.connected.is_set(),
            nodes_alive=len(runs.presence.alive),
            detections=runs.detection.steps,
            detection_seconds=runs.detection.seconds,
            last_detection_unix_s=runs.detection.last_unix_s,
            records_recorded=dict.fromkeys(RECORDING_STATES, 0) | (self._recorder.counts() if self._recorder else {}),
            policy_changes=dict(self._control.changes),
            reload_ok=self._control.reload_ok,
            reload_unix_s=self._control.reload_unix_s,
            http_refusals=dict(self._web.refusals),
            fleet=self._fleet.frequent,
            **({} if self._evidence is None else self._evidence.counts()),
            notifications=count_notifications(self._notifier),
            **({} if self._node_patcher is None else {"node_patches": dict(self._node_patcher.counts)}),
            version=VERSION,
            process=self._process_families,
        )
