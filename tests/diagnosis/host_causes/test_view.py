import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.diagnosis.host_causes.view import measured_before, view_host
from lockstep.trace.columns import TraceMetadata
from lockstep.trace.intervals import common, merged
from tests.diagnosis.host_causes.scenes import frame, kernel, span, steps, view
from tests.trace.made import columns_of


def test_an_empty_window_is_refused():
    """A share of nothing would be no number."""
    with pytest.raises(ValueError, match="expected a start before its end"):
        view_host(columns_of([span("aten::mm", 0, 5)]), (7, 7))


def test_only_what_touches_the_window_is_looked_at():
    """Events before and after it are of no concern; those across its edge are cut to it."""
    seen = view([span("before", -9, 5), span("across", -3, 5), span("after", 10, 5)], 10)
    assert seen.host.tolist() == [False, True, False]
    assert seen.spans(seen.host).measure_ns() == 2000


def test_steps_are_those_that_begin_in_the_window():
    """The agent's last mark ends a step and begins none."""
    events = [*steps(3, 100), span("aten::mm", 0, 350)]
    assert view(events, 300).step_starts_ns.tolist() == [0, 100_000, 200_000]
    assert view(events, 150).steps == 2


def test_a_loss_of_one_step_is_none_of_the_others():
    """Start-up holds the first of four steps; the 2 us that others lose are no part of it. Unmarked steps show nothing."""
    events = [*steps(4, 100), span("aten::mm", 0, 350)]
    seen = view(events, 400)
    begun = merged(np.array([10_000, 110_000]), np.array([90_000, 112_000]))
    assert seen.occurrence(begun) == (1, 4)
    assert seen.occurrence(merged(np.array([0]), np.array([400_000]))) == (4, 4)
    assert view(events[-1:], 400).occurrence(begun) is None


def test_without_marks_the_window_counts_as_one_step():
    """Times are of the whole window then, and no sentence speaks of steps."""
    seen = view([span("aten::mm", 0, 5)], 10)
    assert (len(seen.step_starts_ns), seen.steps) == (0, 1)
    assert seen.per_step(5000) == "5 us (50.0 % of the window)"
    assert view([*steps(2, 10), span("aten::mm", 0, 5)], 20).per_step(10_000) == "5 us a step (50.0 % of the window)"


def test_time_of_the_host_is_exposed_where_the_device_is_idle():
    """What overlaps the device's work costs nothing; without a device everything does."""
    seen = view([span("aten::mm", 0, 10), kernel("gemm", 4, 3)], 10)
    assert seen.exposed(seen.spans(seen.host)).measure_ns() == 7000
    alone = view([span("aten::mm", 0, 10)], 10)
    assert alone.exposed(alone.spans(alone.host)).measure_ns() == 10_000


def test_the_rank_is_the_traces_own():
    """A trace that does not name its rank gives findings without ranks."""
    assert view([frame("f", 0, 1)], 10).ranks == ()
    assert view([frame("f", 0, 1)], 10, metadata=TraceMetadata(rank=3)).ranks == (3,)


def test_names_of_a_megabyte_are_not_searched_through():
    """A pattern sees a name's beginning only."""
    seen = view([span("a" * 1_000_000 + "Synchronize", 0, 1), span("aSynchronize", 2, 1)], 10)
    assert seen.named(lambda name: name.endswith("Synchronize"), seen.host).tolist() == [False, True]


spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12)


@given(spans, st.integers(0, 90), st.integers(0, 90))
def test_differences_of_the_measure_are_what_lies_between(pairs, one, other):
    """F(b) - F(a) is the length of the set's part in [a, b], counted the slow way."""
    pairs = np.array(pairs, np.int64).reshape(-1, 2)
    cover = merged(pairs[:, 0], pairs[:, 0] + pairs[:, 1])
    low, high = sorted((one, other))
    measured = measured_before(cover, np.array([low, high]))
    between = common(cover, merged(np.array([low]), np.array([high])))
    assert measured[1] - measured[0] == between.measure_ns()
