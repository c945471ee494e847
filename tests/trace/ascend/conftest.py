"""The recordings next to the checkout are extra: where they are not, their tests do not exist."""

from tests.trace.ascend.recordings import SHARED_RANKS

collect_ignore = [] if SHARED_RANKS else ["test_shared_ascend.py"]
