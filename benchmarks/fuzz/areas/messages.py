"""Messages of every channel through the bus into the coordinator's runs, and time passing between them."""

import asyncio
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import msgspec

from benchmarks.fuzz import mutate, seeds
from benchmarks.fuzz.harness import ACCEPTED
from coordinator.bus import Bus
from coordinator.collector import SnapshotCollector
from coordinator.decide import events as ev
from coordinator.intake.streams import Receipt, Streams
from coordinator.leadership import Leadership
from coordinator.runs import Orders, Runs
from coordinator.settings.config import CoordinatorConfig
from coordinator.settings.policy import Policy
from lockstep.contracts import messages, topics
from lockstep.contracts.codec import Message, decode, encode
from lockstep.contracts.delivery import FrameHeader, pack_frame
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.messages import TraceSummary
from lockstep.contracts.records import MISSING
from lockstep.contracts.rows import join_columns, split_columns
from lockstep.serving.exposition import render
from lockstep.serving.fault_isolation import FaultIsolation
from lockstep.serving.local_broker import LocalBroker
from tests.coordinator.test_collector import snapshot

_RUNS, _NODES = ("run-1", "run-2"), ("node-1", "node-2", "node-3")
_RANKS_OF_NODE = 2
_WORLD = len(_NODES) * _RANKS_OF_NODE
_HEALTHY_STEPS = 60  # longer than detectors warm up
_SNAPSHOT_EVERY = 100
_VALUES = (0, 1, MISSING, -1, 1 << 30, 1 << 40, 1 << 60, 1 << 62, (1 << 63) - 1, -(1 << 63) + 1)


