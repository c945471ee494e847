"""Trace summaries as nodes send them, packed, into the diagnosis of an incident."""

import zlib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from benchmarks.fuzz import mutate, seeds, traces
from benchmarks.fuzz.harness import ACCEPTED, SurpriseError
from lockstep.analysis.capture_summary import summarise
from lockstep.contracts import messages, topics
from lockstep.contracts.codec import decode_as, encode
from lockstep.contracts.errors import LockstepError, MalformedError
from lockstep.contracts.metrics import CAUSES
from lockstep.diagnosis.explain import explain

_TOPIC = topics.run_topic(seeds.RUN, topics.SUMMARY, seeds.NODE)
_SCOPES = ("rank", "replica", "stage", "group", "node", "network", "job")
_EXPLAINED_SHARE = 0.1  # of those accepted: a diagnosis takes milliseconds


class Summaries:
    """Mutates summaries before or after they are deflated; accepted ones are suspects and peers of each other."""

    name = "summaries"

    def begin(self, _: Random) -> None:
        """Forget the summaries of the block before."""
        self._accepted: list[messages.TraceSummary] = list(real_summaries())

    def close(self) -> None:
        """Nothing is open."""

    def run(self, randoms: Sequence[Random]) -> Iterator[str | BaseException]:
        """Decode one summary in each case."""
        for random in randoms:
            try:
                summary = decode_as(messages.TraceSummary, _TOPIC, _payload(random))
            except MalformedError as error:
                yield error.what.partition("[")[0]
                continue
            except Exception as error:  # noqa: BLE001  (whatever it is, it is the finding)
                yield error
                continue
            yield self._explained(random, summary)

    def _explained(self, random: Random, summary: messages.TraceSummary) -> str | BaseException:
        self._accepted = [*self._accepted[-7:], summary]
        if random.random() > _EXPLAINED_SHARE:
            return ACCEPTED
        given = random.sample(self._accepted, random.randrange(len(self._accepted)))
        cut = random.randrange(len(given) + 1)
        try:
            if decode_as(messages.TraceSummary, _TOPIC, encode(summary)) != summary:
                return SurpriseError("what was sent is not what came back")
            explain(
                cause=random.choice(CAUSES),
                scope=random.choice(_SCOPES),
                suspects=[summary, *given[:cut]],
                peers=given[cut:],
                step_seconds=random.choice((0.0, 0.25, 1e-9, 1e9)),
                excess_seconds=random.choice((0.0, 0.1, -1.0, 1e9)),
            )
        except LockstepError as error:
            return f"diagnosis: {type(error).__name__}"
        except Exception as error:  # noqa: BLE001
            return error
        return ACCEPTED


@cache
def real_summaries() -> tuple[messages.TraceSummary, ...]:
    """Return summaries of valid traces, and one with every field in use."""
    found = [seeds.SUMMARY]
    with TemporaryDirectory() as folder:
        for rank, text in enumerate(traces.documents()):
            path = Path(folder) / f"{rank}.json"
            path.write_bytes(text)
            found.append(summarise(path, run=seeds.RUN, node=seeds.NODE, rank=rank, request_id=5, steps=2))
    return tuple(found)


def _payload(random: Random) -> bytes:
    plain = zlib.decompress(encode(random.choice(real_summaries())))
    kind = random.random()
    if kind < 0.7:
        plain = _encoded(mutate.changed_value(random, msgspec.msgpack.decode(plain), random.choice((1, 1, 2, 4))))
    elif kind < 0.85:
        plain = mutate.changed_bytes(random, plain, random.choice((1, 1, 4)))
    payload = zlib.compress(plain)
    return mutate.changed_bytes(random, payload) if kind > 0.85 else payload


def _encoded(value: Any) -> bytes:
    try:
        return mutate.with_half_pairs(msgspec.msgpack.encode(value))
    except (OverflowError, TypeError, RecursionError):  # beyond 64 bits, or a mapping's key that is a list
        return b"\xc1"
