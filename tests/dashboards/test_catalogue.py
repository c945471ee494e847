"""Rules that hold for every dashboard: the linter's of the Prometheus community, and our own."""

import json
import re

import pytest

from alerts import rules
from dashboards import catalogue, external_metrics
from dashboards.builders import every_panel
from dashboards.levels import OF_NODE, level_of
from lockstep.contracts.metric import LEVELS
from lockstep.contracts.metrics import BY_NAME
from lockstep.contracts.records import DOMAIN_KINDS
from tests.alerts.promql import parse, problems

BOARDS = {path.stem: json.loads(text) for path, text in catalogue.render().items()}
PANELS = [(name, panel) for name, board in BOARDS.items() for panel in every_panel(board) if panel["type"] != "row"]
TARGETS = [(name, panel, target) for name, panel in PANELS for target in panel["targets"]]
UNITS = {"none", "short", "locale", "s", "percentunit", "Bps", "decbytes", "celsius", "watt"}
BOUNDED = ("lockstep_suspect_slowdown_ratio", "lockstep_incident_info", "lockstep_incident_silence_seconds")

each_board = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
each_panel = pytest.mark.parametrize(("name", "panel"), PANELS, ids=[f"{n}-{p['title']}" for n, p in PANELS])
each_target = pytest.mark.parametrize(
    ("name", "panel", "target"), TARGETS, ids=[f"{n}-{p['title']}-{t['refId']}" for n, p, t in TARGETS]
)


def expression(target):
    return target["expr"].replace("$__rate_interval", "1m").replace("$__range", "1h")


def variables(name):
    return {item["name"]: item for item in BOARDS[name]["templating"]["list"]}


def test_rendered_files_are_what_the_sources_render():
    """The committed files are the sources' own, none is left over, and building twice gives the same bytes."""
    first, second = catalogue.render(), catalogue.render()
    assert first == second
    assert {path: path.read_text() for path in sorted(catalogue.RENDERED.iterdir())} == dict(sorted(first.items()))


def test_uids_and_titles_are_unique():
    """Grafana would overwrite one dashboard by the other."""
    for key in ("uid", "title"):
        values = [board[key] for board in BOARDS.values()]
        assert len(set(values)) == len(values)


@each_board
def test_a_board_is_generated_shared_and_dated_alike(board):
    """Not editable, UTC, one crosshair, a tag, a stable uid, a moderate refresh, today's schema."""
    assert board["editable"] is False
    assert board["timezone"] == "utc"
    assert board["graphTooltip"] == 1
    assert board["schemaVersion"] == 41
    assert board["refresh"] == "30s"
    assert board["tags"] == ["lockstep"]
    assert re.fullmatch(r"lockstep-[a-z-]+", board["uid"])
    assert board["title"].startswith("Lockstep / ")
    assert board["description"].endswith(".")


@each_board
def test_no_key_of_old_grafana_is_left(board):
    """Nothing that grafanalib writes for Grafana 6 survives, at any level."""
    assert not {"__inputs", "rows", "style", "sharedCrosshair", "hideControls", "gnetId"} & board.keys()
    for panel in board["panels"]:
        assert not {"span", "minSpan", "error", "editable", "cacheTimeout", "height"} & panel.keys()
        assert panel["type"] not in ("graph", "singlestat", "table-old")
        for target in panel.get("targets", []):
            assert not {"intervalFactor", "step", "metric", "target", "query"} & target.keys()
    assert not [key for item in board["templating"]["list"] for key in item if key.startswith(("auto", "tags"))]


