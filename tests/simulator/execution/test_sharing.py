import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.simulator.execution.sharing import fair_rates
from tests.simulator.jobs import flow

LINKS = 4
flows = st.lists(
    st.builds(
        lambda links, cap, use: flow(*links, cap=cap, use=use),
        st.sets(st.integers(0, LINKS - 1), min_size=1),
        st.sampled_from([0.5, 2.0, 1e30]),
        st.sampled_from([1.0, 2.0]),
    ),
    min_size=1,
    max_size=8,
)
capacities = st.lists(st.sampled_from([1.0, 2.0, 3.0, 10.0]), min_size=LINKS, max_size=LINKS)


@given(flows, capacities)
def test_rates_are_max_min_fair(running, capacity):
    """No link is overfull, and every flow is held back: by its cap, or by a full link on which no one is faster."""
    rates = fair_rates(running, capacity)
    load = [0.0] * LINKS
    for rate, one in zip(rates, running, strict=True):
        for link, use in one.uses:
            load[link] += rate * use
    assert all(used <= full * (1 + 1e-9) for used, full in zip(load, capacity, strict=True))
    for rate, one in zip(rates, running, strict=True):
        at_cap = rate >= one.cap * (1 - 1e-9)
        held = any(
            load[link] >= capacity[link] * (1 - 1e-9)
            and rate >= max(r for r, o in zip(rates, running, strict=True) if link in dict(o.uses)) * (1 - 1e-9)
            for link, _ in one.uses
        )
        assert at_cap or held


def test_what_one_cannot_use_goes_to_the_others():
    """Three flows on a link of 10, one of them capped at 1: 1, 4.5, 4.5."""
    assert fair_rates([flow(0, cap=1.0), flow(0), flow(0)], [10.0]) == pytest.approx([1, 4.5, 4.5])


def test_a_second_link_holds_back_only_those_on_it():
    """Two flows share a narrow link, a third takes the rest of the wide one: 1, 1, 8."""
    rates = fair_rates([flow(0, 1), flow(1), flow(0)], [9.0, 2.0])
    assert rates == pytest.approx([1, 1, 8])
