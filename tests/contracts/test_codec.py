"""Messages on the bus: round trips, and refusal of everything that is not quite one."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.contracts import codec, messages, topics
from lockstep.contracts.errors import ContractVersionError, MalformedError
from lockstep.contracts.limits import RUNS_PER_NODE_MAX
from tests.strategies import step_batches

STEPS = topics.run_topic("r", topics.STEPS, "n")
EMPTY = messages.StepBatch(run="r", node="n", sent_unix_ns=2, count=0, layout="rank", records=b"")
REQUEST = messages.CaptureRequest(run="r", node="n", request_id=1, ranks=[0], first_step=5, steps=3)
SUMMARY = messages.TraceSummary(
    run="r", node="n", rank=0, request_id=1, window_ns=5, steps=1, trace_bytes=9, event_count=3,
    tree=[messages.CallNode(parent=-1, name="train", kind="python", total_ns=5, self_ns=5, count=1)],
)  # fmt: skip
RANK = messages.RankInfo(
    rank=0, local_rank=0, world_size=2, hostname="h", attempt=1, state="running", heartbeat_unix_ns=1
)
ISSUE = messages.IssueCount(group=0, operation="send", peer=1, issued=7, last_unix_ns=9)
PROGRESS = messages.RankProgress(last_step=None, flags=0, issues=[ISSUE])
GROUP = messages.GroupInfo(kind="pp", name="pp0", ranks=[[0, 2, 1]])
ENDING = messages.RankEnding(unix_ns=9, kind="exception", exception="ValueError", frame="train.py(88): load")
ENDED = replace(RANK, state="failed", progress=PROGRESS, ending=ENDING)
SILENT = messages.NodeAnnouncement(run="r", node="n", ranks=[ENDED], groups=[GROUP])
EVERY = [
    (topics.STEPS, EMPTY),
    (topics.ANNOUNCE, messages.NodeAnnouncement(run="r", node="n", ranks=[RANK], groups=[])),
    (topics.ANNOUNCE, SILENT),
    (topics.REQUEST, REQUEST),
    (topics.ANSWER, messages.CaptureResult(run="r", node="n", rank=0, request_id=1, state="done")),
    (topics.SUMMARY, SUMMARY),
]


@given(batch=step_batches())
def test_step_batches_round_trip(batch):
    """Every valid batch comes back equal."""
    assert codec.decode(STEPS, codec.encode(batch)) == batch


@pytest.mark.parametrize(("channel", "message"), EVERY, ids=[c for c, _ in EVERY])
def test_every_message_round_trips(channel, message):
    """Each form travels on its own channel."""
    assert codec.decode(topics.run_topic("r", channel, "n"), codec.encode(message)) == message


def test_a_result_on_the_bus_names_its_rank():
    """In a ring the place gives the rank; on the bus nothing else does."""
    payload = codec.encode(messages.CaptureResult(run="r", node="n", request_id=1, state="done"))
    with pytest.raises(MalformedError, match="rank"):
        codec.decode(topics.run_topic("r", topics.ANSWER, "n"), payload)


BEAT = messages.RunHeartbeat(run="r", revision=2, alive_unix_ns=[5, 6])
ALIVE = messages.NodeAlive(node="n", alive=True, unix_ns=3, stream_id=4, runs=[BEAT])


def test_alive_round_trips():
    """The heartbeat travels on the node's own topic, with those of its ranks."""
    assert codec.decode(topics.alive_topic("n"), codec.encode(ALIVE)) == ALIVE


@pytest.mark.parametrize(
    ("runs", "what"),
    [
        ([BEAT] * (RUNS_PER_NODE_MAX + 1), "runs"),
        ([replace(BEAT, revision=-1)], "runs[0].revision"),
        ([replace(BEAT, alive_unix_ns=[0] * 65)], "runs[0].alive_unix_ns"),
        ([replace(BEAT, alive_unix_ns=[-1])], "runs[0].alive_unix_ns[0]"),
        ([replace(BEAT, alive_unix_ns=[1 << 63])], "runs[0].alive_unix_ns[0]"),
    ],
)
def test_heartbeats_that_cannot_be_are_refused(runs, what):
    """More than a node has, and times that fit no array, are named."""
    with pytest.raises(MalformedError) as caught:
        codec.decode(topics.alive_topic("n"), codec.encode(replace(ALIVE, runs=runs)))
    assert caught.value.what == what


