"""A job as specified by a file (model, strategy, cluster with its health, batch), and the same job with a change.

`load_spec(text, name)` reads it; then use `spec.forecast()`, `spec.changed("strategy.micro_batches", 16).forecast()`
or `spec.healed("network/3").forecast()`.
"""

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path as FilePath
from typing import Any

from lockstep.contracts.errors import ConfigError
from lockstep.contracts.yaml_text import Path, Places, read_yaml
from lockstep.simulator.calibration.calibrate import with_parameters
from lockstep.simulator.forecast import CompiledStep, Forecast
from lockstep.simulator.hardware.cluster import Cluster
from lockstep.simulator.lowering.context import ContextParallelism
from lockstep.simulator.models.model import ModelSpec
from lockstep.simulator.simulate import Options, compile_job, simulate
from lockstep.simulator.spec.calibration import CalibrationResult, build_calibration, with_overhead
from lockstep.simulator.spec.check import check, nearest
from lockstep.simulator.spec.cluster import RANK_LEVEL, build_cluster
from lockstep.simulator.spec.fields import SPECIFICATION
from lockstep.simulator.spec.model import apply_overrides, build_model, check_size, schedule_of
from lockstep.simulator.strategy.mesh import Mesh
from lockstep.simulator.strategy.preset import Degrees, preset
from lockstep.simulator.strategy.schedule import Schedule
from lockstep.simulator.strategy.tree import StrategyTree


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """A job. `document` is the content of the file as plain values, `checked` the same with all defaults filled in.

    `cluster` has the calibrated figures and the health. Only `load_spec` and the job's own methods create instances.
    """

    name: str
    document: Mapping[str, Any]
    checked: Mapping[str, Any]
    places: Places
    folder: FilePath | None
    model: ModelSpec
    degrees: Degrees
    schedule: Schedule
    cluster: Cluster
    batch: int
    options: Options
    calibration: CalibrationResult | None

    def tree(self) -> StrategyTree:
        """Return a new strategy tree of the job, overrides applied; the caller owns it.

        Raises
        ------
        LockstepError
            The strategy does not fit the model, or an override names an unknown node, dimension or axis.
        """
        tree = preset(self.model, self.degrees, self.schedule)
        overrides = self.checked["strategy"]["overrides"]
        if overrides:
            apply_overrides(tree, overrides, self._stages, self.places)
        return tree

    @cached_property
    def _stages(self) -> list[Mesh]:
        """The mesh of each pipeline stage, with the layout of `preset`."""
        blocks = preset(self.model, self.degrees, self.schedule).root.children.values()
        meshes = {block.mesh: None for block in blocks if block.mesh is not None}
        return sorted(meshes, key=lambda mesh: mesh.first)

    def forecast(self) -> Forecast:
        """Return the forecast of a step, with the calibration's error band.

        Raises
        ------
        LockstepError
            The job cannot be simulated; the message has the reason.
        """
        try:
            found = simulate(self.tree(), self.cluster, batch=self.batch, options=self.options)
        except ConfigError as error:
            raise self._at_strategy(error) from error
        if self.calibration is None:
            return found
        return with_overhead(found, self.calibration, core_share=self.cluster.core_share(self.degrees.ranks))

    def compiled(self) -> CompiledStep:
        """Return the graph of a step, for its timeline. Raises as `forecast`."""
        try:
            return compile_job(self.tree(), self.cluster, batch=self.batch, options=self.options)
        except ConfigError as error:
            raise self._at_strategy(error) from error

    def _at_strategy(self, error: ConfigError) -> ConfigError:
        """Return the error of a strategy that does not fit, with its place if a text specified it."""
        is_placed = not self.places.values or str(error).startswith(self.places.name)
        return error if is_placed else ConfigError(f"strategy in {self.places.of(('strategy',))}: {error}")

    def changed(self, path: str, value: Any) -> "JobSpec":
        """Return the job with another value at `path` (`strategy.micro_batches`). Raises as `changed_by`."""
        return self.changed_by({path: value})

    def changed_by(self, changes: Mapping[str, Any]) -> "JobSpec":
        """Return the job with several values changed at once, by path; list indices are numbers.

        Raises
        ------
        LockstepError
            There is no such field, or the changed job is invalid; the message names the field.
        """
        document = deepcopy(dict(self.document))
        for path, value in changes.items():
            try:
                _put(document, path, json.loads(json.dumps(value)))  # as from a file: keys are strings
            except (TypeError, ValueError, RecursionError) as error:
                raise ConfigError(f"value of {path}: got {value!r:.100}, expected a JSON value: {error}") from None
        return _build(document, Places(f"{self.name} as changed"), folder=self.folder, name=self.name, before=self)

    def sick(self) -> tuple[str, ...]:
        """Return the names of degraded elements: links as LEVEL/CHILD, ranks as rank/NUMBER."""
        health = self.checked["cluster"]["health"]
        links = [name for name, share in health["links"].items() if share < 1]
        return (*links, *(f"{RANK_LEVEL}/{rank}" for rank, share in health["ranks"].items() if share < 1))

    def healed(self, *names: str) -> "JobSpec":
        """Return the job with the named links and ranks healthy, without names all of them.

        Raises
        ------
        ConfigError
            No degraded element has that name.
        """
        known = self.sick()
        cluster = self.cluster
        for name in names or known:
            if name not in known:
                expected = nearest(name, known) if known else "nothing: all links and ranks are whole"
                raise ConfigError(f"element to heal in {self.name}: got {name!r}, expected {expected}")
            level_name, _, number = name.partition("/")
            if level_name == RANK_LEVEL:
                cluster = cluster.with_rank(int(number), 1.0)
            else:
                level = [level.name for level in cluster.levels].index(level_name)
                cluster = cluster.with_link(level, int(number), 1.0)
        whole = {key: share for key, share in cluster.health.items() if share < 1}
        speed = {rank: share for rank, share in cluster.speed.items() if share < 1}
        document = deepcopy(dict(self.document))
        checked = deepcopy(dict(self.checked))
        for where in (document["cluster"]["health"], checked["cluster"]["health"]) if known else ():
            _forget(where, names or known)
        return replace(
            self,
            cluster=replace(cluster, health=whole, speed=speed),
            document=document,
            checked=checked,
        )


