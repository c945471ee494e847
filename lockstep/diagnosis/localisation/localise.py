# ruff: noqa: N803, N806, N815  (names of arrays end in their shape, see the legend below)
"""Finds abnormal functions in the patterns of all workers: PerfTracker, section 4.3, by the robust or the paper's rule.

Shape suffixes: D dimensions, W workers, C workers chosen for one function.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts.errors import LocalError
from lockstep.diagnosis.localisation.abnormal import AbnormalFunction, Difference, Localisation, ReferenceKind
from lockstep.diagnosis.localisation.expected import ExpectedRange, expected_of
from lockstep.diagnosis.localisation.limits import EFFECT_BETA, EFFECT_RATIO, EFFECT_USE
from lockstep.diagnosis.localisation.matrix import BETA, DIMENSIONS, MU, Flags, Function, PatternMatrix, Single
from lockstep.diagnosis.localisation.outlier_ranks import GroupOutliers, Groups, outlier_ranks
from lockstep.diagnosis.localisation.paper_rule import SEED, AbnormalWorkers, evaluate_by_paper, sample_peers
from lockstep.diagnosis.localisation.robust import SAMPLE_MAX, Roles, evaluate_robust, length_limit
from lockstep.trace.patterns import FunctionClass

_NS_PER_S = 1e9
_MANY = 1 << 16  # abnormal workers of one function; above it an unstable sort is used, ten times as fast


class Rule(StrEnum):
    """The rule by which workers are compared with each other."""

    ROBUST = "robust"
    PRINTED = "printed"
    """Equations 8 to 11 literally, for comparison with the paper; `robust.py` lists its faults."""


def localise(
    matrix: PatternMatrix,
    *,
    rule: Rule = Rule.ROBUST,
    roles: NDArray[np.int64] | None = None,
    groups: Mapping[str, Groups] | None = None,
    expected: Mapping[FunctionClass, ExpectedRange] | None = None,
) -> Localisation:
    """Return which functions behave abnormally on which workers.

    `roles` are codes of what each worker does (its pipeline stage), int64 of shape (n_workers,), None if all do the
    same or is unknown; the printed rule knows none. `groups` state by kind of communication domain (tp, dp, ...) in
    which group each worker is, `NO_GROUP` for none. `expected` are those of `expected_of` unless they are given.

    Raises
    ------
    LocalError
        `roles` or `groups` are not as many as workers.
    """
    groups = groups or {}
    for name, codes in (({"roles": roles} if roles is not None else {}) | dict(groups)).items():
        if codes.shape != (len(matrix),):
            raise LocalError(f"{name}: got shape {codes.shape}, expected one for each of {len(matrix)} workers")
    found = []
    expected = expected or expected_of({function.kind for function in matrix.functions})
    evaluator = _RuleEvaluator(matrix, rule, roles, groups, expected)
    for at, function in enumerate(matrix.functions if len(matrix) else []):
        abnormal = evaluator.evaluate(function, matrix.values_FDW[at])
        if abnormal is not None:
            found.append(abnormal)
    return Localisation(
        abnormal=tuple(sorted(found, key=lambda each: -each.lost_s)),
        workers=len(matrix),
        compared=len(matrix.functions),
        left_out=matrix.left_out,
        has_peers=evaluator.has_peers,
    )


class _Chosen(NamedTuple):
    """The abnormal workers of one function, and the reference of each."""

    worker: NDArray[np.int64]
    values_DC: Single
    reference_DC: Single
    unexpected_C: Flags
    unlike_C: Flags


class _RuleEvaluator:
    """One rule with the data of all workers that it needs."""

    def __init__(
        self,
        matrix: PatternMatrix,
        rule: Rule,
        role_W: NDArray[np.int64] | None,
        groups: Mapping[str, Groups],
        expected: Mapping[FunctionClass, ExpectedRange],
    ) -> None:
        self._matrix, self._rule, self._groups, self._expected = matrix, rule, groups, expected
        self._roles = Roles(role_W if rule is Rule.ROBUST else None, len(matrix))
        self._length = length_limit(len(matrix) * len(matrix.functions))
        self._peer_N = sample_peers(len(matrix))
        self.has_peers = bool(len(matrix)) and int(np.bincount(self._roles.index_W).max()) > 1

    def evaluate(self, function: Function, values_DW: Single) -> AbnormalFunction | None:
        """Return what is abnormal about one function, None if nothing is."""
        expected = self._expected[function.kind]
        if self._rule is Rule.PRINTED:
            verdict, references_RD = evaluate_by_paper(values_DW, expected, self._peer_N), None
        else:
            verdict, references = evaluate_robust(values_DW, expected, function.kind, self._roles, self._length)
            references_RD = np.array([each.values for each in references], np.float32)
        worker = np.flatnonzero(verdict.unexpected | verdict.unlike)
        if not len(worker):
            return None
        if references_RD is None:
            references_RD = np.array([[_median(values_W) for values_W in values_DW]], np.float32)
        chosen = _Chosen(
            worker,
            values_DW[:, worker],
            references_RD[self._roles.index_W[worker]].T,
            verdict.unexpected[worker],
            verdict.unlike[worker],
        )
        return self._abnormal(function, chosen, expected, self._outliers(function, values_DW, verdict))

    def _outliers(self, function: Function, values_DW: Single, verdict: AbnormalWorkers) -> GroupOutliers:
        """Search inside groups for the outlier; only workers that communicate slow others down in the same function."""
        if self._rule is Rule.PRINTED or function.kind is not FunctionClass.COLLECTIVE:
            return GroupOutliers()
        return outlier_ranks(values_DW, verdict.unlike | verdict.unexpected, self._groups)

    def _abnormal(
        self, function: Function, chosen: _Chosen, expected: ExpectedRange, outliers: GroupOutliers
    ) -> AbnormalFunction:
        beta_C = chosen.values_DC[BETA]
        over_peers_C = (beta_C - chosen.reference_DC[BETA]) * chosen.unlike_C
        over_range_C = (beta_C - np.float32(expected.beta[1])) * chosen.unexpected_C
        window_s_C = (self._matrix.window_ns_W[chosen.worker] / _NS_PER_S).astype(np.float32)
        lost_s_C = np.maximum(over_peers_C, over_range_C) * window_s_C
        order = np.argsort(-lost_s_C, kind="stable" if len(lost_s_C) < _MANY else None)
        rank_C = self._matrix.rank_W[chosen.worker]
        return AbnormalFunction(
            function=function,
            ranks=rank_C[order],
            unexpected=rank_C[order][chosen.unexpected_C[order]],
            unlike=rank_C[order][chosen.unlike_C[order]],
            outliers=self._matrix.rank_W[outliers.worker],
            outlier_by=outliers.by,
            group_kind=outliers.group_kind,
            differences=(*_against_peers(chosen), *_against_range(chosen, expected)),
            lost_s=max(0.0, float(lost_s_C.max())),
        )


def _median(values_W: Single) -> float:
    """Return the median of the measured values; for many workers that of a fixed sample."""
    if len(values_W) > SAMPLE_MAX:
        values_W = values_W[np.random.default_rng(SEED).integers(0, len(values_W), SAMPLE_MAX)]
    measured = values_W[~np.isnan(values_W)]
    return float(np.median(measured)) if len(measured) else np.nan


def _against_peers(chosen: _Chosen) -> list[Difference]:
    """Return in which dimensions, and in which direction, workers differ from their peers by a relevant effect."""
    found = []
    for dimension, name in enumerate(DIMENSIONS):
        values_C, reference_C = chosen.values_DC[dimension], chosen.reference_DC[dimension]
        least = EFFECT_BETA.value if dimension < MU else EFFECT_USE.value
        effect_C = np.maximum(EFFECT_RATIO.value * reference_C, least)
        for side in (1, -1):
            differs_C = chosen.unlike_C & (side * (values_C - reference_C) > effect_C)
            if differs_C.any():
                found.append(_difference(name, ReferenceKind.PEERS, values_C[differs_C], reference_C[differs_C]))
    return found


def _against_range(chosen: _Chosen, expected: ExpectedRange) -> list[Difference]:
    found = []
    for values_C, name, (least, most) in zip(chosen.values_DC, DIMENSIONS, expected.box, strict=True):
        sides = (most, values_C > np.float32(most)), (least, values_C < np.float32(least))
        for limit, beyond_C in sides:
            outside_C = chosen.unexpected_C & beyond_C
            if outside_C.any():
                found.append(_difference(name, ReferenceKind.EXPECTED, values_C[outside_C], np.float32(limit)))
    return found


def _difference(name: str, against: ReferenceKind, values_C: Single, reference_C: Single | np.float32) -> Difference:
    return Difference(
        dimension=name,
        against=against,
        count=len(values_C),
        value=float(np.median(values_C)),
        reference=float(np.median(reference_C)),
    )
