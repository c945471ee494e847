"""Parts of an analysis side by side: one that cannot answer leaves a reason, and costs the others nothing."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from lockstep.contracts.errors import LockstepError
from lockstep.contracts.finding import Finding, NotJudged

_Answer = TypeVar("_Answer")


class RuleRunner:
    """What rules about one rank found, and what could not be judged; `findings` all name that rank."""

    def __init__(self, rank: int) -> None:
        self.findings: list[Finding] = []
        self.not_judged: list[NotJudged] = []
        self._rank = rank

    def of(self, part: str, answer: Callable[[], _Answer]) -> _Answer | None:
        """Return what `answer` returns, None if it refuses its input."""
        try:
            return answer()
        except LockstepError as error:
            self.not_judged.append(NotJudged(rule=part, reason=str(error)))
            return None

    def ask(self, rule: str, judge: Callable[[], list[Finding] | NotJudged]) -> None:
        """Add the answer of a rule."""
        answer = self.of(rule, judge)
        if isinstance(answer, NotJudged):
            self.not_judged.append(answer)
        elif answer is not None:
            self.take(answer, ())

    def take(self, findings: Sequence[Finding], not_judged: Sequence[NotJudged]) -> None:
        """Add the answers of several rules."""
        self.findings += [replace(each, ranks=(self._rank,)) for each in findings]
        self.not_judged += not_judged
