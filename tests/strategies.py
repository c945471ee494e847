"""Hypothesis strategies for the things that cross process boundaries."""

from hypothesis import strategies as st

from lockstep.contracts.messages import StepBatch
from lockstep.contracts.records import MISSING, RECORD_FIELDS
from lockstep.contracts.rows import RANK, join_columns

int64 = st.integers(-(2**63), 2**63 - 1)
record = st.lists(int64, min_size=len(RECORD_FIELDS), max_size=len(RECORD_FIELDS))
ascending_ranks = st.lists(st.integers(0, 5000), unique=True, min_size=1, max_size=60).map(sorted)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=8), children, max_size=4),
    max_leaves=10,
)


@st.composite
def step_batches(draw: st.DrawFn) -> StepBatch:
    """Return valid batches of run `r` on node `n`."""
    count = draw(st.integers(0, 20))
    names = draw(st.lists(st.sampled_from(RECORD_FIELDS), unique=True, max_size=6))
    values = st.lists(st.just(MISSING) | int64, min_size=count, max_size=count)
    ranks = b"".join(draw(st.integers(0, 1000)).to_bytes(8, "little") for _ in range(count))
    columns = {n: b"".join(v.to_bytes(8, "little", signed=True) for v in draw(values)) for n in names}
    return StepBatch(
        run="r",
        node="n",
        sent_unix_ns=draw(st.integers(0, 2**62)),
        count=count,
        **dict(zip(("layout", "records"), join_columns({RANK: ranks, **columns}), strict=True)),
    )