class Messages:
    """Valid messages keep runs alive; mutated ones of every form come between them."""

    name = "messages"

    def begin(self, random: Random, /) -> None:
        """Start a coordinator that knows nothing."""
        self._loop = asyncio.new_event_loop()
        self._now_s = seeds.UNIX_NS / 1e9
        self.runs = Runs(CoordinatorConfig(runs_max=8), Policy(), {}, lambda: 0.0)
        self.streams = Streams("c1", 1)
        self.bus = Bus(
            LocalBroker(),
            streams=self.streams,
            leadership=Leadership("c1", 1),
            on_message=self._on_message,
            now_s=lambda: self._now_s,
        )
        self._surprises: list[BaseException] = []
        for isolation in (self.runs.isolation, self.bus.isolation):
            self._listen(isolation)
        self._random = random
        self._steps: Counter[tuple[str, str]] = Counter()
        self._revisions: Counter[tuple[str, str]] = Counter()
        self._asked: list[tuple[str, int, tuple[int, ...]]] = []
        self._reached = 0
        self._attempt = 1
        self._slow_rank = random.randrange(-2, _WORLD)
        for node in _NODES:
            self.streams.announce(node, _stream_of(node))
            for run in _RUNS:
                self.bus._take(*self._announcement(random, run, node))  # noqa: SLF001  (what a broker calls)

    def close(self) -> None:
        """End the event loop, which the bus asks for the time."""
        self._loop.close()

    def run(self, randoms: Sequence[Random]) -> Iterator[str | BaseException]:
        """Send one message or let time pass in each case."""
        for number, random in enumerate(randoms):
            rejected, self._reached = self.bus.counts.rejected.copy(), 0
            frames = self.streams.frames.copy()
            try:
                self._loop.run_until_complete(self._case(random))
                if number % _SNAPSHOT_EVERY == 0:
                    self._look()
            except Exception as error:  # noqa: BLE001  (whatever it is, it is the finding)
                yield error
                continue
            if self._surprises:
                yield self._surprises.pop()
                self._surprises.clear()
            else:
                yield self._outcome(rejected, frames)

    def _outcome(self, rejected: Counter[str], frames: Counter[str]) -> str:
        for reason, count in (self.bus.counts.rejected - rejected).items():
            if count:
                return reason
        if self._reached:
            return ACCEPTED
        verdicts = [verdict for verdict, count in (self.streams.frames - frames).items() if count]
        return f"frame {verdicts[0]}" if verdicts else "of no channel of ours"

    async def _case(self, random: Random) -> None:
        kind = random.random()
        if kind < 0.08:
            self._now_s += random.choice((0.1, 1.0, 5.0, 60.0, 900.0, -1.0, -3600.0))
            self._perform(random, self.runs.tick(self._now_s))
            self.streams.settle()
            self._reached = 1
            return
        self._random = random
        self.bus._take(*self._message(random))  # noqa: SLF001  (what a broker calls)

    def _message(self, random: Random) -> tuple[str, bytes]:
        kind = random.random()
        if kind < 0.45:
            return random.choice(self._ways())(random, random.choice(_RUNS), random.choice(_NODES))
        topic, message = random.choice(seeds.MESSAGES)
        payload = encode(message)
        if kind < 0.8:
            is_deflated = isinstance(message, TraceSummary)
            plain = zlib.decompress(payload) if is_deflated else payload
            changed = mutate.changed_value(random, msgspec.msgpack.decode(plain), random.choice((1, 1, 1, 2, 4)))
            payload = zlib.compress(_encoded(changed)) if is_deflated else _encoded(changed)
        elif kind < 0.95:
            payload = mutate.changed_bytes(random, payload, random.choice((1, 1, 2, 8)))
        else:
            payload = random.randbytes(random.randrange(64))
            topic = random.choice(
                (
                    topic,
                    random.choice(mutate.TEXTS),
                    mutate.changed_bytes(random, topic.encode()).decode(errors="replace"),
                )
            )
        return self._framed(random, topic, payload)

    def _ways(self) -> tuple[Callable[[Random, str, str], tuple[str, bytes]], ...]:
        return (
            *(self._batch, self._batch, self._batch, self._batch),
            *(self._announcement, self._alive, self._answer, self._summary, self._other),
        )

    def _framed(self, random: Random, topic: str, payload: bytes) -> tuple[str, bytes]:
        """Put a payload on a spooled channel into a frame: nearly always the next one of its node's stream."""
        try:
            parsed = topics.parse_topic(topic)
        except MalformedError:
            return topic, payload
        if parsed.channel not in topics.SPOOLED_CHANNELS or random.random() < 0.02:
            return topic, payload
        node = parsed.node
        sequence = self._next(node)
        try:
            message = decode(topic, payload)
            records = message.count if isinstance(message, messages.StepBatch) else 0
        except MalformedError:
            records = random.choice((0, 1, 7))
        if random.random() < 0.05:
            wrong = [random.choice(mutate.INTEGERS) % (1 << 64) for _ in range(3)]
            header = FrameHeader(wrong[0], wrong[1], wrong[2], wrong[0] % (1 << 32))
        else:
            header = FrameHeader(_stream_of(node), sequence, sequence, records)
        data = pack_frame(header, payload)
        return topic, mutate.changed_bytes(random, data) if random.random() < 0.03 else data

    def _next(self, node: str) -> int:
        """Return the sequence that a node's next frame has, as a node knows it from acknowledgements."""
        acknowledgement = self.streams.announce(node, _stream_of(node)) if node in _NODES else None
        return 1 if acknowledgement is None else acknowledgement.received + 1

    def _on_message(self, message: Message, receipt: Receipt | None) -> None:
        """As `Coordinator._on_message`, but that batches do not wait for each other."""
        self._reached = 1
        if isinstance(message, messages.StepBatch):
            receipts = [] if receipt is None else [receipt]
            self._perform(self._random, self.runs.take_batches([message], self._now_s, receipts))
            return
        try:
            self._perform(self._random, self.runs.take(message, self._now_s))
        except MalformedError as error:
            self.bus.reject(error)

    def _perform(self, random: Random, orders: Orders) -> None:
        """Remember captures that were asked for; forget runs that ended."""
        for run, instructions in orders:
            for instruction in instructions:
                if isinstance(instruction, ev.RequestCapture):
                    self._asked = [
                        *self._asked[-8:],
                        (run, instruction.request.request_id, tuple(instruction.request.ranks)),
                    ]
                elif isinstance(instruction, ev.ForgetRun) and random.random() < 0.5:
                    self.runs.forget(run)

    def _look(self) -> None:
        """Render the metrics of whatever has become of the runs."""
        views = [self.runs.snapshot_of(run) for run in self.runs.by_name.values()]
        render(SnapshotCollector(snapshot(*views)), "openmetrics").decode()

    def _listen(self, isolation: FaultIsolation) -> None:
        original = isolation.fail

        def fail(kind: str, key: str, now_s: float, error: Exception) -> None:
            original(kind, key, now_s, error)
            isolation.succeed(kind, key)  # no quarantine: the next case wants its turn
            if not isinstance(error, MalformedError):
                self._surprises.append(error)

        isolation.fail = fail  # type: ignore[method-assign]

    def _batch(self, random: Random, run: str, node: str) -> tuple[str, bytes]:
        """Return some next steps of a node's ranks, now and then with values that no rank measures."""
        first = self._steps[run, node]
        count = random.choice((1, 2, 5, 10))
        self._steps[run, node] += count if random.random() < 0.97 else random.choice((0, -first, 1 << 31))
        offset = _NODES.index(node) * _RANKS_OF_NODE
        ranks = range(offset, offset + _RANKS_OF_NODE)
        slow_rank = self._slow_rank if first > _HEALTHY_STEPS else -1
        batch = seeds.step_batch(first, count, run=run, node=node, ranks=ranks, slow_rank=slow_rank)
        columns = split_columns(batch.layout, batch.records)
        changed = {}
        if random.random() < 0.1:
            name = random.choice(list(columns))
            value = random.choice(_VALUES)
            changed[name] = value.to_bytes(8, "little", signed=True) * batch.count
        if random.random() < 0.03:
            changed[random.choice(list(columns))] = random.randbytes(8 * batch.count)
        layout, records = join_columns(columns | changed)
        batch = replace(batch, layout=layout, records=records)
        return self._framed(random, topics.run_topic(run, topics.STEPS, node), encode(batch))

    def _announcement(self, random: Random, run: str, node: str) -> tuple[str, bytes]:
        """Return a node's announcement of ranks that restart, end and hang."""
        if random.random() < 0.02:
            self._attempt += 1
        offset = _NODES.index(node) * _RANKS_OF_NODE
        is_silent = random.random() < 0.3
        infos = [
            _rank_info(
                random,
                rank=offset + local,
                local_rank=local,
                world_size=_WORLD if random.random() < 0.95 else random.choice((_WORLD + 1, 1 << 10, 1 << 20)),
                hostname=f"host-{node}" if random.random() < 0.9 else random.choice(mutate.TEXTS)[:128],
                attempt=seeds.UNIX_NS + self._attempt,
                heartbeat_unix_ns=max(0, round((self._now_s - random.choice((0, 0, 30, 3600))) * 1e9)),
                facts=seeds.FACTS,
                progress=_progress(random) if is_silent else None,
            )
            for local in range(_RANKS_OF_NODE)
        ]
        groups = [
            messages.GroupInfo(kind="dp", name="dp0", ranks=[[0, _WORLD, 2]]),
            messages.GroupInfo(kind="pp", name="pp0", ranks=[[0, 2, 1]]),
        ]
        self._revisions[run, node] += random.choice((0, 0, 1))
        revision = self._revisions[run, node]
        message = messages.NodeAnnouncement(run=run, node=node, ranks=infos, groups=groups, revision=revision)
        return topics.run_topic(run, topics.ANNOUNCE, node), encode(message)

    def _alive(self, random: Random, run: str, node: str) -> tuple[str, bytes]:
        """Return a node's heartbeat, its ranks alive, silent or of another announcement."""
        now_ns = max(0, round(self._now_s * 1e9))
        heartbeat = messages.RunHeartbeat(
            run=run,
            revision=max(0, self._revisions[run, node] + random.choice((0, 0, 0, 1, -1))),
            alive_unix_ns=[
                random.choice((now_ns, now_ns, 0, 1 << 62, max(0, now_ns - 90 * 10**9)))
                for _ in range(random.choice((_RANKS_OF_NODE, _RANKS_OF_NODE, 0, 1, 9)))
            ],
        )
        message = replace(
            seeds.ALIVE,
            node=node,
            alive=random.random() < 0.9,
            stream_id=_stream_of(node),
            address=random.choice(("h:1", "", "a b")),
            runs=[heartbeat] if random.random() < 0.9 else [],
        )
        return topics.alive_topic(node), encode(message)

    def _answer(self, random: Random, run: str, node: str) -> tuple[str, bytes]:
        run, request_id, ranks = random.choice(self._asked or [(run, 5, (0, 1))])
        message = replace(
            seeds.ANSWER,
            run=run,
            node=node,
            rank=random.choice((*ranks, 0)),
            request_id=request_id,
            state=random.choice(("accepted", "running", "done", "refused")),
        )
        return self._framed(random, topics.run_topic(run, topics.ANSWER, node), encode(message))

    def _summary(self, random: Random, run: str, node: str) -> tuple[str, bytes]:
        run, request_id, ranks = random.choice(self._asked or [(run, 5, (0, 1))])
        rank = random.choice((*ranks, 0))
        message = replace(seeds.SUMMARY, run=run, node=node, rank=rank, request_id=request_id)
        return self._framed(random, topics.run_topic(run, topics.SUMMARY, node), encode(message))

    def _other(self, random: Random, _: str, node: str) -> tuple[str, bytes]:
        """Return a lost frame of a node, or a heartbeat of another coordinator."""
        if random.random() < 0.5:
            message = replace(seeds.COORDINATOR_ALIVE, alive=random.random() < 0.5, term=random.randrange(9))
            return topics.coordinator_topic(message.coordinator), encode(message)
        first = self._next(node)
        header = FrameHeader(_stream_of(node), first, first + random.randrange(3), random.randrange(100))
        return topics.node_topic(node, topics.LOST), pack_frame(header, b"")


