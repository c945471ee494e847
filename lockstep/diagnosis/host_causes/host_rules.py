"""Runs all rules of the host over one window of one rank."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lockstep.contracts.finding import Finding, NotEvaluated
from lockstep.contracts.messages import HostSpan
from lockstep.diagnosis.host_causes.collection import Collection, evaluate_collections
from lockstep.diagnosis.host_causes.compilation import evaluate_compilation
from lockstep.diagnosis.host_causes.contention import evaluate_contention
from lockstep.diagnosis.host_causes.data import LoaderSamples, evaluate_fetching, evaluate_loader
from lockstep.diagnosis.host_causes.dispatch import evaluate_dispatch
from lockstep.diagnosis.host_causes.synchronisation import evaluate_synchronisation
from lockstep.diagnosis.host_causes.view import HostView


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCauses:
    """Findings of the rules, the most expensive first, and the rules that could not be evaluated."""

    findings: tuple[Finding, ...]
    not_evaluated: tuple[NotEvaluated, ...]


def evaluate_host(
    view: HostView,
    *,
    noted: Sequence[Collection] | None = None,
    host: HostSpan | None = None,
    loader: LoaderSamples | None = None,
) -> HostCauses:
    """Run all rules; an input that is None was not measured, and rules that need it report that.

    `noted` are the agent's collections, `host` the node's counters, `loader` the agent's samples of torch's DataLoader.
    """
    answers = (
        evaluate_loader(view, loader=loader),
        evaluate_fetching(view),
        evaluate_compilation(view),
        evaluate_dispatch(view),
        evaluate_synchronisation(view),
        evaluate_collections(view, noted=noted),
        evaluate_contention(host, window_ns=view.window_ns, ranks=view.ranks),
    )
    findings = [
        _with_steps(finding) for answer in answers if not isinstance(answer, NotEvaluated) for finding in answer
    ]
    return HostCauses(
        findings=tuple(sorted(findings, key=lambda finding: -(finding.lost_ns or 0))),
        not_evaluated=tuple(answer for answer in answers if isinstance(answer, NotEvaluated)),
    )


def _with_steps(finding: Finding) -> Finding:
    """Return the finding with a sentence on the steps in which it occurs."""
    if finding.steps is None:
        return finding
    occurs, of_all = finding.steps
    more = ": start-up or an occasional event, not a loss in every step" if finding.is_once else ""
    return replace(finding, evidence=(*finding.evidence, f"it occurs in {occurs} of {of_all} steps{more}"))
