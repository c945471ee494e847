"""The recordings next to the checkout are extra: where they are not, their tests do not exist."""

from tests.trace.traces import SHARED_TRACES

collect_ignore = [] if SHARED_TRACES else ["test_shared_recordings.py"]
