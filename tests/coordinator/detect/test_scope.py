"""What is reported and what is left out."""

from dataclasses import replace

import pytest

from coordinator.detect.anomalies import FLUCTUATION, SLOW_LINK
from coordinator.detect.scope import in_scope, is_watched
from coordinator.settings.policy import Policy
from coordinator.settings.thresholds import apply
from tests.coordinator.conftest import anomaly, evaluated

RANK = anomaly(2)
LINK = anomaly(kind=SLOW_LINK, scope="group", domain=("tp", "tp0"), cause="link")
NODE = anomaly(kind=SLOW_LINK, scope="node", domain=None, cause="link")
RUN = anomaly(kind=FLUCTUATION, scope="job", ranks=(), domain=None)
EVALUATED = replace(evaluated(60, RANK, LINK, NODE, RUN), fluctuating=True)


@pytest.mark.parametrize(
    ("values", "reported"),
    [
        ({}, (RANK, LINK, NODE, RUN)),
        ({"detectors.slow_rank": False}, (LINK, NODE, RUN)),
        ({"detectors.slow_link": False}, (RANK, RUN)),
        ({"detectors.fluctuation": False}, (RANK, LINK, NODE)),
        ({"scope.domain_kinds": ("dp",)}, (RANK, NODE, RUN)),
        ({"scope.runs": ("other", "j?b")}, (RANK, LINK, NODE, RUN)),
        ({"scope.runs": ("prod-*",)}, ()),
    ],
)
def test_only_what_is_switched_on_and_in_scope_is_told(values, reported):
    """The rest of the step_result stays; a slow run is no metric either where its detector is off."""
    left = in_scope(EVALUATED, apply(Policy(), values), "job")
    assert left.anomalies == reported
    assert left.fluctuating == (RUN in reported)
    assert replace(left, anomalies=EVALUATED.anomalies, fluctuating=True) == EVALUATED


def test_patterns_are_the_shells():
    """Case counts, and any one is enough."""
    assert is_watched("prod-7", ["dev", "prod-*"])
    assert not is_watched("Prod-7", ["prod-*"])
