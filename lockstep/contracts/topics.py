"""MQTT topics: `lockstep/v1/run/<run>/<channel>/<node>`, `lockstep/v1/node/<node>/<channel>`, and the coordinators'.

The version is part of the topic, so that two versions can share a broker without interfering. The writer's node is a
level of the topic, so that the broker's access rules (`lockstep/cli/access_rules.py`) restrict each node to its own
topics. A node writes `written_by_node` and reads `read_by_node`. A coordinator does the reverse, for all nodes, and
writes `coordinator/<its name>/alive`.
"""

from dataclasses import dataclass
from functools import lru_cache

from lockstep.contracts.errors import MalformedError
from lockstep.contracts.paths import check_name, is_name

PREFIX = "lockstep/v1"
ANY = "+"
"""Matches one level of a topic."""
STEPS = "steps"
ANNOUNCE = "announce"
REQUEST = "request"
ANSWER = "answer"
SUMMARY = "summary"
STACK_REQUEST = "stack_request"
STACKS = "stacks"
ALIVE = "alive"
LOST = "lost"
ACK = "ack"
COORDINATOR = "coordinator"
RUN_CHANNELS = (STEPS, ANNOUNCE, REQUEST, ANSWER, SUMMARY, STACK_REQUEST, STACKS)
NODE_CHANNELS = (ALIVE, LOST, ACK)
SPOOLED_CHANNELS = (STEPS, ANSWER, SUMMARY, STACKS, LOST)
"""Channels of a node's stream: every payload is a frame (`delivery.py`)."""

_RUN_LEVELS = 6
_NODE_LEVELS = 5
_TOPICS_KEPT = 1 << 15  # parsed once: the nodes of 200,000 ranks; at most 20 MB with the longest names


@dataclass(frozen=True, slots=True)
class Topic:
    """A parsed topic. `run` is empty for a node's own channel; for a coordinator's topic, `node` is its name."""

    channel: str
    node: str
    run: str = ""


def run_topic(run: str, channel: str, node: str) -> str:
    """Return the topic of a run's channel for one node."""
    assert channel in RUN_CHANNELS
    return f"{PREFIX}/run/{check_name(run, 'run name')}/{channel}/{check_name(node, 'node name')}"


def alive_topic(node: str) -> str:
    """Return the topic of a node's heartbeat and last will."""
    return node_topic(node, ALIVE)


def node_topic(node: str, channel: str) -> str:
    """Return the topic of a node's own channel: its heartbeat, its lost frames, the acknowledgements that it gets."""
    assert channel in NODE_CHANNELS
    return f"{PREFIX}/node/{check_name(node, 'node name')}/{channel}"


def coordinator_topic(coordinator: str) -> str:
    """Return the topic of a coordinator's heartbeat and last will."""
    return f"{PREFIX}/coordinator/{check_name(coordinator, 'coordinator name')}/{ALIVE}"


def coordinator_filters() -> list[str]:
    """Return the filters that a coordinator subscribes to."""
    return [*written_by_node(ANY), f"{PREFIX}/coordinator/{ANY}/{ALIVE}"]


def exporter_filters(node: str) -> list[str]:
    """Return the filters that a node's exporter subscribes to."""
    return read_by_node(check_name(node, "node name"))


def written_by_node(node: str) -> list[str]:
    """Return the filters of all topics that `node` publishes; `node` may be a wildcard or a placeholder."""
    channels = (STEPS, ANNOUNCE, ANSWER, SUMMARY, STACKS)
    return [
        *(f"{PREFIX}/run/{ANY}/{channel}/{node}" for channel in channels),
        *(f"{PREFIX}/node/{node}/{channel}" for channel in (ALIVE, LOST)),
    ]


def read_by_node(node: str) -> list[str]:
    """Return the filters of all topics that coordinators publish for `node`, which may be a wildcard or placeholder."""
    return [
        *(f"{PREFIX}/run/{ANY}/{channel}/{node}" for channel in (REQUEST, STACK_REQUEST)),
        f"{PREFIX}/node/{node}/{ACK}",
    ]


@lru_cache(_TOPICS_KEPT)
def parse_topic(topic: str) -> Topic:
    """Return the parts of `topic`.

    Raises
    ------
    MalformedError
        It is not a topic of Lockstep's.
    """
    levels = topic.split("/")
    if topic.startswith(f"{PREFIX}/run/") and len(levels) == _RUN_LEVELS:
        run, channel, node = levels[3:]
        if channel in RUN_CHANNELS and is_name(run) and is_name(node):
            return Topic(channel, node, run)
    if topic.startswith(f"{PREFIX}/node/") and len(levels) == _NODE_LEVELS:
        node, channel = levels[3:]
        if channel in NODE_CHANNELS and is_name(node):
            return Topic(channel, node)
    if topic.startswith(f"{PREFIX}/coordinator/") and len(levels) == _NODE_LEVELS:
        name, channel = levels[3:]
        if channel == ALIVE and is_name(name):
            return Topic(COORDINATOR, name)
    raise MalformedError("topic", where="MQTT message", got=topic, expected=f"{PREFIX}/run/<run>/<channel>/<node>")
