"""The exporter as a whole: its parts, the order in which they start and stop, and what one tick does.

There is one event loop, one task group, and one thread for control blocks. A tick samples what changes within a step;
the rings are read once per batch, because a read costs much the same for one new step as for ten. They are read in the
tick itself: this work is bounded, and a thread would have to take turns with the loop anyway.
"""

import asyncio
import math
import random
import time
from dataclasses import replace
from pathlib import Path

from aiohttp import web

from exporter.capturing.capture_requests import CaptureRequests
from exporter.capturing.captures import Captures
from exporter.capturing.control import ControlJob, ControlWriter
from exporter.capturing.stacks import StackRequests
from exporter.capturing.summarise import Summariser, TraceJob
from exporter.config import ExporterConfig
from exporter.counts import ExporterCounters
from exporter.exposing.app import make_app
from exporter.exposing.snapshot import NodeSnapshot, take_snapshot
from exporter.host_watch import HostWatch, ResourceSampler, find_targets
from exporter.inspector import InspectorWatch
from exporter.memory import MemoryWatch
from exporter.neighbours import NeighbourReader
from exporter.reading.heartbeats import run_heartbeat
from exporter.reading.read_offsets import ReadOffsets
from exporter.reading.rings import RingReading, Rings
from exporter.reading.run_state import RunState
from exporter.reading.silence import announcement, watch
from exporter.reading.unwatched import UnwatchedProcesses
from exporter.sending.batches import Batcher
from exporter.sending.publisher import Publisher
from exporter.shared_directory import prepare_root
from exporter.state_file import load_state, save_state
from lockstep.contracts import topics
from lockstep.contracts.capture import CaptureResult
from lockstep.contracts.codec import encode
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.limits import ANNOUNCE_REFRESH_SECONDS
from lockstep.contracts.messages import (
    CaptureRequest,
    RankStacks,
    RunHeartbeat,
    StackRequest,
    StepBatch,
    TraceSummary,
)
from lockstep.serving.fault_isolation import FaultIsolation, Guard, outcomes_of
from lockstep.serving.messaging import Broker
from lockstep.serving.mqtt import MqttBroker
from lockstep.serving.process import OwnProcess, ProcessFamilies
from lockstep.serving.web import HTTP_PORT, Web, naming_port

_RunMessage = StepBatch | CaptureResult | TraceSummary | RankStacks
_SECOND_NS = 10**9
_CLOSE_S = 5.0  # for a step of the shutdown without its own limit
_QUARANTINE_S = 60.0  # of requests for a run that failed three times in a row
_READ_S_MIN = 0.2  # between two reads of rings; a read is up to 80 ms of work
_FILL_RATIO = 0.125  # of a ring's blocks that are to be new at a read; a writer eight times as fast loses none


