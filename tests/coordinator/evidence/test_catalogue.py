"""The queries as data: Lockstep's own are whole, a site's are added, what is wrong is named."""

import pytest
from promql_parser import parse

from coordinator.evidence.catalogue import TARGETS, WINDOW, load_catalogue
from lockstep.contracts.errors import ConfigError

OWN = """
version = 1
[causes.smoke]
title = "Smoke"
advice = "Call somebody"
[queries.smoke]
source = "node"
cause = "smoke"
meaning = "Particles"
unit = "ppm"
query = "avg_over_time(site_smoke{$targets}[$window])"
compare = "above"
min_difference = 10
"""


def test_every_query_is_promql_and_every_cause_is_used():
    """With matchers and a window in their places; names are unique."""
    catalogue = load_catalogue()
    for query in catalogue.queries:
        parse(query.query.replace(TARGETS, 'a="b"').replace(WINDOW, "60000ms"))
    assert len({query.name for query in catalogue.queries}) == len(catalogue.queries)
    used = {query.cause for query in catalogue.queries} | {
        code.cause for query in catalogue.queries for code in query.codes.values()
    }
    assert used == set(catalogue.causes)


def test_a_site_adds_queries_and_replaces_those_of_the_same_name(tmp_path):
    """With the sources and causes that are there."""
    file = tmp_path / "site.toml"
    file.write_text(OWN)
    catalogue = load_catalogue(str(file))
    assert catalogue.causes["smoke"].title == "Smoke"
    assert {query.name for query in catalogue.queries} - {query.name for query in load_catalogue().queries} == {"smoke"}
    file.write_text(OWN.replace("queries.smoke", "queries.node_oom_kill"))
    (replaced,) = [query for query in load_catalogue(str(file)).queries if query.name == "node_oom_kill"]
    assert replaced.cause == "smoke"


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ("version = 1", "version = 2", "version = 1"),
        ("version = 1", "version = ", "expected TOML"),
        ("[causes.smoke]", "[cause.smoke]", "'cause'"),
        ('source = "node"', 'source = "nod"', "queries.smoke: source: got 'nod'"),
        ('cause = "smoke"', 'cause = "fire"', "cause: got 'fire'"),
        ('compare = "above"', 'compare = "over"', "compare: got 'over'"),
        ("min_difference = 10", "", "one of them above 0"),
        ("min_difference = 10", "min_difference = nan", "a number"),
        ("min_difference = 10", 'min_difference = "10"', "a number"),
        pytest.param("min_difference = 10", f"min_difference = 1{'0' * 400}", "a number", id="endless"),
        ("min_difference = 10", "min_difference = 10\nmetrics = []", "a list of names"),
        ("min_difference = 10", 'min_difference = 10\nmetrics = ["a"]', r"with \$metric"),
        ("min_difference = 10", "min_difference = 10\ncodes = 3", "codes"),
        ("{$targets}", "", r"with \$targets"),
        ('unit = "ppm"', "", "a value for unit"),
        ('unit = "ppm"', 'units = "ppm"', "'units'"),
        ('title = "Smoke"', 'title = "a\\nb"', "one line"),
        ('advice = "Call somebody"', 'advice = "x"\nexplained_by = "heat"', "a list of texts"),
    ],
)
def test_what_is_wrong_in_a_site_s_file_is_named(tmp_path, before, after, named):
    """File, table and key."""
    file = tmp_path / "site.toml"
    assert before in OWN
    file.write_text(OWN.replace(before, after))
    with pytest.raises(ConfigError, match=named) as error:
        load_catalogue(str(file))
    assert "evidence_queries_file" in str(error.value)


def test_a_file_that_is_none_is_named(tmp_path):
    """Missing, a directory, binary, endless."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "long").write_bytes(b"#" * (2 << 20))
    for name in ("missing", ".", "binary", "long"):
        with pytest.raises(ConfigError, match="evidence_queries_file"):
            load_catalogue(str(tmp_path / name))
