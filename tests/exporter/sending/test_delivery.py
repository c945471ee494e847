"""Publisher, spool and positions against coordinators that follow the protocol, without a broker and without a clock."""

import os
import random
import shutil
import tempfile
from collections import deque
from pathlib import Path
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from exporter.config import ExporterConfig
from exporter.counts import ExporterCounters
from exporter.sending.publisher import Publisher
from lockstep.contracts import topics
from lockstep.contracts.codec import encode
from lockstep.contracts.delivery import WINDOW_MESSAGES_MAX, FrameHeader, unpack_frame
from lockstep.contracts.messages import Acknowledgement
from tests.support.model_coordinator import ModelCoordinator

NODE = "node-1"
SECOND_NS = 10**9
FORGET_S = 3600
TOPIC = topics.run_topic("run", topics.STEPS, NODE)
ACK_TOPIC = topics.node_topic(NODE, topics.ACK)


class NoBroker:
    """Publishers under test never connect."""

    address = "nowhere"

    def connect(self, **_):
        raise AssertionError("no session is opened here")


class Link:
    """What the broker holds for one coordinator, which is up or not."""

    def __init__(self, name: str) -> None:
        self.model = ModelCoordinator(name)
        self.queue: deque[tuple[FrameHeader, bytes, bool]] = deque()
        self.is_up = True
        self.freed_before: int | None = None  # what was freed when the exporter first got an acknowledgement of it