@each_board
def test_variables(board):
    """The data source comes first; the others read existing labels from it and follow the time range."""
    first, *others = board["templating"]["list"]
    assert (first["name"], first["type"], first["label"]) == ("datasource", "datasource", "Data source")
    for item in others:
        assert item["label"]
        if item["type"] == "textbox":
            assert (item["name"], item["current"]["value"]) == ("coordinator", item["query"])
            continue
        assert item["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert item["refresh"] == 2
        selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", item["definition"]).groups()
        found = [problem for problem in problems(selector) if "a counter outside of rate" not in problem]
        assert found == []  # a label is looked up, no value
        assert label == "cluster" or label in BY_NAME[parse(selector).selectors[0].metric].labels
        assert item["multi"] == item["includeAll"] == ("allValue" in item)
        assert item.get("allValue", ".+") == (".*" if label == "cluster" else ".+")


@each_board
def test_panels_do_not_overlap(board):
    """Every cell of the grid belongs to one panel at most, and none leaves it."""
    cells = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        own = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert not own & cells
        cells |= own


@each_board
def test_annotations_read_the_catalogue(board):
    """Marks on the panels are of incidents and alerts that exist, of this run."""
    for mark in board["annotations"]["list"]:
        assert problems(mark["expr"]) == []
        assert 'run="$run"' in mark["expr"]
        assert mark["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


@each_board
def test_titles_are_unique_within_a_part(board):
    """Under one heading no two panels have the same title."""
    seen = set()
    for panel in board["panels"]:
        if panel["type"] == "row":
            seen = set()
        key = (panel["title"], panel["type"])
        assert key not in seen
        seen.add(key)


@each_panel
def test_a_panel_explains_itself(name, panel):
    """Title, sentences of description, data source, queries, a minimal interval, a unit."""
    assert panel["title"]
    assert re.fullmatch(r"[A-Z].+\.", panel["description"])
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert panel["interval"] == "15s"
    if panel["type"] == "alertlist":
        chosen = panel["options"]["alertInstanceLabelFilter"]
        if "run" in variables(name):
            assert chosen == '{run="$run",severity!="none"}'
        else:
            pattern = re.fullmatch(r'\{alertname=~"([^"]+)"(,severity!="none")?\}', chosen)[1]
            assert [alert.name for alert in rules.alerts() if re.fullmatch(pattern, alert.name)]
        return
    assert panel["targets"]
    unit = panel["fieldConfig"]["defaults"]["unit"]
    assert unit in UNITS or unit.startswith("suffix: ")


def test_self_monitoring_lists_every_alert_about_lockstep():
    """All but the one that fires always, to prove the way to the pager; and two about ranks that cannot be measured."""
    (panel,) = (each for each in BOARDS["self-monitoring"]["panels"] if each["title"] == "Alerts about Lockstep")
    pattern = re.fullmatch(r'\{alertname=~"([^"]+)"\}', panel["options"]["alertInstanceLabelFilter"])[1]
    (group,) = (each for each in rules.groups() if each.name == "lockstep.monitor")
    about = {alert.name for alert in group.rules if alert.severity != "none"}
    assert {alert.name for alert in rules.alerts() if re.fullmatch(pattern, alert.name)} == {
        *about,
        "LockstepAgentDown",
        "LockstepCoordinatorUnreachable",
    }


@each_panel
def test_a_panel_does_not_lie_about_missing_data(name, panel):
    """No stacking, no line over a gap, no 0 for what was not measured: a stat shows "no data"."""
    custom = panel["fieldConfig"]["defaults"].get("custom", {})
    if panel["type"] == "timeseries":
        assert custom["stacking"] == {"mode": "none"}
        assert custom["spanNulls"] is False
    if panel["type"] in ("stat", "bargauge", "table", "state-timeline"):
        assert panel["fieldConfig"]["defaults"]["noValue"].startswith("no data")
    for target in panel["targets"]:
        assert not re.search(r"\bor\b|vector\(|absent\(", target["expr"])


@each_panel
def test_a_panel_explains_what_its_level_leaves_empty(name, panel):
    """Where exporters at a lower level have nothing for some line, the text names the level; for all, also in its place."""
    levels = [LEVELS.index(level_of(target["expr"])) for target in panel["targets"]]
    if max(levels, default=0):
        assert f"`metrics_level: {LEVELS[max(levels)]}`" in panel["description"]
    shown = panel["fieldConfig"]["defaults"].get("noValue", "")
    assert ("metrics_level" in shown) == (min(levels, default=0) > 0)
    assert "metrics_level" not in shown or f"metrics_level {LEVELS[min(levels)]}" in shown


def test_the_level_of_a_query_follows_from_the_label_rank():
    """Sums over ranks have data at every level, single ranks at that of their family, the average of a node below it."""
    tokens = "sum(rate(lockstep_tokens_total{}[1m]))"
    cases = {
        tokens: "minimal",
        tokens.replace("{}", '{rank="$rank"}'): "full",
        tokens.replace("{}", '{rank=""}') + ' and on (job) lockstep_rank_info{rank="$rank"}': "default",
        "max by (rank, hostname) (run_rank_hostname:lockstep_collective_wait_seconds_per_step:ratio_rate1m)": "default",
        "max(lockstep_run_ranks)": "minimal",
    }
    assert {expr: level_of(expr) for expr in cases} == cases


@each_target
def test_a_query_uses_the_catalogue(name, panel, target):
    """Every metric, label and value exists, counters are read as rates, and the run is chosen where one is shown."""
    assert problems(expression(target)) == []
    for selector in parse(expression(target)).selectors:
        metric = BY_NAME.get(re.sub(r"_bucket\Z", "", selector.metric))
        if selector.metric in external_metrics.LABELS:
            continue
        if "run" in variables(name) and (metric is None or "run" in metric.labels):
            assert selector.matchers["run"] == ("=", "$run")
        else:
            assert "run" not in selector.matchers
        if "rank" in variables(name) and metric is not None and "rank" in metric.labels:
            of_node = [None, ("=", "")] if OF_NODE in target["expr"] else []
            assert selector.matchers.get("rank") in [("=", "$rank"), *of_node]
        assert selector.matchers.get("hostname", ("=~",))[0] == "=~"  # the host variable may hold several


@each_target
def test_a_rate_spans_what_grafana_chooses(name, panel, target):
    """The window of a rate follows the zoom and the scrape interval."""
    assert set(re.findall(r"\[([^\]]*)\]", re.sub(r'"[^"]*"', "", target["expr"]))) <= {"$__rate_interval", "$__range"}


@each_target
def test_single_ranks_are_bounded(name, panel, target):
    """A query whose result has a rank or a host is cut by topk, or reads what the coordinator has already bounded."""
    outer = re.search(r"\bby \(([^)]*)\)", target["expr"])
    labels = outer[1].split(", ") if outer else []
    if {"rank", "hostname"} & set(labels):
        few = re.match(r"(top|bottom)k\((8|64), ", target["expr"]) or 'rank="$rank"' in target["expr"]
        assert few or any(bounded in target["expr"] for bounded in BOUNDED)


@each_target
def test_a_query_states_its_interval(name, panel, target):
    """Numbers, bars and tables ask for one moment, lines and bands for a range; labelled series have a legend."""
    assert target["instant"] == (panel["type"] in ("stat", "bargauge", "table"))
    assert target["range"] != target["instant"]
    assert (target["format"] == "table") == (panel["type"] == "table")
    if panel["type"] in ("timeseries", "state-timeline", "bargauge"):
        assert target["legendFormat"]
    assert target["datasource"] == panel["datasource"]


def test_every_kind_of_fact_is_shown():
    """Each metric that evaluates a run is on some panel, so that nothing is measured for no one."""
    shown = {re.sub(r"_bucket\Z", "", s.metric) for _, _, t in TARGETS for s in parse(expression(t)).selectors}
    evaluated = {
        name for name in BY_NAME if name.startswith(("lockstep_run_", "lockstep_suspect_", "lockstep_incident_"))
    }
    elsewhere = {
        "lockstep_run_fluctuating",  # an input of the alerts; the state shows it to a person
        "lockstep_run_step",  # an index; its rate is the panel Steps
        "lockstep_run_suspects_omitted",  # in the alert's description
    }
    assert evaluated - shown == elsewhere
    assert len(DOMAIN_KINDS) <= 8  # the panels by kind of domain stay readable


def links():
    """Yield (board, link) of every cell that leads somewhere."""
    for name, panel in PANELS:
        for override in panel["fieldConfig"].get("overrides", []):
            for item in override["properties"]:
                if item["id"] == "links":
                    yield from ((name, link) for link in item["value"])


def test_links_lead_to_boards_and_give_them_variables_they_have():
    """A cell leads to a dashboard that exists, with values for its variables, or to the coordinator that was named."""
    by_uid = {board["uid"]: name for name, board in BOARDS.items()}
    found = list(links())
    assert {re.match(r"/d/([a-z-]+)", link["url"])[1] for _, link in found if link["url"].startswith("/d/")} == {
        "lockstep-run",
        "lockstep-diagnoses",
        "lockstep-rank",
    }
    for name, link in found:
        board = re.match(r"/d/([a-z-]+)\?\$\{__url_time_range\}&\$\{datasource:queryparam\}", link["url"])
        if board is None:
            assert link["url"].startswith("${coordinator}/")
            assert "coordinator" in variables(name)
            continue
        given = set(re.findall(r"var-(\w+)=", link["url"])) | set(re.findall(r"\$\{(\w+):queryparam\}", link["url"]))
        assert given <= set(variables(by_uid[board[1]]))
        assert "run" in given


@each_board
def test_every_board_leads_to_the_others(board):
    """One menu on each dashboard has all others, and takes time and variables along."""
    menu, *_ = board["links"]
    assert menu["tags"] == board["tags"]
    assert menu["keepTime"]
    assert menu["includeVars"]


def test_a_cell_is_linked_by_a_label_it_has():
    """`${__data.fields.X}` of a link names a column of the same table."""
    for name, panel in PANELS:
        columns = {
            label
            for target in panel["targets"]
            for label in re.findall(r"\w+", str(parse(expression(target)).grouping))
        }
        for override in panel["fieldConfig"].get("overrides", []):
            for field in re.findall(r"__data\.fields\.(\w+)", json.dumps(override)):
                assert field in columns, (name, panel["title"], field)
