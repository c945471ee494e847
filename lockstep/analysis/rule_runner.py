"""Runs the parts of an analysis independently: a part that cannot be evaluated leaves a reason and nothing else."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from lockstep.contracts.errors import LockstepError
from lockstep.contracts.finding import Finding, NotEvaluated

_Answer = TypeVar("_Answer")


class RuleRunner:
    """Findings of one rank's rules, and rules that were not evaluated; all `findings` name that rank."""

    def __init__(self, rank: int) -> None:
        self.findings: list[Finding] = []
        self.not_evaluated: list[NotEvaluated] = []
        self._rank = rank

    def of(self, part: str, answer: Callable[[], _Answer]) -> _Answer | None:
        """Return the result of `answer`, None if it refuses its input."""
        try:
            return answer()
        except LockstepError as error:
            self.not_evaluated.append(NotEvaluated(rule=part, reason=str(error)))
            return None

    def ask(self, rule: str, evaluate: Callable[[], list[Finding] | NotEvaluated]) -> None:
        """Evaluate a rule and add its result."""
        answer = self.of(rule, evaluate)
        if isinstance(answer, NotEvaluated):
            self.not_evaluated.append(answer)
        elif answer is not None:
            self.extend(answer, ())

    def extend(self, findings: Sequence[Finding], not_evaluated: Sequence[NotEvaluated]) -> None:
        """Add the results of several rules."""
        self.findings += [replace(each, ranks=(self._rank,)) for each in findings]
        self.not_evaluated += not_evaluated
