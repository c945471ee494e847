"""Builds the model, the schedule and the statements of a strategy tree from checked values."""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from math import isfinite
from pathlib import Path as FilePath
from typing import Any

from lockstep.contracts.errors import ConfigError, MalformedError
from lockstep.contracts.yaml_text import Path, Places
from lockstep.simulator.models.attention import LatentAttention
from lockstep.simulator.models.model import BATCH, MIXED, ModelSpec, Operator, Precision
from lockstep.simulator.models.transformers import gpt, llama, moe
from lockstep.simulator.models.vision import from_profile, resnet50, vgg19
from lockstep.simulator.spec.check import nearest
from lockstep.simulator.spec.field import BLOCKS_MAX, ENTRIES_MAX, TYPE
from lockstep.simulator.spec.model_fields import OPERATOR, PRECISIONS
from lockstep.simulator.strategy.mesh import Mesh
from lockstep.simulator.strategy.preset import STAGE_AXES
from lockstep.simulator.strategy.schedule import Schedule
from lockstep.simulator.strategy.tree import REPLICATE, Node, StrategyTree

_BUILDERS: Mapping[str, Callable[..., ModelSpec]] = {
    "gpt": gpt,
    "llama": llama,
    "moe": moe,
    "vgg19": vgg19,
    "resnet50": resnet50,
}
_FILE_CHARS_MAX = 4 * 2**20
_ACTS_MAX = 2_000_000
"""Upper limit of blocks x micro-batches x kinds of ranks; a trillion parameters in 512 micro-batches is 66,560."""


