"""What the agent's own writers store is what the exporter reads."""

from pathlib import Path

from exporter.counts import ExporterCounters
from exporter.reading.rings import Rings
from lockstep.agent.mark_buffer import MarkBuffer
from lockstep.agent.ring import RingWriter
from lockstep.contracts import ring as layout
from lockstep.contracts.capture import CaptureResult, result_to_json
from lockstep.contracts.facts import RankFacts, facts_to_json
from lockstep.contracts.records import RECORD_INDEX
from tests.exporter.conftest import NOW_NS


def test_the_agents_own_writers_are_understood(root: Path, make_ring):
    """What the training process writes is what is read: steps, state, groups, answer, facts."""
    header = make_ring(run="other").header._replace(rank=3, block_count=8)
    writer = RingWriter(root / "run-a", header)
    buffer = MarkBuffer(writer.file, layout.BLOCKS_OFFSET, header.block_count, issues_offset=layout.ISSUES_OFFSET)
    buffer.begin()
    for _ in range(5):
        buffer.step_end()
    buffer.flush()
    writer.write_groups([{"kind": "dp", "name": "dp0", "ranks": [[0, 4, 1]]}])
    writer.write_answer(result_to_json(CaptureResult(request_id=1, state="accepted")))
    writer.write_facts(facts_to_json(RankFacts(device="cpu", dtype="fp32", mark_writer="pure Python")))
    writer.set_state(layout.STATE_FAILED, 1)
    rings = Rings(root, ExporterCounters(), {})
    rings.scan(NOW_NS)
    (reading,) = rings.read()
    assert reading.records[:, RECORD_INDEX["step"]].tolist() == list(range(5))
    assert reading.answer == CaptureResult(request_id=1, state="accepted")
    (info,) = rings.runs["run-a"].announced()
    # "gone", since a process sees no lock of its own.
    assert (info.rank, info.state, len(rings.runs["run-a"].groups())) == (3, "gone", 1)
    assert info.facts == RankFacts(device="cpu", dtype="fp32", mark_writer="pure Python")
    rings.close()
