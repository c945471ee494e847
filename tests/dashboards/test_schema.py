"""What Grafana's own models make of the dashboards: nothing is lost, so every key is one that they know."""

import json
import warnings

import pytest
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards import catalogue

with (
    warnings.catch_warnings()
):  # the SDK would rather have the second schema, which releases before Grafana 12 do not read
    warnings.simplefilter("ignore", DeprecationWarning)
    from grafana_foundation_sdk.models.dashboard import Dashboard

BOARDS = {path.stem: json.loads(text) for path, text in catalogue.render().items()}


def differences(before, after, where=""):
    """Yield what is not the same in two JSON values, by its path."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() | after.keys():
            if key in before and key in after:
                yield from differences(before[key], after[key], f"{where}/{key}")
            elif key in before:
                yield f"{where}/{key}: lost"
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(one, other, f"{where}[{index}]")
    elif before != after:
        yield f"{where}: {before!r} became {after!r}"


def round_trip(board):
    plugins.register_default_plugins()
    return json.loads(json.dumps(Dashboard.from_json(board), cls=JSONEncoder))


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_no_field_is_lost(board):
    """Read into the models of the foundation SDK and written again, a dashboard has every field it had."""
    assert list(differences(board, round_trip(board))) == []


def test_a_key_that_grafana_does_not_know_would_be_seen():
    """A panel option that is misspelt, and a field of Grafana 6, are both lost on the way."""
    board = json.loads(json.dumps(BOARDS["run"]))
    board["hideControls"] = False
    panel = next(panel for panel in board["panels"] if panel["type"] == "timeseries")
    panel["options"]["legend"]["diplayMode"] = "table"
    lost = set(differences(board, round_trip(board)))
    assert "/hideControls: lost" in lost
    assert any(line.endswith("/options/legend/diplayMode: lost") for line in lost)