@given(payload=st.binary(max_size=200))
def test_noise_is_malformed_and_nothing_else(payload):
    """Random bytes raise MalformedError; never another error."""
    with pytest.raises(MalformedError):
        codec.decode(STEPS, payload)


def test_every_truncation_is_refused():
    """A payload cut anywhere, or with bytes behind it, is refused."""
    payload = codec.encode(SUMMARY)
    topic = topics.run_topic("r", topics.SUMMARY, "n")
    for cut in [payload[:i] for i in range(len(payload))] + [payload + b"\0"]:
        with pytest.raises(MalformedError):
            codec.decode(topic, cut)


def test_deep_nesting_is_refused():
    """A payload nested deeper than any message is malformed, not a crash."""
    with pytest.raises(MalformedError):
        codec.decode(STEPS, b"\x91" * 100_000 + b"\xc0")


@pytest.mark.parametrize(
    ("message", "what"),
    [
        (replace(EMPTY, run="other"), "run"),
        (replace(EMPTY, node="other"), "node"),
        (replace(EMPTY, count=10**9), "count"),
        (replace(EMPTY, count=-1), "count"),
        (replace(EMPTY, count=1), "records bytes"),
        (replace(EMPTY, count=1, records=bytes(9)), "records bytes"),
        (replace(EMPTY, records=bytes(8)), "records bytes"),
        (replace(EMPTY, layout=""), "layout"),
        (replace(EMPTY, layout="step,rank"), "layout"),
        (replace(EMPTY, layout="rank,step,step"), "layout"),
        (replace(EMPTY, layout="rank," + "x" * 4096), "layout"),
    ],
)
def test_a_message_that_contradicts_itself_is_refused(message, what):
    """Topic, lengths and limits are checked, and the field is named."""
    with pytest.raises(MalformedError) as caught:
        codec.decode(STEPS, codec.encode(message))
    assert caught.value.what == what


@pytest.mark.parametrize(
    ("issues", "what"),
    [
        ([replace(ISSUE, group=1)], "group"),
        ([replace(ISSUE, group=-1)], "ranks[0].progress.issues[0].group"),
        ([replace(ISSUE, operation="gather")], "ranks[0].progress.issues[0].operation"),
        ([replace(ISSUE, peer=2)], "peer"),
        ([replace(ISSUE, issued=-1)], "ranks[0].progress.issues[0].issued"),
        ([replace(ISSUE, issued=1 << 63)], "ranks[0].progress.issues[0].issued"),
        ([replace(ISSUE, last_unix_ns=1 << 63)], "ranks[0].progress.issues[0].last_unix_ns"),
        ([ISSUE] * 129, "ranks[0].progress.issues"),
    ],
)
def test_progress_that_cannot_be_is_refused(issues, what):
    """Groups that were not announced, ranks outside of the world and numbers that fit no array are named."""
    bad = replace(SILENT, ranks=[replace(RANK, progress=replace(PROGRESS, issues=issues))])
    with pytest.raises(MalformedError) as caught:
        codec.decode(topics.run_topic("r", topics.ANNOUNCE, "n"), codec.encode(bad))
    assert caught.value.what == what


def test_a_tree_whose_parent_comes_later_is_refused():
    """A call tree can only point backwards, so that no one loops in it."""
    bad = replace(SUMMARY, tree=[replace(SUMMARY.tree[0], parent=0)])
    with pytest.raises(MalformedError, match="parent"):
        codec.decode(topics.run_topic("r", topics.SUMMARY, "n"), codec.encode(bad))


def test_another_version_is_named_even_when_its_fields_differ():
    """A future message is refused as another version, not as a bad field."""
    with pytest.raises(ContractVersionError, match="got 3, expected 1"):
        codec.decode(STEPS, codec.encode(replace(EMPTY, version=3)))
    with pytest.raises(ContractVersionError, match="got 3, expected 1"):
        codec.decode(STEPS, msgspec.msgpack.encode({"version": 3, "rows": []}))
    with pytest.raises(ContractVersionError, match="got 2, expected 1"):
        codec.decode(topics.run_topic("r", topics.REQUEST, "n"), codec.encode(replace(REQUEST, version=2)))


