"""The scenarios by name: every fault that must be found, and everything that is none.

Each is a function of the number of ranks and a seed, which also draws the ranks at fault and when it begins.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from benchmarks.scenarios.job import LINK, NOISY, Imbalance, Interruptions, Noise, Scenario, Stall
from benchmarks.scenarios.recipes import (
    CONTEXTS,
    EXPERTS,
    NO_REPLICAS,
    PAIRS,
    PIPELINES,
    RESTARTED,
    Make,
    hang,
    healthy,
    rank_and_job,
    rank_and_link,
    slow,
    slow_half,
    slow_link,
    slow_nic,
    slow_nodes,
    stalling,
    unsynchronised_gc,
    whole_job,
)
from benchmarks.scenarios.recording import RANKS_PER_NODE

_PAUSING = Interruptions(checkpoint_every=25, evaluation_every=40)
_TWICE = replace(RESTARTED, restart_at=60, second_restart_at=110)
_LOSING = replace(RESTARTED, missing_bursts=8, missing=0.01)
_FROZEN, _MAD = replace(RESTARTED, frozen_rank=0), replace(RESTARTED, mad_clock_rank=0)
_SEQUENCE = Imbalance(sequence_sigma=0.12)
_EXPERTS_HOT = Imbalance(expert_sigma=0.1)
_ROUTED = Imbalance(routing_sigma=0.3)
_SCALING = replace(RESTARTED, warm_up_scales=True)
_LONG = replace(_SCALING, warm_up_ratio=2.0, warm_up_fade_steps=8.0)
_LOADING = Imbalance(loader_ratio=0.05)
_SHARDING = Imbalance(loader_ratio=0.05, loader_of="cp")
_FIRST_STAGE = Imbalance(loader_ratio=0.15, loader_of="pp")
_HALF_BANDWIDTH = 1.0  # a transfer takes as long again

_WINDOWS = Imbalance(window_steps=(45, 70, 95, 120, 145, 170), flops_known=True)
_WINDOWS_APART = replace(_WINDOWS, window_steps=(30, 45, 110, 135, 160))  # of where faults begin
_NOISY_JOB = Noise(common=0.07)
_AFTER = {"later_steps": 400}  # where the noise is known
_LATER = {"cause": "compute", **_AFTER}
_WIDE = Noise(spread=0.014)
_HELD = 417.0  # of own work: three minutes
_PARTS = ("data", "host", "forward", "backward", "optimizer")


def _shared_hosts(sigma: float) -> Noise:
    """Return the noise of ranks that share hosts: own work scatters by `sigma`, and stalls are common."""
    return Noise(step=sigma, spread=0.01, common=0.03, stall_rate=3e-4, stall_memory=0.3, jitter=0.1)


def _named(make: Callable[..., Scenario], **arguments: object) -> dict[str, Make]:
    return {str(arguments["name"]): partial(make, **arguments)}


FAULTS: dict[str, Make] = {
    **_named(slow, name="slow 3 %", ratio=0.03),
    **_named(slow, name="slow 5 %", ratio=0.05),
    **_named(slow, name="slow 10 %", ratio=0.10),
    **_named(slow, name="slow 100 %", ratio=1.00),
    **_named(slow, name="4 slow 5 %", ratio=0.05, count=4),
    **_named(slow, name="16 slow 5 %", ratio=0.05, count=16),
    **_named(slow, name="slow from the start", ratio=0.05, from_start=True),
    **_named(slow, name="3 % from the start", ratio=0.03, from_start=True),
    **_named(slow, name="20 % from the start", ratio=0.20, from_start=True),
    **_named(slow, name="16 from the start", ratio=0.05, count=16, from_start=True),
    **_named(slow, name="16 slow 3 %", ratio=0.03, count=16),
    **_named(slow, name="10 %, wide silicon", ratio=0.10, noise=_WIDE),
    **_named(slow, name="10 %, wide silicon, pairs", ratio=0.10, noise=_WIDE, shapes=PAIRS),
    **_named(slow, name="20 % from the start, wide silicon", ratio=0.20, from_start=True, noise=_WIDE),
    **_named(slow, name="transient", ratio=0.05, lasts=20),
    **_named(slow, name="thermal", ratio=0.05, on_steps=15, off_steps=25),
    **_named(slow, name="drift", ratio=0.15, drift_steps=120),
    **_named(slow, name="50 % in 1 of 20", ratio=0.5, share=1 / 20),
    **_named(slow, name="50 % in 1 of 20, data", ratio=0.5, share=1 / 20, cause="data"),
    **_named(slow, name="20 % in 1 of 5", ratio=0.2, share=1 / 5),
    **_named(slow, name="4 x 50 % in 1 of 20", ratio=0.5, share=1 / 20, count=4),
    **_named(slow_half, name="half of a domain", ratio=0.05),
    **_named(slow_half, name="half of a tensor group", ratio=0.05, kind="tp"),
    **_named(slow, name="domain of two", ratio=0.05, shapes=PAIRS),
    **_named(slow, name="domain of two, 300 %", ratio=3.0, shapes=PAIRS),
    **_named(slow, name="context groups", ratio=0.05, shapes=CONTEXTS),
    **_named(slow, name="no replicas", ratio=0.05, shapes=NO_REPLICAS),
    **_named(slow_nodes, name="slow node", count=1, cause="host"),
    **_named(slow_nodes, name="two slow nodes", count=2, cause="compute"),
    **_named(slow, name="data on one", ratio=0.10, cause="data"),
    **_named(slow, name="gc on one", ratio=0.10, cause="gc"),
    **_named(slow, name="slow, sequences", ratio=0.10, imbalance=_SEQUENCE),
    **_named(slow, name="slow, sequences, pipelines", ratio=0.10, imbalance=_SEQUENCE, shapes=PIPELINES),
    **_named(slow, name="slow, experts", ratio=0.05, imbalance=_EXPERTS_HOT, shapes=EXPERTS),
    **_named(slow, name="slow, one loader a group", ratio=0.05, imbalance=_LOADING),
    **_named(slow, name="slow, one loader a group, pairs", ratio=0.05, imbalance=_LOADING, shapes=PAIRS),
    **_named(slow, name="slow loader, one a group", ratio=0.05, imbalance=_LOADING, cause="data"),
    **_named(slow, name="slow, one loader a context group", ratio=0.08, imbalance=_SHARDING, shapes=CONTEXTS),
    **_named(slow, name="slow, first stage loads", ratio=0.08, imbalance=_FIRST_STAGE, shapes=PIPELINES),
    **_named(slow, name="slow, noisy", ratio=0.05, noise=NOISY),
    **{
        name: make
        for sigma, ratio in ((0.05, 0.13), (0.08, 0.13), (0.08, 0.40), (0.15, 0.40))
        for part in _PARTS
        for name, make in _named(
            slow,
            name=f"{part} +{ratio:.0%}, shared hosts {sigma:.0%}",
            ratio=ratio,
            cause=part,
            noise=_shared_hosts(sigma),
            has_phases=True,
        ).items()
    },
    **_named(slow, name="slow, accumulation", ratio=0.05, imbalance=Imbalance(accumulation=0.25)),
    **_named(slow, name="slow, two restarts", ratio=0.05, begin=150, interruptions=_TWICE),
    **_named(slow, name="slow, frozen counter", ratio=0.05, interruptions=_FROZEN),
    **_named(slow, name="slow, mad clock", ratio=0.05, interruptions=_MAD),
    **_named(slow, name="slow, missing bursts", ratio=0.05, interruptions=_LOSING),
    **_named(slow_link, name="link tp", kind="tp"),
    **_named(slow_link, name="link pp", kind="pp"),
    **_named(slow_link, name="link dp", kind="dp"),
    **_named(slow_link, name="link ep", kind="ep", shapes=EXPERTS),
    **_named(slow_link, name="link cp", kind="cp", shapes=CONTEXTS),
    **_named(slow_nic, name="nic of a node"),
    **_named(whole_job, name="data of all", cause="data", ratio=0.10),
    **_named(whole_job, name="compute of all", cause="compute", ratio=0.08),
    **_named(whole_job, name="network of all", cause=LINK, ratio=_HALF_BANDWIDTH),
    **_named(whole_job, name="data jitter of all", cause="data", ratio=0.30, jitters=True),
    **_named(whole_job, name="compute jitter of all", cause="compute", ratio=0.10, jitters=True),
    **_named(whole_job, name="job 20 %, noise 7 %", cause="compute", ratio=0.20, noise=_NOISY_JOB),
    **_named(whole_job, name="job 45 %, noise 7 %", cause="compute", ratio=0.45, noise=_NOISY_JOB),
    **_named(whole_job, name="job 5 %, noise 2 %, later", ratio=0.05, noise=Noise(common=0.02), **_LATER),
    **_named(whole_job, name="job 8 %, noise 3 %, later", ratio=0.08, noise=Noise(common=0.03), **_LATER),
    **_named(whole_job, name="job 12 %, noise 4 %, later", ratio=0.12, noise=Noise(common=0.04), **_LATER),
    **_named(whole_job, name="job 20 %, noise 7 %, later", ratio=0.20, noise=_NOISY_JOB, **_LATER),
    **_named(
        whole_job, name="data of all, 50 % in 1 of 4 steps, later", cause="data", ratio=0.5, share=1 / 4, **_AFTER
    ),
    **_named(whole_job, name="70 % in 1 of 3 steps, in turn, later", ratio=0.7, share=1 / 3, in_turn=True, **_LATER),
    **_named(whole_job, name="12 %, attention windows", cause="compute", ratio=0.12, imbalance=_WINDOWS_APART),
    **_named(whole_job, name="noise to 2 %", cause="compute", ratio=0, noise=Noise(later_step=0.02), wanted=""),
    **_named(whole_job, name="noise to 3 %", cause="compute", ratio=0, noise=Noise(later_step=0.03), wanted=""),
    **_named(whole_job, name="noise to 12 %", cause="compute", ratio=0, noise=Noise(later_step=0.12), wanted=""),
    **_named(unsynchronised_gc, name="scattered gc"),
    **_named(whole_job, name="gc each 3 steps", cause="gc", ratio=0.3, every_steps=3),
    **_named(whole_job, name="gc each 8 steps", cause="gc", ratio=0.3, every_steps=8),
    **_named(whole_job, name="gc each 12 steps, noisy", cause="gc", ratio=0.15, every_steps=12, noise=NOISY),
    **_named(whole_job, name="gc each 25 steps", cause="gc", ratio=0.6, every_steps=25),
    **_named(whole_job, name="gc each 5 steps from the start", cause="gc", ratio=0.1, every_steps=5, from_start=True),
    **_named(rank_and_link, name="slow rank and link"),
    **_named(rank_and_job, name="slow rank and job"),
    **_named(slow, name="step held for 3 min", ratio=_HELD, lasts=1, cause="host"),
    **_named(
        slow, name="step held for 3 min, shared hosts 8%", ratio=_HELD, lasts=1, cause="data", noise=_shared_hosts(0.08)
    ),
    **_named(hang, name="hang"),
    **_named(hang, name="hang, two records", records=2),
    **_named(hang, name="hang, three records", records=3),
}

HEALTHY: dict[str, Make] = {
    **_named(healthy, name="quiet"),
    **_named(healthy, name="many pauses", interruptions=_PAUSING),
    **_named(healthy, name="flagged pauses", interruptions=replace(_PAUSING, flagged=True, profiled_every=40)),
    **_named(healthy, name="noisy", noise=NOISY),
    **{
        name: make
        for sigma in (0.03, 0.05, 0.08, 0.15)
        for name, make in _named(
            healthy, name=f"shared hosts {sigma:.0%}", noise=_shared_hosts(sigma), has_phases=True
        ).items()
    },
    **_named(healthy, name="job noise 7 %", noise=_NOISY_JOB),
    **_named(healthy, name="wide silicon", noise=_WIDE),
    **_named(healthy, name="wide silicon, 3 %", noise=Noise(spread=0.03)),
    **_named(healthy, name="wide silicon, pairs", noise=_WIDE, shapes=PAIRS),
    **_named(healthy, name="wide silicon, no replicas", noise=_WIDE, shapes=NO_REPLICAS),
    **_named(healthy, name="stalls", noise=Noise(stall_rate=2e-3)),
    **_named(healthy, name="stalls that last", noise=Noise(stall_rate=1e-3, stall_memory=0.3)),
    **_named(stalling, name="stalls 1 %, restarts", share=0.01, ratio=0.2),
    **_named(stalling, name="stalls 1 %, pipelines", share=0.01, ratio=0.2, shapes=PIPELINES),
    **_named(stalling, name="stalls 3 %, many restarts", share=0.03, restart_every=100),
    **_named(healthy, name="one checkpoint writer", interruptions=replace(RESTARTED, writer_every=20)),
    **_named(
        healthy,
        name="checkpoint writer, stalls",
        noise=Noise(stall_rate=1e-3),
        interruptions=replace(RESTARTED, writer_every=20),
    ),
    **_named(
        healthy,
        name="pauses of minutes",
        interruptions=replace(_PAUSING, checkpoint_seconds=90, evaluation_seconds=200),
    ),
    **_named(
        healthy, name="a writer of half a minute", interruptions=replace(RESTARTED, writer_every=50, writer_ratio=70.0)
    ),
    **_named(healthy, name="last stage", shapes=PIPELINES, imbalance=Imbalance(last_stage=0.25)),
    **_named(healthy, name="one loader a group", imbalance=_LOADING),
    **_named(healthy, name="one loader a group, pairs", imbalance=_LOADING, shapes=PAIRS),
    **_named(healthy, name="sequences", imbalance=_SEQUENCE),
    **_named(healthy, name="experts", shapes=EXPERTS, imbalance=_EXPERTS_HOT),
    **_named(healthy, name="routed experts", shapes=EXPERTS, imbalance=_ROUTED),
    **_named(healthy, name="routed experts, warm-up", shapes=EXPERTS, imbalance=_ROUTED, interruptions=_SCALING),
    **_named(healthy, name="routed experts, long warm-up", shapes=EXPERTS, imbalance=_ROUTED, interruptions=_LONG),
    **_named(healthy, name="experts, warm-up", shapes=EXPERTS, imbalance=_EXPERTS_HOT, interruptions=_LONG),
    **_named(
        healthy,
        name="accumulation, warm-up",
        imbalance=Imbalance(accumulation=0.4),
        interruptions=replace(_SCALING, warm_up_ratio=3.0, warm_up_fade_steps=5.0),
    ),
    **_named(healthy, name="stall and lost record", interruptions=replace(RESTARTED, stall=Stall())),
    **_named(healthy, name="stall and late record", interruptions=replace(RESTARTED, stall=Stall(late_seconds=20.0))),
    **_named(
        healthy,
        name="stall and two lost records",
        interruptions=replace(RESTARTED, stall=Stall(ratio=1.2, lost=(1, 2), after_step=3, after_ratio=0.02)),
    ),
    **_named(
        healthy,
        name="two stalls and a lost record",
        interruptions=replace(RESTARTED, stall=Stall(ratio=1.0, steps=2, lost=(2,), after_step=3)),
    ),
    **_named(healthy, name="accumulation", imbalance=Imbalance(accumulation=0.25)),
    **_named(healthy, name="batch ramp", imbalance=Imbalance(ramp_steps=(50, 100, 150))),
    **_named(healthy, name="gradual ramp", imbalance=Imbalance(ramp_rows=120)),
    **_named(
        healthy,
        name="batch ramp, one loader a group, no bytes",
        imbalance=replace(_LOADING, ramp_steps=(50, 100, 150), ramp_ratio=0.5, bytes_known=False),
    ),
    **_named(healthy, name="gradual ramp, no bytes", imbalance=Imbalance(ramp_rows=120, bytes_known=False)),
    **_named(healthy, name="attention windows", imbalance=_WINDOWS),
    **_named(healthy, name="attention windows, job noise 7 %", imbalance=_WINDOWS, noise=_NOISY_JOB),
    **_named(healthy, name="attention windows, no FLOPs", imbalance=replace(_WINDOWS, flops_known=False)),
    **_named(healthy, name="long sequences", imbalance=Imbalance(sequence_sigma=0.20)),
    **_named(healthy, name="experts, no tokens", shapes=EXPERTS, imbalance=replace(_EXPERTS_HOT, tokens_known=False)),
    **_named(healthy, name="routed experts, no tokens", shapes=EXPERTS, imbalance=replace(_ROUTED, tokens_known=False)),
    **_named(healthy, name="gc of all at once", interruptions=replace(RESTARTED, collection_every=11)),
    **_named(healthy, name="two restarts", interruptions=_TWICE),
    **_named(healthy, name="missing bursts", interruptions=_LOSING),
    **_named(healthy, name="unsent records", interruptions=replace(RESTARTED, unsent_steps=8)),
    **_named(healthy, name="frozen counter", interruptions=_FROZEN),
    **_named(healthy, name="mad clock", interruptions=_MAD),
    **_named(healthy, name="shrinking", interruptions=replace(RESTARTED, leaving_ranks=4)),
    **_named(healthy, name="growing", interruptions=replace(RESTARTED, joining_ranks=4)),
}

SCENARIOS: dict[str, Make] = {**FAULTS, **HEALTHY}
DEGRADED = ("experts, no tokens", "routed experts, no tokens", "attention windows, no FLOPs")
"""Healthy, but without the column that shows it: must not break, and is no measure of false alarms."""

_OF_NODES = ("slow node", "two slow nodes", "nic of a node")


def names(ranks: int) -> list[str]:
    """Return the scenarios that a job of so many ranks can have: one of a single node has no slow node."""
    return [name for name in SCENARIOS if ranks > 2 * RANKS_PER_NODE or name not in _OF_NODES]