def build_model(values: Mapping[str, Any], places: Places, folder: FilePath | None, *, tp: int = 1) -> ModelSpec:
    """Return the model of the checked section `values`; a file of operators is read from `folder`.

    Vocabularies are padded for the tensor parallel degree `tp`.

    Raises
    ------
    MalformedError
        The operators cannot be used, or the numbers of heads do not divide evenly.
    """
    kind = values[TYPE]
    given = {key: value for key, value in values.items() if key != TYPE}
    given["precision"] = _precision(values["precision"])
    if kind == "operators":
        rows = _operators(values, places, folder)
        model = from_profile(rows, name="operators", precision=given["precision"])
        return replace(model, tokens=values["tokens"])
    kv_heads = values.get("kv_heads")
    if kv_heads is not None and values["heads"] % kv_heads:
        expected = f"a divisor of the {values['heads']} heads"
        raise places.refuse(("model", "kv_heads"), got=kv_heads, expected=expected)
    if kind == "moe" and values["chosen"] > values["experts"]:
        expected = f"at most the {values['experts']} experts"
        raise places.refuse(("model", "chosen"), got=values["chosen"], expected=expected)
    if kind == "moe" and values["dense_layers"]:
        _check_dense_layers(values, places)
    if "vocabulary_multiple" in given:
        multiple = given.pop("vocabulary_multiple")
        if multiple > 1:
            given["vocabulary"] = -(-given["vocabulary"] // (multiple * tp)) * multiple * tp
    if given.get("latent") is not None:
        _check_latent(values, places)
        given["latent"] = LatentAttention(**given["latent"])
    return _BUILDERS[kind](**given)


def _check_dense_layers(values: Mapping[str, Any], places: Places) -> None:
    if values["dense_ffn"] is None:
        raise places.refuse(("model", "dense_ffn"), got="nothing", expected="features, with dense_layers")
    if values["dense_layers"] >= values["layers"]:
        expected = f"fewer than the {values['layers']} layers"
        raise places.refuse(("model", "dense_layers"), got=values["dense_layers"], expected=expected)


def _check_latent(values: Mapping[str, Any], places: Places) -> None:
    """Refuse sizes and norms of heads next to latent attention, which has its own."""
    if values["head_norm"]:
        raise places.refuse(("model", "head_norm"), got="true", expected="false with latent attention")
    for name in ("kv_heads", "head_dim"):
        if values[name] is not None:
            raise places.refuse(("model", name), got=values[name], expected="null with latent attention")


def _precision(value: Any) -> Precision:
    if isinstance(value, str):
        return PRECISIONS[value]
    return replace(MIXED, **{name: each for name, each in value.items() if each is not None})


def _operators(
    values: Mapping[str, Any], places: Places, folder: FilePath | None
) -> list[tuple[str, float, float, float, float]]:
    if (values["file"] is None) == (not values["operators"]):
        raise places.refuse(("model",), got="a file and operators, or none", expected="one of file, operators")
    rows = values["operators"]
    if values["file"] is not None:
        if folder is None:
            expected = "the operators themselves: files are not read here"
            raise places.refuse(("model", "file"), got=repr(values["file"]), expected=expected)
        file = (folder / values["file"]).resolve()
        if not file.is_relative_to(folder.resolve()):
            got = repr(values["file"])
            raise places.refuse(("model", "file"), got=got, expected="a file next to the specification")
        rows = list(_csv_rows(file, values["file"]))
    names = [row["name"] for row in rows]
    twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    if twice is not None or not rows:
        got = "none" if twice is None else f"{twice!r} twice"
        raise places.refuse(("model",), got=f"operators: {got}", expected="operators, each name once")
    return [tuple(row[column] for column in OPERATOR) for row in rows]


def _csv_rows(file: FilePath, where: str) -> Iterator[dict[str, Any]]:
    try:
        with file.open(encoding="utf-8") as stream:
            text = stream.read(_FILE_CHARS_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise MalformedError(
            "operators", where=where, got=getattr(error, "strerror", None) or error, expected="a CSV file"
        ) from None
    lines = text.splitlines()
    if len(text) > _FILE_CHARS_MAX or len(lines) > ENTRIES_MAX + 1:
        got = f"{len(lines)} lines or more"
        raise MalformedError("operators", where=where, got=got, expected=f"at most {ENTRIES_MAX} operators")
    reader = csv.reader(lines)
    header = next(reader, [])
    if [name.strip() for name in header] != list(OPERATOR):
        raise MalformedError("header", where=f"{where}, line 1", got=header, expected=",".join(OPERATOR))
    for row in reader:
        at = f"{where}, line {reader.line_num}"
        if len(row) != len(OPERATOR):
            raise MalformedError("operator", where=at, got=f"{len(row)} columns", expected=len(OPERATOR))
        yield {"name": row[0].strip()} | {
            column: _csv_number(text, column, at) for column, text in zip(list(OPERATOR)[1:], row[1:], strict=True)
        }


def _csv_number(text: str, column: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not (isfinite(number) and number >= 0):
        raise MalformedError(column, where=where, got=repr(text), expected="a number of at least 0")
    return number


def schedule_of(values: Mapping[str, Any]) -> Schedule:
    """Return the schedule of the checked `values`."""
    return Schedule(micro_batches=values["micro_batches"], order=values["schedule"], max_ongoing=values["max_ongoing"])


def apply_overrides(
    tree: StrategyTree, overrides: Sequence[Mapping[str, Any]], stages: Sequence[Mesh], places: Places
) -> None:
    """Apply each override to nodes of `tree`; `stages` are the meshes of the pipeline's stages.

    Raises
    ------
    MalformedError
        There is no such node, or it does not accept a statement.
    """
    for index, override in enumerate(overrides):
        path = ("strategy", "overrides", index)
        pattern = override["node"]
        nodes = [tree.root] if pattern == "." else list(_matching(tree.root, pattern.split(".")))
        if not nodes:
            raise places.refuse((*path, "node"), got=repr(pattern), expected=_near_node(tree.root, pattern))
        if override["schedule"] is not None and pattern != ".":
            expected = "the root (node: .): only it has a schedule"
            raise places.refuse((*path, "schedule"), got=f"a schedule of {pattern}", expected=expected)
        if override["map"] is not None and override["map"] >= len(stages):
            raise places.refuse((*path, "map"), got=override["map"], expected=f"a stage below {len(stages)}")
        if override["map"] is not None and any(node.parent is not tree.root for node in nodes):
            raise places.refuse((*path, "map"), got=f"a stage for {pattern}", expected="a block of the model")
        _check_words(override, nodes, places, path)
        for node in nodes:
            try:
                _describe(node, override, stages)
            except ConfigError as error:
                raise ConfigError(f"{places.of((*path, 'split'))}: {error}") from error


def _check_words(override: Mapping[str, Any], nodes: Sequence[Node], places: Places, path: Path) -> None:
    """Refuse dimensions that no operator at or below `nodes` has, and axes that no mesh has; neither has an effect."""
    modules = (leaf.module for node in nodes for leaf in (node, *node.find("*")))
    dims = {dim for module in modules if isinstance(module, Operator) for dim in module.dims}
    known = (BATCH, *sorted(dims), REPLICATE)
    for dim in override["split"]:
        if dim not in known:
            expected = nearest(dim, known)
            raise places.refuse(
                (*path, "split", dim), got=f"the unknown dimension {dim!r}", expected=expected, key=True
            )
    for word in ("split", "keep"):
        for name, axes in override[word].items():
            unknown = next((axis for axis in axes or () if axis not in STAGE_AXES), None)
            if unknown is not None:
                expected = nearest(unknown, STAGE_AXES)
                raise places.refuse((*path, word, name), got=f"the unknown axis {unknown!r}", expected=expected)


def _describe(node: Node, override: Mapping[str, Any], stages: Sequence[Mesh]) -> None:
    for dim, axes in override["split"].items():
        node.split(**{dim: axes})
    for item, axes in override["keep"].items():
        if axes is not None:
            node.split(item, over=axes)
    if override["map"] is not None:
        node.map(stages[override["map"]])
    if override["schedule"] is not None:
        node.schedule(schedule_of(override["schedule"]))
    if override["recompute"] is not None:
        node.recompute(override["recompute"])


def _matching(node: Node, patterns: Sequence[str]) -> Iterator[Node]:
    for name, child in node.children.items():
        if fnmatchcase(name, patterns[0]):
            if len(patterns) == 1:
                yield child
            else:
                yield from _matching(child, patterns[1:])


def _near_node(root: Node, pattern: str) -> str:
    """Return the text that names the nearest node for the first part of `pattern` without a match."""
    parts = pattern.split(".")[:16]
    for length in range(1, len(parts) + 1):
        if not any(_matching(root, parts[:length])):
            above = [root] if length == 1 else list(_matching(root, parts[: length - 1]))
            names = tuple(dict.fromkeys(name for node in above for name in node.children))
            return f"for {parts[length - 1]!r} {nearest(parts[length - 1], names)}" if names else "a node above"
    return "a node"


def check_size(model: ModelSpec, schedule: Schedule, sick: int, places: Places) -> None:
    """Refuse jobs whose simulation takes minutes and gigabytes: too many blocks x micro-batches x kinds of ranks."""
    blocks = len(model.blocks)
    ops = blocks * schedule.micro_batches * (1 + sick)
    if blocks > BLOCKS_MAX + 2 or ops > _ACTS_MAX:
        got = f"{blocks} blocks x {schedule.micro_batches} micro-batches x {1 + sick} kinds of ranks"
        raise places.refuse(("strategy", "micro_batches"), got=got, expected=f"a product of at most {_ACTS_MAX}")
