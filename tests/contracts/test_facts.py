"""What a rank runs on: round trip, and refusal of everything that no agent reports."""

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.contracts import codec, messages, topics
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.facts import RankFacts, facts_from_json, facts_to_json

FACTS = RankFacts(
    device="NVIDIA H100 80GB HBM3",
    device_kind="cuda",
    dtype="bf16",
    peak_flops_per_second=989.5e12,
    parameters=7_000_000_000,
    flops_source="parameters",
    torch_version="2.13.0",
    backend="nccl",
    device_uuid="GPU-576ef18e-b48f-c787-e91d-f93658b27b8e",
)


@pytest.mark.parametrize("facts", [FACTS, RankFacts()])
def test_facts_round_trip(facts):
    """What is reported comes back equal, what is not known as not known."""
    assert facts_from_json(facts_to_json(facts), where="0.ring") == facts


def test_a_whole_number_of_flops_is_a_float_on_either_side_of_the_bus():
    """JSON has one kind of number; what is announced must come back as it was."""
    facts = facts_from_json({"peak_flops_per_second": (1 << 53) + 1}, where="0.ring")
    assert type(facts.peak_flops_per_second) is float
    assert facts.peak_flops_per_second == float(1 << 53)


def test_another_version_of_the_agent_is_understood():
    """A missing field is not known, an unknown one is ignored."""
    assert facts_from_json({"device": "cpu", "colour": 1}, where="0.ring") == RankFacts(device="cpu")


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"device": 5}, "device"),
        ({"device": "x" * 129}, "device"),
        ({"dtype": 'bf16"\n'}, "dtype"),
        ({"device_uuid": "GPU-" + "0" * 125}, "device_uuid"),
        ({"device_uuid": None}, "device_uuid"),
        ({"parameters": -1}, "parameters"),
        ({"parameters": True}, "parameters"),
        ({"parameters": 7e9}, "parameters"),
        ({"peak_flops_per_second": 0}, "peak_flops_per_second"),
        ({"peak_flops_per_second": float("inf")}, "peak_flops_per_second"),
        ({"peak_flops_per_second": float("nan")}, "peak_flops_per_second"),
        ({"peak_flops_per_second": "fast"}, "peak_flops_per_second"),
        ({"peak_flops_per_second": 10**400}, "peak_flops_per_second"),
        ([], "facts"),
        (None, "facts"),
    ],
)
def test_what_no_agent_sends_is_refused_by_name(value, field):
    """Each bad field ends in an error that names it and its file."""
    with pytest.raises(MalformedError, match=r"7\.ring") as caught:
        facts_from_json(value, where="7.ring")
    assert caught.value.what == field


@given(value=st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists) | st.dictionaries(
    st.sampled_from(list(facts_to_json(FACTS))), st.none() | st.integers() | st.floats() | st.text()
))  # fmt: skip
def test_noise_is_malformed_and_nothing_else(value):
    """Whatever JSON stands there, it is read or refused; never another error."""
    with contextlib.suppress(MalformedError):
        facts_from_json(value, where="0.ring")


def test_a_coordinator_from_before_a_field_reads_the_rest():
    """What is new in the facts of an announcement does not cost an older reader the message."""
    facts = {"device": "cpu", "colour": "red"}
    rank = {"rank": 0, "local_rank": 0, "world_size": 1, "hostname": "h", "attempt": 1, "state": "running"}
    rank |= {"heartbeat_unix_ns": 1, "facts": facts}
    payload = msgspec.msgpack.encode({"run": "r", "node": "n", "ranks": [rank], "groups": [], "version": 1})
    message = codec.decode(topics.run_topic("r", topics.ANNOUNCE, "n"), payload)
    assert message.ranks[0].facts == RankFacts(device="cpu")


def test_facts_travel_in_the_announcement():
    """A rank's facts arrive on the bus as they were; a rank without them arrives without."""
    ranks = [
        messages.RankInfo(
            rank=rank, local_rank=0, world_size=2, hostname="h", attempt=1, state="running", heartbeat_unix_ns=1,
            facts=facts,
        )
        for rank, facts in enumerate((FACTS, None))
    ]  # fmt: skip
    message = messages.NodeAnnouncement(run="r", node="n", ranks=ranks, groups=[])
    topic = topics.run_topic("r", topics.ANNOUNCE, "n")
    assert codec.decode(topic, codec.encode(message)) == message