def test_a_refused_value_is_named_with_its_place():
    """The message states what, where, got and expected, in the words of the field."""
    bad = replace(SILENT, ranks=[replace(RANK, attempt=(1 << 64) - 1)])
    with pytest.raises(
        MalformedError, match=r"ranks\[0\]\.attempt in .*announce/n: got 18446744073709551615, expected"
    ):
        codec.decode(topics.run_topic("r", topics.ANNOUNCE, "n"), codec.encode(bad))


@pytest.mark.parametrize("value", [1 << 64, -(1 << 63) - 1])
def test_an_integer_without_encoding_is_refused_by_the_sender(value):
    """What no encoder takes is a malformed message, not another error."""
    with pytest.raises(MalformedError, match="message in StepBatch"):
        codec.encode(replace(EMPTY, sent_unix_ns=value))


def test_half_a_surrogate_pair_is_refused_by_the_sender():
    """As Python holds file names that are no Unicode."""
    with pytest.raises(MalformedError, match="message in CaptureResult"):
        codec.encode(messages.CaptureResult(run="r", node="n", rank=0, request_id=1, state="done", reason="\ud800"))
    with pytest.raises(MalformedError, match="message in TraceSummary"):
        codec.encode(replace(SUMMARY, error="\ud800"))


@pytest.mark.parametrize(
    ("groups", "what"),
    [
        ([replace(GROUP, ranks=[[0, 3, 1]])], "rank range"),
        ([replace(GROUP, ranks=[[0, 2, 0]])], "rank range"),
        ([replace(GROUP, ranks=[[1, 1, 1]])], "rank range"),
        ([replace(GROUP, ranks=[[0, 2, 1], [1, 2, 1]])], "rank range"),
        ([replace(GROUP, ranks=[[0, 2]])], "groups[0].ranks[0]"),
        ([replace(GROUP, name="x")] * 4097, "groups"),
    ],
)
def test_groups_that_cannot_be_are_refused(groups, what):
    """Ranges outside of the world, of no rank, out of order, and too many of them."""
    with pytest.raises(MalformedError) as caught:
        codec.decode(topics.run_topic("r", topics.ANNOUNCE, "n"), codec.encode(replace(SILENT, groups=groups)))
    assert caught.value.what == what


def test_groups_of_too_many_members_are_counted_and_not_unpacked():
    """Forty bytes can name a million ranks; members are arithmetic, and as many as fit no memory are refused."""
    rank = replace(RANK, world_size=1 << 20)
    group = replace(GROUP, ranks=[[0, 1 << 20, 1]])
    topic = topics.run_topic("r", topics.ANNOUNCE, "n")
    one = messages.NodeAnnouncement(run="r", node="n", ranks=[rank], groups=[group])
    assert codec.decode(topic, codec.encode(one)) == one
    with pytest.raises(MalformedError, match="members of all groups"):
        codec.decode(topic, codec.encode(replace(one, groups=[group, replace(group, kind="dp")])))
    spans = [[2 * index, 2 * index + 1, 1] for index in range(4096)]
    many = [replace(GROUP, name=str(index), ranks=spans) for index in range(9)]
    with pytest.raises(MalformedError, match="spans of all groups"):
        codec.decode(topic, codec.encode(replace(one, groups=many)))


def test_a_rank_announced_twice_is_refused():
    """Which of the two is true cannot be known."""
    with pytest.raises(MalformedError, match="each rank once"):
        codec.decode(topics.run_topic("r", topics.ANNOUNCE, "n"), codec.encode(replace(SILENT, ranks=[RANK, RANK])))


def test_an_oversized_message_is_not_sent():
    """What a receiver would refuse is refused by the sender."""
    with pytest.raises(MalformedError, match="message size"):
        codec.encode(replace(EMPTY, records=bytes(9 << 20)))


@pytest.mark.parametrize(
    "topic",
    ["", "lockstep/v1", "lockstep/v1/run/r/steps", "lockstep/v2/run/r/steps/n", "lockstep/v1/run/../steps/n",
     "lockstep/v1/run/r/nothing/n", "lockstep/v1/run/r/steps/n/x", "lockstep/v1/node/n/steps", "lockstep/v1/run/r/steps/+"],
)  # fmt: skip
def test_foreign_topics_are_refused(topic):
    """Only our own topics parse, and no name with a path or wildcard in it."""
    with pytest.raises(MalformedError, match="topic"):
        topics.parse_topic(topic)
