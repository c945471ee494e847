"""The API's description is that of the routes, of what a coordinator answers, and of what it refuses."""

import json
import re

import jsonschema
import pytest

from coordinator.api import openapi
from coordinator.app import routes
from coordinator.settings.policy import Policy
from lockstep.cli.generate import ROOT
from tests.coordinator.test_runs import play
from tests.coordinator.web import FAULTY, Site, ask, get

DESCRIPTION = openapi.describe(routes())
OPERATIONS = [(method.upper(), path) for path, methods in DESCRIPTION["paths"].items() for method in methods]
PAGES = {"/", "/runs/{run}", "/fleet", "/incidents", "/incidents/{id}", "/static/{digest}/{name}"}


@pytest.fixture
async def site(token_file):
    async with Site(token_file=token_file) as made:
        play(made.runs, FAULTY, 0, 60)
        yield made


def operation(method, path):
    return DESCRIPTION["paths"][path][method.lower()]


def check(value, schema):
    jsonschema.Draft202012Validator({**schema, "components": DESCRIPTION["components"]}).validate(value)


def test_every_route_is_described_or_is_a_page():
    """A new route needs its answer in the table: without it, describing fails."""
    described = {(method, path) for method, path in OPERATIONS}
    assert described == {(route.method, route.path) for route in routes() if route.path not in PAGES}
    assert set(openapi.ANSWERS) | {("GET", path) for path in openapi.OTHER_ANSWERS} == described
    assert set(openapi.QUERIES) <= {path for _, path in described}


def test_the_committed_file_is_the_description():
    """What a client generator reads; `make generate` writes it."""
    assert json.loads((ROOT / "docs" / "openapi.json").read_text()) == DESCRIPTION


def test_operations_are_named_once_and_described():
    """Clients are generated from the names, so two may not share one."""
    operations = [operation(*each) for each in OPERATIONS]
    assert len({each["operationId"] for each in operations}) == len(operations)
    assert all(re.fullmatch(r"\w+", each["operationId"]) and each["summary"] for each in operations)


async def test_answers_are_as_described(site):
    """Of a run with an open incident: every GET that answers in JSON."""
    (incident,) = site.runs.by_name["job"].machine.tracker.incidents
    names = {"run": "job", "id": incident}
    checked = 0
    for method, path in OPERATIONS:
        if method == "GET" and (method, path) in openapi.ANSWERS:
            schema = openapi.ANSWERS[method, path]
            check(await get(site, path.format(**names)), schema)
            checked += 1
    assert checked == 15


async def test_changes_are_answered_as_described(site):
    """Thresholds, specification, capture and reload, with the token."""
    threshold = {"excess.floor_ratio": 0.03}
    check(threshold, DESCRIPTION["components"]["schemas"]["Thresholds"])
    bodies = {"PATCH": threshold, "POST": {"ranks": [1]}}
    for method, path in OPERATIONS:
        if method in openapi.SAFE or path.endswith("/spec"):
            continue
        body = None if path == "/-/reload" else bodies.get(method)
        site.runs.by_name["job"].machine.captures.current = None
        status, answer = await ask(site, method, path.format(run="job"), body)
        assert str(status) in operation(method, path)["responses"], (path, answer)
        check(answer, openapi.ANSWERS[method, path])


@pytest.mark.parametrize(("method", "path"), [each for each in OPERATIONS if each[0] not in openapi.SAFE])
async def test_what_is_described_as_secured_needs_the_token(site, method, path):
    """And nothing else does."""
    status, answer = await ask(site, method, path.format(run="job"), {}, token="wrong")
    assert (status, operation(method, path)["security"]) == (401, [{"token": []}])
    check(answer, DESCRIPTION["components"]["schemas"]["Error"])
    assert not any("security" in operation(*each) for each in OPERATIONS if each[0] in openapi.SAFE)


@pytest.mark.parametrize(
    "body", [{"excess.floor_ratio": 11}, {"excess.floor_ratio": "a"}, {"no.such": 1}, {"timeline.window_cells": 5}]
)
async def test_what_the_schema_refuses_the_api_refuses(site, body):
    """Ranges, types and names of thresholds."""
    with pytest.raises(jsonschema.ValidationError):
        check(body, DESCRIPTION["components"]["schemas"]["Thresholds"])
    assert (await ask(site, "PATCH", "/api/v1/policy", body))[0] == 400


def test_the_defaults_are_within_the_schema():
    """Every threshold that can change, at its default."""
    schema = DESCRIPTION["components"]["schemas"]["Thresholds"]
    known = {name: getattr(getattr(Policy(), name.split(".")[0]), name.split(".")[1]) for name in schema["properties"]}
    check({name: list(value) if isinstance(value, tuple) else value for name, value in known.items()}, schema)
