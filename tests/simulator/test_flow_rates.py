"""Rates kept by the set of flows that meet are those of fair sharing among all that are there."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.simulator.execution.sharing import FlowRates, fair_rates
from tests.simulator.jobs import flow

CAPACITY = (1.0, 2.0, 0.5, 4.0, 1.0)


@st.composite
def flows_and_moves(draw):
    """Return flows on some of five links, and who comes and goes."""
    flows = []
    for _ in range(draw(st.integers(1, 6))):
        links = sorted(draw(st.sets(st.integers(0, len(CAPACITY) - 1), min_size=1, max_size=3)))
        use, cap = draw(st.sampled_from([0.5, 1.0])), draw(st.sampled_from([0.3, 1.0, 1e30]))
        flows.append(flow(*links, cap=cap, alone=min(CAPACITY[link] / use for link in links), use=use))
    moves = draw(st.lists(st.tuples(st.integers(0, len(flows) - 1), st.booleans()), max_size=30))
    return flows, moves


@settings(deadline=None)
@given(flows_and_moves())
def test_rates_are_those_of_all_that_are_there(drawn):
    """Whatever flow comes or goes, one several times: every flow on the links has its fair rate, and changes are all reported."""
    flows, moves = drawn
    flow_rates, here = FlowRates(flows, CAPACITY), []
    for number, comes in moves:
        before = list(flow_rates.rates)
        if comes:
            changed = flow_rates.enter(number)
            here.append(number)
        elif number in here:
            changed = flow_rates.leave(number)
            here.remove(number)
        else:
            continue
        fair = fair_rates([flows[each] for each in here], CAPACITY)
        assert [flow_rates.rates[each] for each in here] == pytest.approx(fair)
        with_new_rate = {each for each in here if flow_rates.rates[each] != before[each]}
        assert with_new_rate - {number} <= set(changed)
