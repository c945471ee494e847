"""Renders the broker's access rules in mosquitto's format from the topics."""

from collections.abc import Iterator

from lockstep.contracts import topics

COORDINATOR_USER = "lockstep-coordinator"
SHARED_EXPORTER_USER = "lockstep-exporter"
_USER_NAME = "%u"  # mosquitto inserts the client's user name; it refuses names that contain a wildcard

_PER_NODE = """\
# Written by `make generate` from lockstep/contracts/topics.py; `lockstep export acl DIR` writes it too.
# A user is a node and is called as it: it writes its own topics and reads what coordinators publish for it. The user
# of the coordinators reads all of that and writes the rest. No other user gets anything.
"""
_SHARED = """\
# Written by `make generate` from lockstep/contracts/topics.py. For one user that all exporters share: the rules cannot
# distinguish nodes, so that any exporter may write as any node.
"""


def render() -> str:
    """Return the rules of a broker where each node has its own user."""
    return _PER_NODE + "".join(
        f"{line}\n"
        for line in (
            *_grants("pattern", writes=topics.written_by_node(_USER_NAME), reads=topics.read_by_node(_USER_NAME)),
            "",
            *_coordinator(),
        )
    )


def render_shared() -> str:
    """Return the rules of a broker where all exporters share one user."""
    nodes = _grants("topic", writes=topics.written_by_node(topics.ANY), reads=topics.read_by_node(topics.ANY))
    return _SHARED + "".join(f"{line}\n" for line in (f"user {SHARED_EXPORTER_USER}", *nodes, "", *_coordinator()))


def _coordinator() -> Iterator[str]:
    heartbeat = topics.coordinator_filters()[-1]
    yield f"user {COORDINATOR_USER}"
    yield from _grants(
        "topic", writes=[*topics.read_by_node(topics.ANY), heartbeat], reads=topics.coordinator_filters()
    )


def _grants(form: str, *, writes: list[str], reads: list[str]) -> Iterator[str]:
    yield from (f"{form} write {topic}" for topic in writes)
    yield from (f"{form} read {topic}" for topic in reads)
