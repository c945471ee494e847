"""The demonstration's verdict and view; tests/distributions and tests/end_to_end run the demonstration itself."""

import asyncio
import io
import json
import shutil
from dataclasses import fields
from types import SimpleNamespace

import pytest
from rich.console import Console

from coordinator.settings.config import CoordinatorConfig
from exporter.config import ExporterConfig
from lockstep.cli.demo import session
from lockstep.cli.demo.demo_verdict import agent_implementation, agent_seconds, agent_share, make_verdict
from lockstep.cli.demo.view import DemoView, draw_verdict, print_verdict
from tests.support.servers import free_port

INCIDENT = {
    "kind": "slow_rank", "ranks": [2], "cause": "compute", "function": "demo/training.py(103): redundant_attention",
    "operator": "aten::bmm", "onset_step": 60, "detected_step": 62, "slowdown_ratio": 4.5, "lost_device_seconds": 3.0,
    "evidence": ["rank 2 works 250 ms"], "advice": [{"suggestion": "Remove it.", "how": "Delete.", "predicted_gain_ratio": 0.8, "source": "s"}],
}  # fmt: skip


HANG = INCIDENT | {
    "kind": "hang", "cause": "data", "function": "training.py(75): stuck_in_download", "root_cause": "",
    "stacks": ["ranks 0-3: training.py(180): <module>", "  rank 2: training.py(75): stuck_in_download"],
}  # fmt: skip
CRASH = INCIDENT | {
    "kind": "crash", "cause": "process", "function": "training.py(80): reject_document", "root_cause": "ValueError",
}  # fmt: skip

WHERE_IT_RUNS = {"root", "spool_directory", "http_host", "http_port"}
"""Directories and ports of its own, so that it disturbs no services of the machine."""
OF_ONE_NODE = {"metrics_level"}
"""All series by rank: they are few. What is found does not depend on it."""
OF_ONE_PROCESS = {"batch_seconds"}
"""`lockstep up` has its broker in the process: batches reach the coordinator sooner, for nothing."""


def test_the_demonstration_runs_with_the_defaults_that_users_have(tmp_path):
    """What it finds and how fast, users must see as well: each setting that differs is named here."""
    up = session.demo_services(str(tmp_path))
    for config, default, allowed in (
        (up.exporter_config, ExporterConfig(), WHERE_IT_RUNS | OF_ONE_PROCESS | OF_ONE_NODE),
        (up.coordinator_config, CoordinatorConfig(), WHERE_IT_RUNS),
    ):
        different = {each.name for each in fields(config) if getattr(config, each.name) != getattr(default, each.name)}
        assert different <= allowed
    assert {each.name for each in fields(ExporterConfig)} >= OF_ONE_PROCESS


def test_share_of_the_agent_is_its_time_over_the_time_of_the_runs_steps():
    """As the dashboard's panel has it: of this run only, and without what was counted before the first reading."""
    first = """lockstep_agent_time_seconds_total{run="demo",rank="0"} 3.0
lockstep_step_time_seconds_total{run="demo",rank="0"} 4.0
"""
    last = """# TYPE lockstep_agent_time_seconds_total counter
lockstep_agent_time_seconds_total{run="demo",rank="0"} 3.01
lockstep_agent_time_seconds_total{run="demo",rank="1"} 0.02
lockstep_agent_time_seconds_total{run="other",rank="0"} 5.0
lockstep_step_time_seconds_total{run="demo",rank="0"} 24.0
lockstep_step_time_seconds_total{run="demo",rank="1"} 1e1
lockstep_device_step_time_seconds_total{run="demo",rank="0"} 7.0
"""
    assert agent_share(first, last, "demo") == pytest.approx(0.001)
    assert agent_share(last, last, "demo") is None
    assert agent_share(first, last, "none") is None
    assert agent_share(last, "", "demo") is None
    assert agent_seconds(first, last, "demo") == pytest.approx(0.03)


def test_what_the_agent_is_written_in_is_shown_once(capsys):
    """By the exporter's page, once a rank of the run has reported it."""
    of_rank = 'lockstep_rank_agent_info{{run="{run}",rank="{rank}",mark_writer="C extension"{kernels}}} 1\n'
    kernels = ',collective_kernels="C++"'
    page = of_rank.format(run="other", rank=0, kernels=kernels) + of_rank.format(run="demo", rank=0, kernels="")
    assert agent_implementation(page, "demo") is None
    page += of_rank.format(run="demo", rank=1, kernels=kernels) + of_rank.format(run="demo", rank=2, kernels=kernels)
    assert agent_implementation(page, "demo") == "marks by C extension, kernels of collectives in C++"
    made = session._Session("none", 2, 4, Console(), None)
    for metrics in ("", page, page):
        made._show_agent(metrics)
    assert capsys.readouterr().out == "agent: marks by C extension, kernels of collectives in C++\n"


