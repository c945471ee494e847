"""Kineto traces as ranks leave them in shared memory, through the summary that the exporter's worker makes."""

import gzip
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from benchmarks.fuzz import mutate, seeds, traces
from benchmarks.fuzz.harness import ACCEPTED, SurpriseError
from lockstep.analysis.capture_summary import summarise
from lockstep.contracts import messages, topics
from lockstep.contracts.codec import decode, encode
from lockstep.contracts.errors import LocalError, MalformedError

_TOPIC = topics.run_topic(seeds.RUN, topics.SUMMARY, seeds.NODE)


class TraceFiles:
    """One trace in each case; what comes of it must be a message, whatever stands in it."""

    name = "traces"

    def begin(self, _: Random) -> None:
        """Make a folder."""
        self._folder = Path(tempfile.mkdtemp(prefix="lockstep-fuzz-"))

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self._folder)

    def run(self, randoms: Sequence[Random]) -> Iterator[str | BaseException]:
        """Summarise one trace in each case."""
        for random in randoms:
            path = self._folder / "trace.json"
            path.write_bytes(changed_trace(random))
            try:
                yield _summarised(path, random.choice((1, 2, 100)))
            except (MalformedError, LocalError) as error:
                yield type(error).__name__
            except Exception as error:  # noqa: BLE001  (whatever it is, it is the finding)
                yield error


def _summarised(path: Path, steps: int) -> str | BaseException:
    summary = summarise(path, run=seeds.RUN, node=seeds.NODE, rank=1, request_id=5, steps=steps)
    message = decode(_TOPIC, encode(summary))
    if not isinstance(message, messages.TraceSummary) or message != summary:
        return SurpriseError("what was sent is not what came back")
    return "no usable trace" if summary.error else ACCEPTED


def changed_trace(random: Random) -> bytes:
    """Return a trace file in which something may have changed, at times packed."""
    text = random.choice(traces.documents())
    kind = random.random()
    if kind < 0.7:
        changed = mutate.changed_value(random, json.loads(text), random.choice((1, 2, 4, 16)))
        text = mutate.as_json(random, changed)
    elif kind < 0.95:
        text = mutate.changed_bytes(random, text, random.choice((1, 4, 16)))
    if random.random() < 0.1:
        text = gzip.compress(text, 1)
        if random.random() < 0.5:
            text = mutate.changed_bytes(random, text)
    return text