def _stream_of(node: str) -> int:
    return 100 + (_NODES.index(node) if node in _NODES else 77)


def _progress(random: Random) -> messages.RankProgress:
    issues = [
        messages.IssueCount(
            group=random.randrange(2),
            operation=random.choice(messages.OPERATIONS),
            peer=random.choice((-1, 0, 1)),
            issued=random.choice((0, 7, 8, (1 << 63) - 1)),
            last_unix_ns=random.choice((0, seeds.UNIX_NS, 1 << 62)),
        )
        for _ in range(random.randrange(4))
    ]
    return messages.RankProgress(
        last_step=random.choice((None, 0, 7, (1 << 62) - 1)),
        flags=random.choice((0, 1, 31, (1 << 32) - 1)),
        issues=issues,
        is_alive=random.choice((None, True, False)),
    )


def _encoded(value: Any) -> bytes:
    try:
        return mutate.with_half_pairs(msgspec.msgpack.encode(value))
    except (OverflowError, TypeError, RecursionError):  # beyond 64 bits, or a mapping's key that is a list
        return b"\xc1"


def _rank_info(random: Random, **values: Any) -> messages.RankInfo:
    """Return a rank in any state, with how it ended where it has."""
    state = random.choices(messages.RANK_STATES, (0.9, 0.025, 0.025, 0.025, 0.025))[0]
    ending = None
    if state in (messages.FAILED, messages.GONE):
        kind, code = random.choice(messages.ENDINGS), random.choice((0, 1, 9, 15, 130, 255))
        unix_ns = max(0, seeds.UNIX_NS + random.randrange(-(10**10), 10**10))
        ending = messages.RankEnding(unix_ns=unix_ns, kind=kind, code=code, is_out_of_memory=random.random() < 0.2)
    return messages.RankInfo(state=state, ending=ending, **values)
