"""Which configuration and thresholds are in force, and how they change while runs go on.

Pure: no file, no socket, no clock. Layers, the later one wins: the defaults of `policy.py`, the configuration, changes
over HTTP for all runs, changes over HTTP for one. A change is planned first, which checks all of it, and committed once
it has been kept: half a change is never in force.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from coordinator.settings.config import LIVE_KEYS
from coordinator.settings.policy import Policy
from coordinator.settings.thresholds import Value, apply, catalogue, check_order, check_value, value_of
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.metrics import POLICY_SOURCES

if TYPE_CHECKING:
    from coordinator.settings.config import CoordinatorConfig
    from coordinator.settings.specs import SpecText

_log = logging.getLogger(__name__)

_RUNS_MAX = 1000  # of which changes are kept, for they outlive their runs

ALL_RUNS = ""
"""Stands for every run where a run's name is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChange:
    """One threshold that has another value now, for one run or for all."""

    run: str
    name: str
    before: Value
    after: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPlan:
    """What a run's (or all runs') changes over HTTP will be; checked, not in force."""

    run: str
    overrides: dict[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadResult:
    """What came of reading the configuration again, keys by name."""

    applied: tuple[str, ...]
    needs_restart: tuple[str, ...]
    changes: tuple[PolicyChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All that is read at start and again at a reload: the configuration and what lies in files that it names."""

    config: "CoordinatorConfig"
    policy: Policy
    token: str
    specs: "Mapping[str, SpecText]" = field(default_factory=dict)


class Control:
    """`config`, `token`, `specs` (of files) and `policy(run)` are in force; `changes` counts by source since the start.

    `kept` holds the changes over HTTP from before a restart, by run. What this version does not know of them, or what
    the configuration contradicts by now, is left out with a warning: a coordinator that watches with its configured
    thresholds is worth more than one that does not start.
    """

    def __init__(self, settings: Settings, kept: Mapping[str, Mapping[str, Any]], now_s: float) -> None:
        self.config = settings.config
        self.token = settings.token
        self.specs = settings.specs
        self.changes: Counter[str] = Counter(dict.fromkeys(POLICY_SOURCES, 0))
        self.reload_ok = True
        self.reload_unix_s = now_s
        self._base = settings.policy
        self._overrides: dict[str, dict[str, Value]] = {}
        self._policies: dict[str, Policy] = {}
        for run in sorted(kept):  # those for all runs come first
            self._restore(run, kept[run])

    def policy(self, run: str = ALL_RUNS) -> Policy:
        """Return the thresholds of a run, or those of every run that has none of its own."""
        if run not in self._overrides:
            run = ALL_RUNS
        if run not in self._policies:
            self._policies[run] = self._layered(self._base, self._overrides, run)
        return self._policies[run]

    def overrides(self, run: str = ALL_RUNS) -> dict[str, Value]:
        """Return what was changed over HTTP for one run, or for all."""
        return dict(self._overrides.get(run, {}))

    @property
    def runs_changed(self) -> list[str]:
        """Runs that have thresholds of their own."""
        return sorted(run for run in self._overrides if run != ALL_RUNS)

    def describe(self, run: str = ALL_RUNS) -> list[dict[str, Any]]:
        """Return every threshold with its value, default, source (default, file, api, run), unit, range and reason."""
        policy, own, all_runs = self.policy(run), self.overrides(run), self.overrides()
        described = []
        for name, known in catalogue().items():
            configured = "default" if value_of(self._base, name) == known.default else "file"
            source = "run" if run != ALL_RUNS and name in own else "api" if name in all_runs else configured
            described.append(
                {
                    "name": name,
                    "value": value_of(policy, name),
                    "default": known.default,
                    "source": source,
                    "unit": known.unit,
                    "least": known.low,
                    "greatest": known.high,
                    "can_change": known.is_live,
                    "reason": known.reason,
                }
            )
        return described

    def plan(self, values: Mapping[str, Any], *, run: str = ALL_RUNS, where: str) -> PolicyPlan:
        """Return the plan of setting some thresholds; None takes a threshold's change back.

        Raises
        ------
        ConfigError
            Any of them cannot be: unknown, wrong, laid out at the start of a run, or against another threshold.
        """
        merged = self.overrides(run)
        for name, value in values.items():
            # A change is taken back by name alone; the default stands in for its value, so that the name is checked.
            known = catalogue().get(name)
            checked = check_value(name, known.default if value is None and known else value, where=where)
            if value is None:
                merged.pop(name, None)
                continue
            if known is not None and not known.is_live:
                raise ConfigError(f"{where}: {name}: got {value}, expected no change: it is laid out when a run begins")
            if run != ALL_RUNS and name == "scope.runs":
                raise ConfigError(f"{where}: {name}: got {value}, expected it among the thresholds of all runs")
            merged[name] = checked
        if run not in self._overrides and len(self._overrides) > _RUNS_MAX:
            raise ConfigError(f"{where}: got another run, expected thresholds of their own for at most {_RUNS_MAX}")
        plan = PolicyPlan(run=run, overrides=merged)
        self._check(self._base, self._with(plan), where)
        return plan

    def commit(self, plan: PolicyPlan, *, who: str) -> tuple[PolicyChange, ...]:
        """Put a plan into force; return what is different now, of its run or of all."""
        before = self.policy(plan.run)
        self._overrides = self._with(plan)
        self._policies.clear()
        return self._log_changes(_differences(before, self.policy(plan.run), plan.run), "api", who)

    def reconfigure(self, settings: Settings, *, who: str, now_s: float) -> ReloadResult:
        """Take another configuration; what cannot change while running stays as it is, and is named.

        Raises
        ------
        ConfigError
            A change over HTTP contradicts it; nothing was changed.
        """
        self._check(settings.policy, self._overrides, "policy with the changes over HTTP")
        old, new = self.config, settings.config
        other = [item.name for item in fields(old) if getattr(old, item.name) != getattr(new, item.name)]
        stays = tuple(name for name in other if name not in LIVE_KEYS)
        before = self.policy()
        self.config = replace(new, **{name: getattr(old, name) for name in stays})
        self.token, self._base, self.specs = settings.token, settings.policy, settings.specs
        self._policies.clear()
        self.reload_ok, self.reload_unix_s = True, now_s
        changes = self._log_changes(_differences(before, self.policy(), ALL_RUNS), "file", who)
        return ReloadResult(
            applied=tuple(name for name in other if name in LIVE_KEYS), needs_restart=stays, changes=changes
        )

    def reload_failed(self) -> None:
        """Remember that the configuration could not be read again; what is in force stays."""
        self.reload_ok = False

    def _restore(self, run: str, values: Mapping[str, Any]) -> None:
        taken: dict[str, Value] = {}
        for name, value in values.items():
            where = f"kept policy of {run or 'all runs'}"
            try:
                checked = check_value(name, value, where=where)
                self._check(self._base, {**self._overrides, run: {**taken, name: checked}}, where)
            except ConfigError as error:
                _log.warning("%s; it is left out", error)
                continue
            taken[name] = checked
        if taken:
            self._overrides[run] = taken

    def _with(self, plan: PolicyPlan) -> dict[str, dict[str, Value]]:
        others = {run: values for run, values in self._overrides.items() if run != plan.run}
        return {**others, plan.run: plan.overrides} if plan.overrides else others

    def _check(self, base: Policy, overrides: Mapping[str, Mapping[str, Value]], where: str) -> None:
        for run in {ALL_RUNS, *overrides}:
            of_run = f" of run {run}" if run != ALL_RUNS else ""
            check_order(self._layered(base, overrides, run), where=where + of_run)

    def _layered(self, base: Policy, overrides: Mapping[str, Mapping[str, Value]], run: str) -> Policy:
        return apply(apply(base, overrides.get(ALL_RUNS, {})), overrides.get(run, {}))

    def _log_changes(self, changes: tuple[PolicyChange, ...], source: str, who: str) -> tuple[PolicyChange, ...]:
        self.changes[source] += len(changes)
        for change in changes:
            of = f"run {change.run}" if change.run != ALL_RUNS else "all runs"
            _log.info("policy of %s: %s: %r -> %r, by %s", of, change.name, change.before, change.after, who)
        return changes


def _differences(before: Policy, after: Policy, run: str) -> tuple[PolicyChange, ...]:
    pairs = {name: (value_of(before, name), value_of(after, name)) for name in catalogue()}
    return tuple(
        PolicyChange(run=run, name=name, before=old, after=new) for name, (old, new) in pairs.items() if old != new
    )