def load_spec(text: str, name: str, *, folder: FilePath | None = None) -> JobSpec:
    """Return the job that the YAML `text` specifies; `name` is used in messages, files are read from `folder` only.

    Raises
    ------
    LockstepError
        The text is invalid; the message names line, column, field, got, expected and the nearest known name.
    """
    document, places = read_yaml(text, name)
    return _build(document, places, folder=folder, name=name)


def load_fitted_spec(text: str, name: str, calibration: Mapping[str, Any] | None) -> JobSpec:
    """Return the job of a monitored run's specification, with its calibration replaced by a fitted one.

    `calibration` is the section from the fit, None for the specification's own. No files are read.

    Raises
    ------
    LockstepError
        As `load_spec`.
    """
    document, places = read_yaml(text, name)
    if calibration and isinstance(document, dict):
        document = {**document, "calibration": json.loads(json.dumps(calibration))}
    return _build(document, places, folder=None, name=name)


def _build(
    document: Any, places: Places, *, folder: FilePath | None, name: str, before: JobSpec | None = None
) -> JobSpec:
    checked = check(document, SPECIFICATION, places)
    strategy = checked["strategy"] = _with_micro_batches(checked, places)
    tp = strategy["tp"]
    same_model = (
        before is not None
        and before.checked["model"] == checked["model"]
        and (before.degrees.tp == tp or checked["model"].get("vocabulary_multiple", 1) == 1)
    )
    model = before.model if same_model and before else build_model(checked["model"], places, folder, tp=tp)
    degrees = _degrees(strategy, places)
    stated = [
        each["schedule"] for each in strategy["overrides"] if each["node"] == "." and each["schedule"] is not None
    ]
    schedule = schedule_of(stated[-1] if stated else strategy)
    cluster = build_cluster(checked["cluster"], places)
    check_size(model, schedule, len(cluster.health) + _slow_kinds(cluster, degrees), places)
    if degrees.ranks > cluster.size:
        expected = f"at most the {cluster.size} devices of the cluster"
        raise places.refuse(("strategy",), got=f"{degrees.ranks} ranks (tp x cp x dp x pp)", expected=expected)
    parts = schedule.micro_batches * degrees.dp
    if checked["batch"] % parts:
        expected = f"a multiple of {parts}: {schedule.micro_batches} micro-batches x dp {degrees.dp}"
        raise places.refuse(("batch",), got=checked["batch"], expected=expected)
    calibration = None
    if checked["calibration"] is not None:
        calibration = build_calibration(checked["calibration"], cluster, places, folder)
        cluster = with_parameters(cluster, calibration.parameters)
    algorithms = {kind: chosen for kind, chosen in strategy["algorithms"].items() if chosen is not None}
    return JobSpec(
        name=checked["name"] or name,
        document=document,
        checked=checked,
        places=places,
        folder=folder,
        model=model,
        degrees=degrees,
        schedule=schedule,
        cluster=cluster,
        batch=checked["batch"],
        options=Options(
            bucket_bytes=strategy["bucket_bytes"],
            algorithms=algorithms,
            overlap_sends=strategy["overlap_sends"],
            overlap_tensor=strategy["overlap_tensor"],
            late_tensor_sums=strategy["late_tensor_sums"],
            overlap_experts=strategy["overlap_experts"],
            exchange_multiprocessors=strategy["exchange_multiprocessors"],
            overlap_returns=strategy["overlap_returns"],
            context=ContextParallelism(exchange=strategy["context_exchange"], split=strategy["context_split"]),
            live_parameters=strategy["live_parameters"],
            copied_gather_bytes_per_second=strategy["copied_gather_bytes_per_second"],
            backward_prefetch=strategy["backward_prefetch"],
            zero_copy=strategy["zero_copy"],
            gradient_buffer_bytes=strategy["gradient_buffer_bytes"],
        ),
        calibration=calibration,
    )