class Delivery(RuleBasedStateMachine):
    """Whatever is lost, restarted or lied about, a record is committed everywhere, counted as lost, or still here."""

    @initialize(limit_bytes=st.sampled_from([64 << 10, 256 << 10]), count=st.integers(1, 2))
    def begin(self, limit_bytes: int, count: int) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.now_ns = 60 * SECOND_NS  # a machine that was booted a minute ago
        self.config = ExporterConfig(
            node=NODE,
            spool_directory=str(self.directory / "spool"),
            spool_max_bytes=limit_bytes,
            coordinator_forget_seconds=FORGET_S,
        )
        self.records = [0]  # of each message, by its number
        self.unnumbered: list[int] = []  # records of messages that the disk did not take
        self.forgot = False
        self.links = [Link(f"coordinator-{number}") for number in range(count)]
        self.acknowledgements: deque[Acknowledgement] = deque()
        self.publisher = self.open_publisher()
        self.stream_id = self.publisher.spool.stream_id
        self.exporter_connects()

    def open_publisher(self) -> Publisher:
        publisher = Publisher(
            self.config,
            NoBroker(),
            counts=ExporterCounters(),
            on_request=lambda _: None,
            heartbeats=list,
            jitter=random.Random(1),
            unix_ns=lambda: 10**18 + self.now_ns,
            clock_ns=lambda: self.now_ns,
        )
        publisher.open()
        return publisher

    def teardown(self) -> None:
        if hasattr(self, "publisher"):
            self.come_to_rest()
            self.publisher.close()
            shutil.rmtree(self.directory)

    @rule(size=st.integers(0, 6000), records=st.integers(0, 50), count=st.integers(1, 30))
    def append(self, size: int, records: int, count: int) -> None:
        for _ in range(count):
            self.records += [*self.unnumbered, records]
            self.unnumbered = []
            number = len(self.records) - 1
            self.publisher.put(TOPIC, number.to_bytes(8, "little") + bytes(size), records)
            assert self.publisher.spool.last == number

    @rule(records=st.integers(0, 50))
    def append_on_a_full_disk(self, records: int) -> None:
        with mock.patch.object(os, "write", side_effect=OSError("full")):
            self.publisher.put(TOPIC, b"", records)
        self.unnumbered.append(records)

    @rule(rounds=st.integers(1, 4), commits=st.booleans())
    def flow(self, rounds: int, *, commits: bool) -> None:
        """Let some seconds go by in which nothing is lost."""
        for _ in range(rounds):
            self.wait(1)
            self.get_acknowledgements(100)
            self.send(100)
            for which in range(len(self.links)):
                self.receive(which, 1000)
                if commits:
                    self.commit(which)

    @rule(count=st.integers(1, 200))
    def send(self, count: int) -> None:
        for _ in range(count):
            frame = self.publisher._next_frame(self.now_ns)
            if frame is None:
                return
            header, payload = unpack_frame(frame.data, where="test")
            assert header.stream_id == self.stream_id
            for link in self.links:
                if link.is_up:
                    link.queue.append((header, payload, frame.topic != TOPIC))
        assert len(self.publisher._coordinators._in_flight) <= WINDOW_MESSAGES_MAX

    @rule(which=st.integers(0, 1), count=st.integers(1, 200))
    def receive(self, which: int, count: int) -> None:
        link = self.links[which % len(self.links)]
        for _ in range(min(count, len(link.queue))):
            header, payload, is_lost = link.queue.popleft()
            if link.is_up:
                answer = link.model.on_frame(NODE, header, payload, is_lost=is_lost)
                if answer is not None:
                    self.acknowledgements.append(answer)

    @rule(which=st.integers(0, 1), place=st.integers(0, 100), count=st.integers(1, 20), acknowledgements=st.booleans())
    def broker_drops(self, which: int, place: int, count: int, *, acknowledgements: bool) -> None:
        self.send(100)
        queue = self.links[which % len(self.links)].queue
        for _ in range(min(count, len(queue))):
            del queue[place % len(queue)]
        if acknowledgements:
            self.acknowledgements.clear()

    @rule(which=st.integers(0, 1))
    def commit(self, which: int) -> None:
        self.links[which % len(self.links)].model.commit()

    @rule(seconds=st.sampled_from([0, 1, 5, 11, 31, 100]))
    def wait(self, seconds: int) -> None:
        self.now_ns += seconds * SECOND_NS
        for link in self.links:
            if link.is_up:
                self.acknowledgements.append(link.model.acknowledgement(NODE, self.stream_id))

    def get_acknowledgements(self, count: int) -> None:
        for _ in range(min(count, len(self.acknowledgements))):
            self.hand_over(self.acknowledgements.popleft())

    @rule(which=st.integers(0, 1))
    def coordinator_is_killed(self, which: int) -> None:
        link = self.links[which % len(self.links)]
        link.is_up = False
        link.queue.clear()
        self.acknowledgements = deque(a for a in self.acknowledgements if a.coordinator != link.model.name)

    @rule(which=st.integers(0, 1))
    def coordinator_starts(self, which: int) -> None:
        """At once after it was killed, if it was up."""
        self.coordinator_is_killed(which)
        link = self.links[which % len(self.links)]
        link.is_up = True
        link.model.restart()
        self.acknowledgements.append(link.model.acknowledgement(NODE, self.stream_id))

    def exporter_connects(self) -> None:
        self.acknowledgements.clear()
        self.publisher._coordinators.begin_session()
        for link in self.links:
            if link.is_up:
                self.acknowledgements.append(link.model.acknowledgement(NODE, self.stream_id))

    @rule(killed=st.booleans())
    def exporter_is_back(self, *, killed: bool) -> None:
        """With a new connection, or as a new process."""
        if not killed:
            self.exporter_connects()
            return
        self.publisher.close()  # the lock; nothing is written by it
        self.unnumbered = []  # counted by the process that is gone only
        self.publisher = self.open_publisher()
        assert self.publisher.spool.stream_id == self.stream_id
        self.exporter_connects()

    @rule()
    def a_long_time_goes_by(self) -> None:
        self.forgot = True
        self.now_ns += (FORGET_S + 1) * SECOND_NS

    @rule(
        name=st.sampled_from(["coordinator-0", "coordinator-1", "another", "", "../..", "x" * 200]),
        stream=st.sampled_from(["this", "other"]),
        received=st.sampled_from(["beyond", -1, 2**63, 2**64 - 1]),
        committed=st.sampled_from(["received", 0, "beyond", -1]),
        resend=st.booleans(),
    )
    def lie(self, name: str, stream: str, received: object, committed: object, *, resend: bool) -> None:
        beyond = self.publisher._coordinators._sent + 1
        got = beyond if received == "beyond" else int(received)
        acknowledgement = Acknowledgement(
            node=NODE,
            coordinator=name,
            incarnation=1,
            stream_id=self.stream_id if stream == "this" else self.stream_id % 1000 + 1,
            received=got,
            committed=got if committed == "received" else beyond if committed == "beyond" else int(committed),
            resend=resend,
        )
        before = self.publisher._coordinators.seen_ns
        self.publisher._on_message(ACK_TOPIC, encode(acknowledgement))
        assert self.publisher._coordinators.seen_ns == before

    @rule(which=st.integers(0, 1), share=st.floats(0, 1), resend=st.booleans())
    def claim_less(self, which: int, share: float, *, resend: bool) -> None:
        link = self.links[which % len(self.links)]
        position = link.model.position(NODE, self.stream_id)
        less = int(position.committed * share)
        self.hand_over(
            Acknowledgement(
                node=NODE,
                coordinator=link.model.name,
                incarnation=link.model.incarnation,
                stream_id=self.stream_id,
                received=less,
                committed=less,
                resend=resend,
            )
        )

    def hand_over(self, acknowledgement: Acknowledgement) -> None:
        freed = self.publisher.spool.freed
        rejected = self.publisher._counts.rejected["acknowledgement"]
        self.publisher._on_message(ACK_TOPIC, encode(acknowledgement))
        assert self.publisher._counts.rejected["acknowledgement"] == rejected
        for link in self.links:
            if link.model.name == acknowledgement.coordinator and link.freed_before is None:
                link.freed_before = freed

    @invariant()
    def nothing_is_freed_that_a_known_coordinator_has_not_committed(self) -> None:
        if not hasattr(self, "publisher"):
            return
        for link in self.links:
            if link.freed_before is not None and not self.forgot:
                committed = link.model.position(NODE, self.stream_id).committed
                assert self.publisher.spool.freed <= max(committed, link.freed_before)
        assert self.publisher.spool.last == len(self.records) - 1

    def come_to_rest(self) -> None:
        """Let a perfect network deliver, and compare what every coordinator has with what was appended."""
        self.append(0, 1, 1)
        for number, link in enumerate(self.links):
            if not link.is_up:
                self.coordinator_starts(number)
        for _ in range(400):
            self.flow(1, commits=True)
            if self.publisher.spool.freed == self.publisher.spool.last and not any(link.queue for link in self.links):
                break
        assert self.publisher._next_frame(self.now_ns) is None
        assert self.publisher.spool.freed == self.publisher.spool.last
        for link in self.links:
            self.check(link)

    def check(self, link: Link) -> None:
        position = link.model.position(NODE, self.stream_id)
        assert position.received == self.publisher.spool.last, "did not come to rest"
        following = 1
        while following <= position.received:
            if following in position.lost:
                last, records = position.lost[following]
                exact = sum(self.records[following : last + 1])
                # What was committed by all others while this one was unknown is not counted.
                assert records == exact or (records < exact and (self.forgot or len(self.links) > 1))
                following = last + 1
            else:
                assert int.from_bytes(position.taken[following][:8], "little") == following
                following += 1
        covered = {number for first, (last, _) in position.lost.items() for number in range(first, last + 1)}
        assert not covered & position.taken.keys()
        assert len(covered) + len(position.taken) == position.received


TestDelivery = Delivery.TestCase
TestDelivery.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
