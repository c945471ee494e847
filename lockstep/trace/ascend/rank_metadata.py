"""The metadata of a rank's output: profiler_info_N.json, profiler_metadata.json, communication_group.json."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from lockstep.contracts import limits
from lockstep.trace.ascend.collective import group_hash
from lockstep.trace.columns import ABSENT
from lockstep.trace.source import TraceSource

METADATA_MAX_BYTES = 32 << 20
"""Metadata of a rank lists the groups it is in: kilobytes in the recordings, megabytes in the largest jobs."""
GROUPS_MAX = 1 << 16
TEXT_MAX_CHARS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class AscendSettings:
    """Settings of a capture and the job's layout; empty or ABSENT where the files do not record them.

    `groups` are ranks by the hash under which HCCL's rows name a group, `group_names` what the training calls it (tp,
    dp_cp). `environment` holds the variables that torch_npu writes down, `degrees` the job's parallel degrees.
    """

    rank: int = ABSENT
    world_size: int = ABSENT
    level: str = ""
    aic_metrics: str = ""
    torch_npu_version: str = ""
    cann_version: str = ""
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    group_names: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    degrees: dict[str, int] = field(default_factory=dict)


def read_json(path: Path, form: Any, expected: str, max_bytes: int = METADATA_MAX_BYTES) -> Any:
    """Return what a JSON file holds as `form`, plain or gzip.

    Raises
    ------
    MalformedError
        The file cannot be read, is larger than `max_bytes`, or is not of this form.
    """
    source = TraceSource(path, max_bytes=max_bytes)
    content = b"".join(source)
    try:
        return msgspec.json.decode(content, type=form)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise source.malformed("JSON", error, expected) from error


def read_settings(info: Path | None, metadata: Path | None) -> AscendSettings:
    """Return the content of profiler_info_N.json and profiler_metadata.json; a part of another form is left out.

    Raises
    ------
    MalformedError
        A file cannot be read, is too large, or is no JSON object.
    """
    fields = _objects(info) if info else {}
    meta = _objects(metadata) if metadata else {}
    config = _dict(_dict(fields.get("config")).get("experimental_config"))
    job = _dict(meta.get("distributed_args"))
    groups, names = _groups(_dict(meta.get("parallel_group_info")))
    return AscendSettings(
        rank=_count(fields.get("rank_id"), _count(job.get("rank"))),
        world_size=_count(job.get("world_size")),
        level=_text(config.get("_profiler_level")),
        aic_metrics=_text(config.get("_aic_metrics")),
        torch_npu_version=_text(fields.get("torch_npu_version")),
        cann_version=_text(fields.get("cann_version")),
        groups=groups,
        group_names=names,
        environment={_text(key): _text(value) for key, value in _dict(meta.get("ENV_VARIABLES")).items()},
        degrees={_text(key): value for key, value in job.items() if key.endswith("_size") and type(value) is int},
    )


def _objects(path: Path) -> dict[str, Any]:
    fields: dict[str, Any] = read_json(path, dict[str, Any], "an object")
    return fields


def _groups(listed: dict[str, Any]) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    groups: dict[str, tuple[int, ...]] = {}
    names: dict[str, str] = {}
    for group_id, fields in list(listed.items())[:GROUPS_MAX]:
        ranks = _dict(fields).get("global_ranks")
        if isinstance(ranks, list) and ranks and all(type(rank) is int for rank in ranks) and _plausible(ranks):
            key = group_hash(group_id[:TEXT_MAX_CHARS])
            groups[key] = tuple(ranks)
            names[key] = _text(fields.get("group_name"))
    return groups, names


def _plausible(ranks: Any) -> bool:
    return len(ranks) <= limits.WORLD_SIZE_MAX and all(0 <= rank < limits.WORLD_SIZE_MAX for rank in ranks)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value[:TEXT_MAX_CHARS] if isinstance(value, str) else ""


def _count(value: Any, otherwise: int = ABSENT) -> int:
    return value if type(value) is int and 0 <= value <= limits.WORLD_SIZE_MAX else otherwise