@pytest.mark.parametrize(
    ("incidents", "pages", "share", "capture_seconds"),
    [
        ([], ["0 1", "", "3 101"], 0.03, None),
        ([{}], ["0 1", "3 101", "83 131"], 0.03, 20.0),
        ([{}], ["", "", "83 131"], None, None),
        ([{}], ["0 1", "3 101", ""], 0.03, None),
    ],
    ids=["healthy", "an incident", "an incident before the first reading", "no answer at the end"],
)
def test_what_the_agent_takes_of_each_step_and_for_a_capture_are_two_figures(incidents, pages, share, capture_seconds):
    """A demonstration ends soon after its capture: their sum over its steps is no share that a user's training has."""
    names = ("lockstep_agent_time_seconds_total", "lockstep_step_time_seconds_total")
    first, healthy, last = (
        "".join(f'{name}{{run="demo"}} {value}\n' for name, value in zip(names, page.split(), strict=False))
        for page in pages
    )
    made = session._Session("compute", 2, 4, Console(), None)
    made.incidents, made._first_metrics, made._healthy_metrics = incidents, first, healthy
    made._reckon(last)
    assert (made.agent_share, made.capture_seconds) == (share and pytest.approx(share), capture_seconds)


def test_an_exporter_that_does_not_answer_costs_the_share_alone():
    """The page is empty then, and the verdict is printed without the share."""
    assert asyncio.run(session._fetch_text(f"http://127.0.0.1:{free_port()}/metrics")) == ""


def verdict_of(incidents, fault="compute", state=None):
    return make_verdict(incidents, run="demo", fault=fault, rank=2, fault_step=60, steps=90, healthy=0.05, state=state)


@pytest.mark.parametrize(
    ("incidents", "fault", "correct"),
    [
        ([INCIDENT], "compute", True),
        ([INCIDENT | {"ranks": [1]}], "compute", False),
        ([INCIDENT | {"ranks": [1, 2]}], "compute", False),
        ([INCIDENT | {"cause": "data"}], "compute", False),
        ([INCIDENT | {"function": ""}], "compute", False),
        ([INCIDENT | {"function": "x.py(1): other"}], "compute", False),
        ([INCIDENT, INCIDENT | {"ranks": [0]}], "compute", False),
        ([], "compute", False),
        ([], "none", True),
        ([INCIDENT], "none", False),
        ([INCIDENT | {"kind": "fluctuation"}], "none", False),
    ],
)
def test_only_the_whole_truth_is_right(incidents, fault, correct):
    """Rank, cause and function must all be right, and no one else named."""
    verdict = verdict_of(incidents, fault)
    assert verdict.correct is correct
    json.dumps(verdict.to_json())


@pytest.mark.parametrize(
    ("fault", "state", "incidents", "correct"),
    [
        ("hang", "hung", [HANG], True),
        ("hang", "healthy", [HANG], False),
        ("hang", "hung", [HANG | {"ranks": [0]}], False),
        ("hang", "hung", [HANG | {"function": ""}], False),
        ("hang", "hung", [HANG, INCIDENT], False),
        ("crash", "crashed", [CRASH], True),
        ("crash", "cancelled", [CRASH], False),
        ("crash", "hung", [HANG], False),
        ("crash", "crashed", [CRASH, HANG], False),
        ("cancel", "cancelled", [], True),
        ("cancel", "cancelled", [HANG], False),
        ("cancel", "finished", [], False),
        ("cancel", None, [], False),
    ],
)
def test_a_fault_that_stops_the_job_needs_its_state_and_no_other_incident(fault, state, incidents, correct):
    """A hang next to a crash, or a slow rank next to a hang, would wake people twice."""
    assert verdict_of(incidents, fault, state).correct is correct


@pytest.mark.parametrize(
    ("fault", "state", "incidents", "printed"),
    [
        (
            "hang",
            "hung",
            [HANG],
            ("2, has not arrived", "stuck_in_download", "ranks 0-3: training.py(180)", "is right"),
        ),
        (
            "crash",
            "crashed",
            [CRASH],
            ("2, ended before the others", "process: ValueError", "reject_document", "is right"),
        ),
        ("cancel", "cancelled", [], ("The run was cancelled", "SIGINT to the job", "is right")),
        (
            "cancel",
            "healthy",
            [],
            (
                "No rank holds this job back",
                "0 incidents",
                "is WRONG: expected no incident and state cancelled, got 0 incidents and state healthy",
            ),
        ),
    ],
)
def test_the_verdict_on_a_stopped_job_names_what_stopped_it(fault, state, incidents, printed):
    """Where ranks stand for a hang, the exception for a crash, the request for a cancelled run."""
    output = io.StringIO()
    print_verdict(Console(file=output, width=240), verdict_of(incidents, fault, state))
    for words in printed:
        assert words in output.getvalue()


