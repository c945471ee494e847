"""Recorded series against synthetic ones, by Prometheus' own rule engine: what the ratios are ratios of."""

import pytest

from tests.alerts.test_scenarios import run_promtool

MINUTE_S = 60


def counter(name, per_second, **labels):
    """Return a counter that grows evenly for an hour."""
    step = per_second * MINUTE_S
    return {"series": series(name, **labels), "values": f"0+{step:g}x60"}


def series(name, **labels):
    text = ",".join(f'{key}="{value}"' for key, value in {"job": "e", "instance": "n1", "run": "a", **labels}.items())
    return f"{name}{{{text}}}"


def of_rank(rank, peak=None, flops=None, **labels):
    """Return one rank that steps all the time, with its peak and its FLOPs as far as they are known."""
    found = [
        counter("lockstep_step_time_seconds_total", 1, rank=rank, **labels),
        counter("lockstep_steps_total", 2, rank=rank, **labels),
    ]
    if peak is not None:
        found += [counter("lockstep_peak_flops_total", peak, rank=rank, **labels)] if flops is not None else []
    if flops is not None:
        found.append(counter("lockstep_model_flops_total", flops, rank=rank, **labels))
    return found


def collective(kind, *, wait, flight, payload, bus):
    labels = {"rank": 0, "domain_kind": kind}
    return [
        counter("lockstep_collective_wait_seconds_total", wait, **labels),
        counter("lockstep_collective_time_seconds_total", flight, **labels),
        counter("lockstep_collective_bytes_total", payload, **labels),
        counter("lockstep_collective_bus_bytes_total", bus, **labels),
    ]


def expect(expr, *samples):
    return {
        "expr": expr,
        "eval_time": "20m",
        "exp_samples": [{"labels": f"{expr}{{{labels}}}", "value": value} for labels, value in samples],
    }


MFU = "run:lockstep_model_flops_per_peak_flops:ratio_rate1m"
CASES = {
    "ranks of two speeds: FLOPs over what both devices could do": (
        [*of_rank(0, peak=100, flops=40), *of_rank(1, peak=300, flops=40)],
        [expect(MFU, ('run="a"', 0.2))],
    ),
    "a rank without FLOPs, and one without a peak, are on neither side": (
        [*of_rank(0, peak=100, flops=50), *of_rank(1, peak=100), *of_rank(2, flops=50)],
        [expect(MFU, ('run="a"', 0.5)), expect("run:lockstep_model_flops:rate1m", ('run="a"', 100))],
    ),
    "exporters with one series for all ranks of a node; of one the peaks are not known": (
        [
            counter("lockstep_model_flops_total", 80),
            counter("lockstep_peak_flops_total", 400),
            counter("lockstep_model_flops_total", 80, instance="n2"),
        ],
        [expect(MFU, ('run="a"', 0.2)), expect("run:lockstep_model_flops:rate1m", ('run="a"', 160))],
    ),
    "without a peak there is no ratio": ([*of_rank(0, flops=50)], [expect(MFU)]),
    "bandwidths, exposed share and overlap; a kind never in flight has none": (
        [
            *collective("dp", wait=0.25, flight=0.5, payload=100, bus=150),
            *collective("tp", wait=0.25, flight=0.25, payload=10, bus=10),
            *collective("pp", wait=0, flight=0, payload=0, bus=0),
        ],
        [
            expect(
                "run_domain_kind:lockstep_collective_bytes_per_collective_time:ratio_rate1m",
                ('run="a",domain_kind="dp"', 200),
                ('run="a",domain_kind="tp"', 40),
            ),
            expect(
                "run_domain_kind:lockstep_collective_bus_bytes_per_collective_time:ratio_rate1m",
                ('run="a",domain_kind="dp"', 300),
                ('run="a",domain_kind="tp"', 40),
            ),
            expect(
                "run_domain_kind:lockstep_collective_wait_seconds_per_collective_time:ratio_rate1m",
                ('run="a",domain_kind="dp"', 0.5),
                ('run="a",domain_kind="tp"', 1),
            ),
            expect("run:lockstep_collective_overlap:ratio_rate1m", ('run="a"', 1 - 0.5 / 0.75)),
        ],
    ),
    "per step of the average rank: host lead, recompilations, flagged steps; share of the device's step": (
        [
            *of_rank(0),
            *of_rank(1),
            *(counter("lockstep_host_lead_seconds_total", 0.0625, rank=rank) for rank in (0, 1)),
            counter("lockstep_recompilations_total", 1, rank=0),
            counter("lockstep_steps_flagged_total", 1, flag="checkpoint"),
            *(counter("lockstep_device_step_time_seconds_total", 1, rank=rank) for rank in (0, 1)),
            *(counter("lockstep_device_collective_time_seconds_total", 0.25, rank=rank) for rank in (0, 1)),
        ],
        [
            expect("run:lockstep_host_lead_seconds_per_step:ratio_rate1m", ('run="a"', 0.03125)),
            expect("run:lockstep_recompilations_per_step:ratio_rate1m", ('run="a"', 0.25)),
            expect("run_flag:lockstep_steps_flagged_per_step:ratio_rate1m", ('run="a",flag="checkpoint"', 0.25)),
            expect("run:lockstep_device_collective_time_per_device_step_time:ratio_rate1m", ('run="a"', 0.25)),
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_recorded_ratio(name, tmp_path):
    """Each ratio is the one its name and help promise, exactly."""
    inputs, checks = CASES[name]
    case = {"interval": "1m", "input_series": inputs, "promql_expr_test": checks}
    done = run_promtool({"tests": [case]}, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_expectation_fails(tmp_path):
    """The check itself can fail."""
    case = {
        "interval": "1m",
        "input_series": of_rank(0, peak=100, flops=40),
        "promql_expr_test": [expect(MFU, ('run="a"', 0.5))],
    }
    assert run_promtool({"tests": [case]}, tmp_path).returncode != 0


def test_a_minute_where_it_holds_steps_enough_else_five(tmp_path):
    """Steps that turned twice as long a minute ago read so; steps of two minutes have a figure at any time."""
    quick = [
        {"series": series("lockstep_steps_total", run="quick"), "values": "0+15x40 607.5+7.5x40"},
        {"series": series("lockstep_step_time_seconds_total", run="quick"), "values": "0+15x80"},
        {"series": series("lockstep_tokens_total", run="quick"), "values": "0+150x40 6075+75x40"},
    ]
    slow = [
        {"series": series(name, run="slow"), "values": " ".join(f"{each * place}+0x7" for place in range(7))}
        for name, each in (("lockstep_steps_total", 1), ("lockstep_step_time_seconds_total", 120))
    ]
    ratio = "run:lockstep_step_time_seconds_per_step:ratio_rate1m"
    checks = [
        expect(ratio, ('run="quick"', 2), ('run="slow"', 120)),
        expect("run:lockstep_tokens:rate1m", ('run="quick"', 5)),
    ]
    case = {
        "interval": "15s",
        "input_series": [*quick, *slow],
        "promql_expr_test": [{**check, "eval_time": "11m15s"} for check in checks],
    }
    done = run_promtool({"tests": [case]}, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