def _slow_kinds(cluster: Cluster, degrees: Degrees) -> int:
    """Return an upper bound of the number of kinds of ranks due to slow ranks.

    Equally slow ranks of one stage are one kind; in a pipeline, the ranks before and after a slow rank also differ.
    """
    if degrees.pp > 1:
        return min(len(cluster.speed), degrees.dp)
    return len(set(cluster.speed.values()))


def _with_micro_batches(checked: Mapping[str, Any], places: Places) -> Mapping[str, Any]:
    """Return the strategy with the number of micro-batches that follows from `micro_batch_size`, if that is given."""
    strategy: dict[str, Any] = checked["strategy"]
    size = strategy["micro_batch_size"]
    if size is None:
        return strategy
    path = ("strategy", "micro_batch_size")
    if strategy["micro_batches"] > 1:
        got = f"{size} and {strategy['micro_batches']} micro_batches"
        raise places.refuse(path, got=got, expected="one of micro_batch_size, micro_batches")
    if checked["batch"] % (size * strategy["dp"]):
        expected = f"a divisor of the {checked['batch']} samples over dp {strategy['dp']}"
        raise places.refuse(path, got=size, expected=expected)
    return {**strategy, "micro_batches": checked["batch"] // strategy["dp"] // size}


def _degrees(strategy: Mapping[str, Any], places: Places) -> Degrees:
    names = (
        *("tp", "cp", "ep", "expert_tp", "dp", "hsdp_replicas", "pp"),
        *("virtual", "zero", "sequence_parallel", "recompute"),
    )
    try:
        return Degrees(**{name: strategy[name] for name in names})
    except ConfigError as error:
        field_name = str(error).partition(":")[0]
        path: Path = ("strategy", field_name) if field_name in names else ("strategy",)
        raise ConfigError(f"{places.of(path)}: {error}") from error


def _put(document: dict[str, Any], path: str, value: Any) -> None:
    """Put `value` at `path`; missing mappings on the way are created, and checked with the rest later."""
    *above, last = path.split(".")
    at: Any = document
    for part in above:
        if isinstance(at, list) and part.isdecimal() and int(part) < len(at):
            at = at[int(part)]
        elif isinstance(at, dict):
            if not isinstance(at.get(part), dict | list):
                at[part] = {}
            at = at[part]
        else:
            raise ConfigError(f"field to change: got {path!r}, of which {part!r} is no mapping and no place in a list")
    if isinstance(at, list) and last.isdecimal() and int(last) < len(at):
        at[int(last)] = value
    elif isinstance(at, dict):
        at[last] = value
    else:
        raise ConfigError(f"field to change: got {path!r}, expected a field of the specification")


def _forget(health: dict[str, Any] | None, names: tuple[str, ...]) -> None:
    """Remove the named elements from a health section."""
    for name in names:
        level_name, _, number = name.partition("/")
        if level_name == RANK_LEVEL:
            ((health or {}).get("ranks") or {}).pop(number, None)
        else:
            ((health or {}).get("links") or {}).pop(name, None)