class Exporter:
    """One node's exporter. Construction touches nothing; `run` owns every file, socket and task until it returns.

    `started` is set when HTTP is bound and the first tick is done; `http_port` is then the actual port. `broker` is the
    broker to connect to; None: the MQTT broker that `config` names.
    """

    def __init__(self, config: ExporterConfig, broker: Broker | None = None, port_name: str = HTTP_PORT) -> None:
        self.config = config
        self._port_name = port_name
        self.started = asyncio.Event()
        self.http_port = config.http_port
        self._ticked: tuple[int, int] | None = None  # the last tick: its monotonic and unix time, ns
        self._round_ns = 0  # length of the last tick that read the rings
        self._snapshot: NodeSnapshot | None = None
        self.counts = ExporterCounters()
        self._node = config.node_name
        self._offsets: ReadOffsets = {}  # as last saved; rings that an earlier process read continue from there
        self._offsets_path = Path(config.spool_directory) / "offsets.json"
        self._isolation = FaultIsolation(("run", "message", "trace"), quarantine_s=_QUARANTINE_S)
        self._term_path = Path(config.spool_directory) / "term.json"
        self._rings = Rings(Path(config.root), self.counts, self._offsets)
        self._unwatched = UnwatchedProcesses(Path(config.root), self.counts)
        self._inspector = InspectorWatch(Path(config.root), self.counts)
        self._neighbours = NeighbourReader(config, lambda: self._inspector.status().ranks)
        self._batcher = Batcher(self._node)
        self._captures = Captures()
        self._control = ControlWriter(self._on_control_failure)
        self._announced: dict[str, int] = {}  # run -> revision of its state that was last announced
        self._seen_requests: dict[tuple[str, int], int] = {}
        self._due_ns = {"scan": 0, "read": 0, "announce": 0, "refresh": 0}
        self._read_ns = 0  # when the rings were last read
        self._web = Web()  # replaced by the configured one once HTTP is bound
        self._process = OwnProcess()
        self._process_families: ProcessFamilies = ()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._publisher = self._make_publisher(MqttBroker(config) if broker is None else broker)
        self._host_watch = HostWatch(lambda: find_targets(self._rings.runs.values()), sampler=ResourceSampler())
        self._memory = MemoryWatch(lambda: find_targets(self._rings.runs.values()))
        self._stack_requests = self._make_stack_requests()
        self._summariser = self._make_summariser()
        self._requests = self._make_capture_requests()

    def _make_publisher(self, broker: Broker) -> Publisher:
        return Publisher(
            self.config,
            broker,
            counts=self.counts,
            on_request=self._on_request,
            on_stack_request=self._on_stack_request,
            heartbeats=self._heartbeats,
            jitter=random.Random(),  # noqa: S311  (spreads reconnections, guards nothing)
        )

    def _make_stack_requests(self) -> StackRequests:
        return StackRequests(
            self._node,
            counts=self.counts,
            isolation=self._isolation,
            check_term=self._adopt_term,
            run_of=self._rings.runs.get,
            on_stacks=lambda stacks: self._put(topics.STACKS, stacks),
        )

    def _make_summariser(self) -> Summariser:
        return Summariser(
            self.config,
            counts=self.counts,
            isolation=self._isolation,
            on_summary=lambda summary: self._put(topics.SUMMARY, summary),
            running_id=self._captures.running_id,
            host_watch=self._host_watch,
        )

    def _make_capture_requests(self) -> CaptureRequests:
        return CaptureRequests(
            self._captures,
            counts=self.counts,
            control=self._control,
            run_of=self._rings.runs.get,
            stale_ns=round(self.config.rank_stale_seconds * _SECOND_NS),
            on_answer=self._send_answer,
            on_term=self._keep_term,
            on_accepted=self._prepare_summary,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then shut down in order.

        Raises
        ------
        ConfigError
            A value is wrong, the root or the spool cannot be used, or the port is in use.
        """
        self.config.validate()
        self._neighbours.check()
        self._loop = asyncio.get_running_loop()
        prepare_root(Path(self.config.root))
        self._publisher.open()
        try:
            self._offsets.update(load_state(self._offsets_path, ReadOffsets) or {})
            self._captures.term = load_state(self._term_path, int) or 0
            self._publisher.term = self._captures.term_in_force(time.time())
            runner = await self._bind()
            self._control.start()
            try:
                await self._serve(stop, runner)
            finally:
                self._control.stop()
                await runner.cleanup()
        finally:
            self._rings.close()
            self._publisher.close()

    async def _bind(self) -> web.AppRunner:
        app = make_app(lambda: self.snapshot, self._neighbours.between, level=self.config.level)
        guard = self._web = Web(self.config.web_config_file)
        guard.protect(app)
        runner = guard.runner(app, shutdown_s=_CLOSE_S)
        await runner.setup()
        host, port = self.config.http_host, self.config.http_port
        try:
            with naming_port(host, port, self._port_name):
                await guard.site(runner, host, port).start()
        except ConfigError:
            await runner.cleanup()
            raise
        self.http_port = runner.addresses[0][1]
        self._publisher.scheme = guard.scheme
        self._publisher.address = self.config.address(self.http_port)
        return runner

    async def _serve(self, stop: asyncio.Event, runner: web.AppRunner) -> None:
        async with asyncio.TaskGroup() as tasks:
            publish = tasks.create_task(self._publisher.run(), name="publish")
            summarise = tasks.create_task(self._summariser.run(), name="summarise")
            watch_host = tasks.create_task(self._host_watch.run(), name="watch_host")
            neighbours = tasks.create_task(self._neighbours.run(), name="neighbours")
            dump = tasks.create_task(self._stack_requests.run(), name="stacks")
            await self._tick_until(stop)
            for task in (watch_host, neighbours, dump):
                task.cancel()
            await asyncio.wait([dump], timeout=_CLOSE_S)  # its rings are closed later
            # Each step passes data to the next one, which must still be running.
            for site in list(runner.sites):
                await site.stop()
            summarise.cancel()
            await asyncio.wait([summarise], timeout=_CLOSE_S)
            self._finish_reading()
            self._publisher.finish()
            await asyncio.wait([publish], timeout=self.config.drain_seconds + _CLOSE_S)
            publish.cancel()

    async def _tick_until(self, stop: asyncio.Event) -> None:
        next_ns = time.monotonic_ns()
        while not stop.is_set():
            self.on_tick(next_ns)  # not when it woke up: what is due at every fifth tick never waits for a sixth
            self.started.set()
            next_ns = max(next_ns + round(self.config.tick_seconds * _SECOND_NS), time.monotonic_ns())
            try:
                async with asyncio.timeout((next_ns - time.monotonic_ns()) / _SECOND_NS):
                    await stop.wait()
            except TimeoutError:
                continue

    def _finish_reading(self) -> None:
        """Read every ring a last time, and put everything into the spool."""
        self._due_ns["read"] = 0
        self.on_tick(time.monotonic_ns())

    def on_tick(self, now_ns: int) -> None:
        """Do what is due, and pass on what is new; `now_ns` is CLOCK_MONOTONIC."""
        begin_ns = time.monotonic_ns()
        unix_ns = time.time_ns()
        if self._is_due("scan", now_ns, self.config.scan_seconds):
            self._rings.scan(now_ns)
            self._unwatched.scan()
            self._process_families = self._process.read()
        is_read = now_ns >= self._due_ns["read"]
        if is_read:
            self._due_ns["read"] = now_ns + self._until_read_ns(self._read(now_ns))
        self._forget_gone()
        self._requests.tick(now_ns)
        for run in self._rings.runs.values():
            with self._guard("run", run.name):
                watch(run, now_ns)
        with self._guard("run", "(inspector)"):  # no run's name
            self._inspector.tick(self._rings.runs.values(), now_ns)
        self._announce(
            periodic=self._is_due("announce", now_ns, self.config.announce_seconds),
            refresh=self._is_due("refresh", now_ns, ANNOUNCE_REFRESH_SECONDS),
        )
        with self._guard("run", "(memory)"):  # no run's name
            if self._memory.tick(self._rings.runs.values()):
                self._publisher.heartbeat()
        if is_read:
            self._flush(unix_ns)
            self._round_ns = time.monotonic_ns() - begin_ns
        self._ticked, self._snapshot = (now_ns, unix_ns), None

    @property
    def snapshot(self) -> NodeSnapshot | None:
        """The node since the last tick, None before the first; taken when it is first asked for, mostly by a scrape."""
        if self._snapshot is None and self._ticked is not None:
            now_ns, unix_ns = self._ticked
            self._snapshot = take_snapshot(
                self._rings,
                self.counts,
                now_ns=now_ns,
                unix_ns=unix_ns,
                stale_ns=round(self.config.rank_stale_seconds * _SECOND_NS),
                rings_quarantined=self._rings.quarantined,
                unwatched=self._unwatched.by_reason,
                dropped=outcomes_of(
                    self._isolation, self._rings.isolation, self._publisher.isolation, self._web.isolation
                ),
                delivery=self._publisher.status(),
                tick_duration_ns=self._round_ns,
                load=self._host_watch.node,
                hosts=self._host_watch.totals(),
                memory=self._memory.views(),
                inspector=self._inspector.status(),
                neighbours=self._neighbours.status(),
                process=self._process_families,
                http_refusals=dict(self._web.refusals),
            )
        return self._snapshot

    def _guard(self, kind: str, key: str) -> Guard:
        return self._isolation.guard(kind, key, time.monotonic())

    def _is_due(self, what: str, now_ns: int, every_seconds: float) -> bool:
        if now_ns < self._due_ns[what]:
            return False
        self._due_ns[what] = now_ns + round(every_seconds * _SECOND_NS)
        return True

    def _read(self, now_ns: int) -> float:
        """Read what is new in the rings; return the time since the last read, s."""
        since_s, self._read_ns = (now_ns - self._read_ns) / _SECOND_NS, now_ns
        for reading in self._rings.read():
            with self._guard("run", reading.run.name):
                self._take_reading(reading)
        return since_s

    def _until_read_ns(self, since_s: float) -> int:
        """Return the time until the next read: less than a batch if a ring fills fast, or was not read to its end."""
        fill_ratio = self._rings.fill_ratio
        filled_s = since_s * _FILL_RATIO / fill_ratio if fill_ratio else math.inf
        return round(min(self.config.batch_seconds, max(_READ_S_MIN, filled_s)) * _SECOND_NS)

    def _take_reading(self, reading: RingReading) -> None:
        if len(reading.records):
            self._batcher.add(reading.run.name, reading.rank, reading.records)
        for reason, count in reading.lost.items():
            self._batcher.add_lost(reading.run.name, reason, count)
        if reading.answer is not None:
            self._take_answer(reading.run, reading.rank, reading.answer)

    def _take_answer(self, run: RunState, rank: int, answer: CaptureResult) -> None:
        """Count a rank's answer, pass it on, and have a finished trace summarised."""
        if self._seen_requests.get((run.name, rank)) != answer.request_id and answer.state != "refused":
            self._seen_requests[run.name, rank] = answer.request_id
            self.counts.profiles["accepted"] += 1
        if answer.state in ("done", "refused"):
            self.counts.profiles[answer.state] += 1
            self.counts.profile_cost_ns += answer.cost_ns
        self._captures.note(run.name, rank, answer.request_id, answer.state)
        self._send_answer(run.name, rank, answer)
        if answer.state in ("running", "done"):
            self._host_watch.note_capture()
        if answer.state == "done":
            span_ns = (answer.start_ns, answer.end_ns)
            self._summariser.submit(TraceJob(run.name, run.directory, rank, answer.request_id, answer.steps, span_ns))

    def _announce(self, *, periodic: bool, refresh: bool) -> None:
        """Announce the runs that changed; periodically also silent runs, the node itself, and each control block.

        With `refresh`, all runs are announced again: a coordinator may have dropped one for lack of space.
        """
        for name, run in self._rings.runs.items():
            is_new = name not in self._announced
            is_changed = self._announced.get(name) != run.revision
            if is_changed or refresh or (periodic and run.progress_watch.is_announced):
                self._announced[name] = run.revision
                self._send_state(run)
            if periodic or is_new:
                self._control.submit(ControlJob(name, run.directory))
        if periodic:
            self._publisher.term = self._captures.term_in_force(time.time())
            self._publisher.heartbeat()

    def _heartbeats(self) -> list[RunHeartbeat]:
        """Return the heartbeats of the ranks, as last announced."""
        now_ns = time.monotonic_ns()
        heartbeats = []
        for run in self._rings.runs.values():
            if self._announced.get(run.name) == run.revision:
                with self._guard("run", run.name):
                    heartbeats.append(run_heartbeat(run, now_ns, self._memory.report(run)))
        return heartbeats

    def _send_state(self, run: RunState, *, last: bool = False) -> None:
        topic = topics.run_topic(run.name, topics.ANNOUNCE, self._node)
        with self._guard("run", run.name):
            self._publisher.state(topic, encode(announcement(run, self._node)), last=last)

    def _forget_gone(self) -> None:
        """Announce runs that disappeared one last time, with the ranks that finished."""
        for run in self._rings.take_gone():
            self._announced.pop(run.name, None)
            self._captures.forget(run.name)
            self._stack_requests.forget(run.directory)
            self._control.submit(ControlJob(run.name, run.directory))  # removes what is left of it
            self._send_state(run, last=True)
            self._seen_requests = {key: seen for key, seen in self._seen_requests.items() if key[0] != run.name}

    def _flush(self, unix_ns: int) -> None:
        """Put the gathered records into the spool, then save how far the rings were read."""
        for batch in self._batcher.take(unix_ns):
            self._put(topics.STEPS, batch, batch.count)
        offsets = self._rings.offsets()
        if offsets != self._offsets:
            save_state(self._offsets_path, offsets)  # otherwise a restart reads records twice
            self._offsets.clear()
            self._offsets.update(offsets)

    def _put(self, channel: str, message: _RunMessage, records: int = 0) -> None:
        with self._guard("run", message.run):
            self._publisher.put(topics.run_topic(message.run, channel, self._node), encode(message), records)
            return
        self.counts.lost["spool"] += records

    def _send_answer(self, run: str, rank: int, answer: CaptureResult) -> None:
        self._put(topics.ANSWER, replace(answer, run=run, node=self._node, rank=rank))

    def _on_request(self, request: CaptureRequest) -> None:
        if self._isolation.admits("message", request.run, time.monotonic()):
            with self._guard("message", request.run):
                now_ns = time.monotonic_ns()
                if now_ns - self._read_ns >= _READ_S_MIN * _SECOND_NS:
                    self._read(now_ns)  # a capture begins at a step that is still to come
                self._requests.take(request, now_ns, time.time())

    def _prepare_summary(self) -> None:
        self._summariser.prepare()
        self._host_watch.note_capture()

    def _on_control_failure(self, job: ControlJob, reason: str) -> None:
        """Pass a failure from the control thread, which calls this, to the event loop."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._requests.order_failed, job, reason)

    def _keep_term(self, former: int, unix_s: float) -> None:
        """Report the term in force, and store it for a restart if it has changed."""
        self._publisher.term = self._captures.term_in_force(unix_s)
        if self._captures.term != former:
            save_state(self._term_path, self._captures.term)

    def _adopt_term(self, term: int) -> str:
        former, unix_s = self._captures.term, time.time()
        reason = self._captures.adopt_term(term, unix_s)
        self._keep_term(former, unix_s)
        return reason

    def _on_stack_request(self, request: StackRequest) -> None:
        if self._isolation.admits("message", request.run, time.monotonic()):
            with self._guard("message", request.run):
                self._stack_requests.submit(request, time.monotonic_ns())
