import pytest

from lockstep.contracts.metrics import CAUSES
from lockstep.diagnosis.advice import advise, gain_ratio
from lockstep.diagnosis.advice_table import REMEDIES


def _advise(cause, path=(), explained=0.03, operator=""):
    return advise(
        cause=cause,
        function="train.py(60): forward",
        operator=operator,
        path=list(path),
        step_seconds=0.1,
        excess_seconds=0.04,
        explained_seconds=explained,
    )


@pytest.mark.parametrize(
    ("removed", "step", "expected"),
    [(0.03, 0.1, 0.3), (0.2, 0.1, 1.0), (None, 0.1, None), (0.0, 0.1, None), (0.1, 0, None)],
)
def test_gain_is_the_share_of_the_step_that_goes(removed, step, expected):
    """min(removed, step) / step, None where it cannot be reported."""
    assert gain_ratio(removed, step) == pytest.approx(expected)


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_has_advice_with_how_and_source(cause):
    """No verdict leaves the operator without something to do, with and without a function."""
    for explained in (0.03, None):
        found = _advise(cause, explained=explained)
        assert found
        assert all(advice.suggestion and advice.how and advice.source for advice in found)


def test_table_speaks_only_of_known_causes():
    """A remedy for a cause that does not exist would never be given."""
    assert {remedy.cause for remedy in REMEDIES} == set(CAUSES)


@pytest.mark.parametrize("cause", CAUSES)
def test_advice_is_ordered_by_gain(cause):
    """The largest predicted gain comes first, what cannot be predicted last."""
    gains = [advice.predicted_gain_ratio or 0.0 for advice in _advise(cause)]
    assert gains == sorted(gains, reverse=True)


def test_removing_the_function_gains_what_it_holds_and_the_machine_the_rest():
    """The gain of each remedy follows from what it removes."""
    gains = {advice.suggestion: advice.predicted_gain_ratio for advice in _advise("compute")}
    assert gains["Remove, cache or shorten what forward (train.py:60) does on this rank only"] == pytest.approx(0.3)
    assert gains["If the code is the same everywhere, suspect the machine"] == pytest.approx(0.1)


def test_remedies_depend_on_what_stands_on_the_path():
    """A loader without workers is advised to get some, one with workers to get more."""
    alone = [advice.suggestion for advice in _advise("data", ["enumerate(DataLoader)#_SingleProcessDataLoaderIter"])]
    staffed = [
        advice.suggestion for advice in _advise("data", ["enumerate(DataLoader)#_MultiProcessingDataLoaderIter"])
    ]
    assert any("worker processes" in each for each in alone)
    assert any("more workers" in each for each in staffed)
    assert not set(alone[:1]) & set(staffed)
