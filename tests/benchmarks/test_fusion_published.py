"""Hermes, table 5: the step after gradient fusion follows from the step before."""

import pytest

from benchmarks.fusion_published import (
    AFTER_MS,
    COMPUTE_MS,
    EXPOSED_MS,
    FREE_MS,
    PARAMETERS,
    exposed_ms,
    fitted,
    layers,
    main,
)
from lockstep.simulator.fusion import exact, forward_search, unfused


def test_the_network_is_vgg16():
    """Its 16 layers have the published number of parameters."""
    assert len(layers()) == 16
    assert sum(each.weights + each.biases for each in layers()) == PARAMETERS


@pytest.mark.parametrize("width", [4, 2])
def test_fusion_gives_the_published_step(width):
    """Fitted to the step before alone, the greedy search and the best fusion are within 2 % of the step after."""
    task = fitted(width)
    assert exposed_ms(task, unfused(task).end_s) == pytest.approx(EXPOSED_MS, rel=1e-6)
    for way in (forward_search(task), exact(task)):
        assert COMPUTE_MS + exposed_ms(task, way.end_s) + FREE_MS == pytest.approx(AFTER_MS, rel=0.02)


def test_the_table_is_printed(capsys):
    """A row for each way and precision, and the paper's figures."""
    assert main() == 0
    printed = capsys.readouterr().out
    assert printed.count("Hermes's greedy search") == 2
    assert "3.594 of 56.640 after fusion" in printed
