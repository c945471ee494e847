"""JSON out of shared memory, as ranks and exporters leave it: answers, facts, groups and orders."""

import json
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from benchmarks.fuzz import mutate, seeds
from benchmarks.fuzz.harness import ACCEPTED, SurpriseError
from exporter.reading.announce import merge_groups, parse_groups, parse_slots
from lockstep.contracts import messages, topics
from lockstep.contracts.blob import HEAD_BYTES, read_blob
from lockstep.contracts.capture import request_from_json, result_from_json
from lockstep.contracts.codec import Message, decode, encode
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.facts import facts_from_json

_REGION_BYTES = 64 << 10
_WHERE = "0.ring"


class Answers:
    """Each value is stored whole in a region, read as its reader reads it, and sent on where it is accepted."""

    name = "answers"

    def begin(self, _: Random) -> None:
        """Nothing is kept between cases."""

    def close(self) -> None:
        """Nothing is open."""

    def run(self, randoms: Sequence[Random]) -> Iterator[str | BaseException]:
        """Read one value in each case."""
        for random in randoms:
            read, value = random.choice(_READERS)
            try:
                read(_through_memory(_payload(random, value)))
            except MalformedError as error:
                yield error.what if error.what in _NAMED else "a field"
            except Exception as error:  # noqa: BLE001  (whatever it is, it is the finding)
                yield error
            else:
                yield ACCEPTED


def _payload(random: Random, value: Any) -> bytes:
    kind = random.random()
    if kind < 0.1:
        return json.dumps(value).encode()
    payload = mutate.as_json(random, mutate.changed_value(random, value, random.choice((1, 1, 2, 4))))
    return payload if kind < 0.8 else mutate.changed_bytes(random, payload, random.choice((1, 4)))


def _through_memory(payload: bytes) -> Any:
    payload = payload[: _REGION_BYTES - HEAD_BYTES]
    crc = zlib.crc32(payload, zlib.crc32(struct.pack("<QI", 1, len(payload))))
    region = struct.pack("<QII", 1, len(payload), crc) + payload
    found = read_blob(memoryview(region.ljust(_REGION_BYTES, b"\0")), 0, _REGION_BYTES)
    if found is None:
        raise SurpriseError("a region that was stored whole is not read")
    return found[1]


def _sent(topic: str, message: Message) -> None:
    if decode(topic, encode(message)) != message:
        raise SurpriseError(f"{topic}: what was sent is not what came back")


def _answer(value: Any) -> None:
    answer = result_from_json(value, where=_WHERE)
    message = replace(answer, run=seeds.RUN, node=seeds.NODE, rank=0)
    _sent(topics.run_topic(seeds.RUN, topics.ANSWER, seeds.NODE), message)


def _facts(value: Any) -> None:
    facts = facts_from_json(value, where=_WHERE)
    _announce(
        messages.NodeAnnouncement(run=seeds.RUN, node=seeds.NODE, ranks=[seeds.rank_info(0, facts=facts)], groups=[])
    )


def _groups(value: Any) -> None:
    groups = parse_groups(value, where=_WHERE, world_size=seeds.WORLD_SIZE)
    parse_slots(value, groups, where=_WHERE, world_size=seeds.WORLD_SIZE)
    info = seeds.rank_info(0)
    _announce(messages.NodeAnnouncement(run=seeds.RUN, node=seeds.NODE, ranks=[info], groups=merge_groups([groups])))


def _announce(message: messages.NodeAnnouncement) -> None:
    _sent(topics.run_topic(seeds.RUN, topics.ANNOUNCE, seeds.NODE), message)


def _order(value: Any) -> None:
    request_from_json(value, where="control")


_READERS: tuple[tuple[Callable[[Any], None], Any], ...] = (
    (_answer, seeds.ANSWER_JSON),
    (_facts, seeds.FACTS_JSON),
    (_groups, seeds.GROUPS_JSON),
    (_order, seeds.ORDER_JSON),
)
_NAMED = frozenset(
    {
        "CaptureResult",
        "fields of CaptureResult",
        "CaptureRequest",
        "fields of CaptureRequest",
        "facts",
        "groups",
        "group",
    }
)