def test_the_verdict_prints_what_matters():
    """Rank, cause, function, evidence, advice and its gain are all in the text."""
    output = io.StringIO()
    print_verdict(Console(file=output, width=120), verdict_of([INCIDENT]))
    for words in ("redundant_attention", "compute", "aten::bmm", "rank 2 works 250 ms", "80%", "step 60", "is right"):
        assert words in output.getvalue()


@pytest.mark.parametrize(
    ("incidents", "printed"),
    [
        ([INCIDENT | {"function": ""}], "is INCOMPLETE: rank and cause are right"),
        ([INCIDENT | {"function": "", "cause": "data"}], "is WRONG"),
        (
            [INCIDENT | {"function": ""}, INCIDENT | {"ranks": [0]}],
            "is WRONG: expected one incident of rank 2 with cause compute in redundant_attention, got 2 incidents",
        ),
        ([INCIDENT | {"function": "x.py(1): other"}], "is WRONG"),
    ],
)
def test_a_verdict_that_lacks_its_function_is_incomplete_and_not_wrong(incidents, printed):
    """A busy machine may not summarise a capture in time: the rank was still named rightly."""
    output = io.StringIO()
    print_verdict(Console(file=output, width=240), verdict_of(incidents))
    assert printed in output.getvalue()


def test_the_picture_needs_no_other_host(tmp_path):
    """The verdict as SVG holds the verdict and fetches nothing."""
    draw_verdict(tmp_path / "v.svg", verdict_of([INCIDENT]))
    picture = (tmp_path / "v.svg").read_text()
    assert "redundant_attention" in picture
    assert "url(http" not in picture.replace('"', "")


@pytest.mark.parametrize("terminal", [True, False])
def test_the_view_names_who_waits_for_whom(terminal):
    """On a terminal and in a log, the slow rank and those who wait are named."""
    output = io.StringIO()
    view = DemoView(Console(file=output, width=120, force_terminal=terminal), "compute fault", 60)
    view.start("starting")
    part = {"host_seconds": 0.0, "data_seconds": 0.0, "gc_seconds": 0.0}
    ranks = [
        {"rank": r, "self_seconds": s, "wait_seconds": w, "compute_seconds": s, **part}
        for r, s, w in ((0, 0.05, 0.2), (1, 0.25, None))
    ]
    view.update(
        {
            "step": 70,
            "state": "suspect",
            "recent_step_seconds": 0.25,
            "baseline_step_seconds": 0.05,
            "slow_ranks": [1],
            "ranks": ranks,
        }
    )
    view.close()
    assert "250 ms" in output.getvalue()
    assert "rank 0 waits for rank 1" in output.getvalue()
    assert ("compute fault since step 60" in output.getvalue()) is terminal


def test_captures_go_where_there_is_space(monkeypatch, tmp_path):
    """A roomy shared memory is used, a small or absent one is not."""
    assert session._roomy_directory(tmp_path / "absent") is None
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(session.shutil, "disk_usage", lambda _: usage._replace(free=64 << 20))
    assert session._roomy_directory(tmp_path) is None
    monkeypatch.setattr(session.shutil, "disk_usage", lambda _: usage._replace(free=1 << 30))
    assert session._roomy_directory(tmp_path) == tmp_path


@pytest.mark.parametrize(
    ("now_s", "first_step_s", "is_late"),
    [(170, None, False), (190, None, True), (190, 170, False), (300, 170, False), (320, 170, True)],
)
def test_the_time_of_a_session_counts_from_its_first_step(now_s, first_step_s, is_late):
    """Ranks of a busy machine import torch for minutes, which is no fault that was not found."""
    assert session._is_late(now_s, 0.0, first_step_s) is is_late


async def test_a_request_that_fails_does_not_end_the_demonstration():
    """The services of a machine without processor time to spare close connections; the next poll asks again."""
    requests = []
    training = SimpleNamespace(returncode=None)

    async def disconnect(_, writer):
        requests.append(writer)
        if len(requests) == 2:
            training.returncode = 0
        writer.close()

    async with await asyncio.start_server(disconnect, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        demo = session._Session("none", 2, 4, Console(file=io.StringIO()), None)
        await demo._watch(f"http://127.0.0.1:{port}", training)
    assert len(requests) == 2
    assert demo.run_json == {}
