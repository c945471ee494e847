"""The common input of all sections: the summary, its findings as one list, and which ranks to show."""

from dataclasses import dataclass
from typing import Any

from lockstep.analysis.pictures import Pictures
from lockstep.analysis.report.choice import Choice, choose, focus
from lockstep.analysis.report.findings import FindingCard, findings_of, headline, named_ranks
from lockstep.analysis.report.parts import Rank, Summary, summary_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportView:
    """`top` is the finding of the headline, `named` the ranks to look at first, `choice` the ranks with an account."""

    summary: Summary
    findings: tuple[FindingCard, ...]
    top: FindingCard | None
    named: tuple[int, ...]
    choice: Choice
    pictures: Pictures | None = None

    @property
    def first(self) -> frozenset[int]:
        """Return the ranks of the headline, unless they are all: then none stands out."""
        ranks = frozenset(self.top.ranks) if self.top is not None else frozenset[int]()
        return ranks if len(ranks) < len(self.summary.ranks) else frozenset()

    def focus(self, ranks: list[Rank], count: int) -> list[Rank]:
        """Return the few of `ranks` that are looked at closely."""
        return focus(ranks, self.named, self.choice.usual, count)


def view_of(stored: dict[str, Any], pictures: Pictures | None = None) -> ReportView:
    """Return what the sections need of a summary, and of what was drawn from its traces."""
    summary = summary_of(stored)
    findings = findings_of(summary)
    top = headline(findings)
    named = tuple(named_ranks([top, *findings] if top else findings, len(summary.ranks)))
    return ReportView(
        summary=summary,
        findings=tuple(findings),
        top=top,
        named=named,
        choice=choose([rank for rank in summary.ranks if rank.account is not None], named),
        pictures=pictures,
    )
