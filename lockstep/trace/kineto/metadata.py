"""The metadata of a Kineto trace, next to its events: rank, groups, devices, names of threads.

All of it is optional: a part of another form is ignored.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from lockstep.contracts import limits
from lockstep.trace.columns import ABSENT, CollectiveArguments, TraceMetadata

PART_MAX_BYTES = 16 << 20
"""Of one key next to the events; the largest real one lists the ranks of some thousand process groups."""
GROUPS_MAX = 1 << 16
TEXT_MAX_CHARS = 256
DEVICES_MAX = 64
VARIABLES_MAX = 256
NETWORK_PREFIXES = ("NCCL_", "RCCL_", "HCCL_", "UCX_", "GLOO_", "TORCH_NCCL_")
"""Variables that concern communication between ranks; all others are ignored."""

_NO = msgspec.Raw(b"")
_THREAD = re.compile(r"thread -?\d+ \((.*)\)")
_PLAIN = ("pt_main_thread", "python")  # torch's and Python's names for a thread that no one named
_CALLS = {"cuda": "nvidia", "hip": "amd", "acl": "ascend"}  # prefixes of the runtimes' calls
_VENDORS = {
    "nvidia": re.compile(r"nvidia|tesla|geforce|quadro|\b[abhglv]\d{2,3}\b", re.IGNORECASE),
    "amd": re.compile(r"amd|instinct|radeon|\bmi\d{3}|gfx\d", re.IGNORECASE),
    "ascend": re.compile(r"ascend", re.IGNORECASE),
    "mtia": re.compile(r"mtia", re.IGNORECASE),
}


class Document(msgspec.Struct):
    """Keys next to the events; raw, for another type in one must not cost the trace."""

    distributed: msgspec.Raw = msgspec.field(name="distributedInfo", default=_NO)
    devices: msgspec.Raw = msgspec.field(name="deviceProperties", default=_NO)
    host: msgspec.Raw = msgspec.field(name="host_name", default=_NO)
    cupti: msgspec.Raw = msgspec.field(name="cupti_version", default=_NO)
    cuda: msgspec.Raw = msgspec.field(name="cuda_runtime_version", default=_NO)
    roctracer: msgspec.Raw = msgspec.field(name="roctracer_version", default=_NO)
    hip: msgspec.Raw = msgspec.field(name="hip_runtime_version", default=_NO)
    environment: msgspec.Raw = _NO
    env: msgspec.Raw = _NO
    """Customary names for the variables, where a program gave them to the profiler (`add_metadata_json`)."""


class _Group(msgspec.Struct):
    pg_name: str | int
    ranks: list[int] = []
    pg_desc: Any = ""


class _Distributed(msgspec.Struct):
    backend: Any = ""
    rank: Any = ABSENT
    world_size: Any = ABSENT
    pg_config: Any = None
    nccl_version: Any = ""


class _Device(msgspec.Struct):
    name: str = ""


class _ThreadName(msgspec.Struct):
    name: str


@dataclass(slots=True)
class MetadataBuilder:
    """Collects `TraceMetadata` while a trace is read; of a value that stands twice the last counts."""

    devices: tuple[str, ...] = ()
    backend: str = ""
    rank: int = ABSENT
    world_size: int = ABSENT
    host: str = ""
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    descriptions: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    vendor: str = ""
    thread_names: dict[tuple[object, object], str] = field(default_factory=dict)

    def note_document(self, document: Document) -> None:
        """Add the keys next to the events."""
        host = _read(document.host, str)
        self.host = host[:TEXT_MAX_CHARS] if host else self.host
        devices = _read(document.devices, list[_Device]) or []
        self.devices = tuple(each.name[:TEXT_MAX_CHARS] for each in devices[:DEVICES_MAX]) or self.devices
        self.vendor = (
            next((vendor for vendor, named in _VENDORS.items() if self.devices and named.search(self.devices[0])), "")
            or ("amd" if document.roctracer or document.hip else "")
            or ("nvidia" if document.cupti or document.cuda else "")
            or self.vendor
        )
        self.environment |= network_variables(_read(document.environment, dict) or _read(document.env, dict) or {})
        if distributed := _read(document.distributed, _Distributed):
            self._note_distributed(distributed)

    def note_thread(self, pid: object, tid: object, arguments: msgspec.Raw) -> None:
        """Add a thread's name; a name given by the training takes precedence over the default."""
        metadata = _read(arguments, _ThreadName)
        if metadata is None:
            return
        thread = _THREAD.fullmatch(metadata.name)
        name = (thread[1] if thread else metadata.name).strip()[:TEXT_MAX_CHARS]
        if name and (not name.startswith(_PLAIN) or (pid, tid) not in self.thread_names):
            self.thread_names[pid, tid] = name

    def with_ranks(self, collectives: dict[int, CollectiveArguments]) -> dict[int, CollectiveArguments]:
        """Return collectives with the ranks of their groups, which torch cuts short in large groups' arguments."""
        full = {
            each: replace(each, ranks=self.groups[each.group])
            for each in set(collectives.values())
            if each.ranks is None and each.group in self.groups
        }
        return {event: full.get(each, each) for event, each in collectives.items()}

    def build(
        self, *, names: Sequence[str], categories: Sequence[str], has_device_work: bool, clock_is_shared: bool
    ) -> TraceMetadata:
        """Return all, the vendor by names and categories (as the file has them) where nothing else names it."""
        return TraceMetadata(
            vendor=self.vendor or _vendor(names, categories, has_device_work=has_device_work),
            devices=self.devices,
            backend=self.backend,
            rank=self.rank,
            world_size=self.world_size,
            host=self.host,
            groups=self.groups,
            group_descriptions=self.descriptions,
            environment=self.environment,
            versions=self.versions,
            clock_is_shared=clock_is_shared,
        )

    def _note_distributed(self, metadata: _Distributed) -> None:
        self.backend = metadata.backend[:TEXT_MAX_CHARS] if isinstance(metadata.backend, str) else self.backend
        self.rank = _count(metadata.rank, self.rank)
        self.world_size = _count(metadata.world_size, self.world_size)
        if isinstance(metadata.nccl_version, str) and metadata.nccl_version:
            self.versions["NCCL"] = metadata.nccl_version[:TEXT_MAX_CHARS]
        for group in _groups(metadata.pg_config):
            if len(self.groups) < GROUPS_MAX and all(0 <= rank < limits.WORLD_SIZE_MAX for rank in group.ranks):
                name = str(group.pg_name)[:TEXT_MAX_CHARS]
                self.groups[name] = tuple(group.ranks)
                if isinstance(group.pg_desc, str) and group.pg_desc:
                    self.descriptions[name] = group.pg_desc[:TEXT_MAX_CHARS]


def network_variables(metadata: Mapping[Any, Any]) -> dict[str, str]:
    """Return the variables that steer collectives and the network, values cut; an empty one is known not to be set."""
    pairs = ((name, value) for name, value in metadata.items() if isinstance(name, str) and isinstance(value, str))
    found = [(name, value) for name, value in pairs if name.startswith(NETWORK_PREFIXES)]
    return {name[:TEXT_MAX_CHARS]: value[:TEXT_MAX_CHARS] for name, value in found[:VARIABLES_MAX]}


def _vendor(names: Sequence[str], categories: Sequence[str], *, has_device_work: bool) -> str:
    if any(each.lower().startswith("mtia") for each in categories):
        return "mtia"
    if not has_device_work:
        return "cpu"
    calls = {prefix: sum(each.startswith(prefix) for each in names) for prefix in _CALLS}
    most = max(calls, key=lambda prefix: calls[prefix])
    return _CALLS[most] if calls[most] else ""


def _groups(listed: object) -> Iterable[_Group]:
    for each in listed if isinstance(listed, list) else ():
        try:
            group = msgspec.convert(each, _Group)
        except msgspec.ValidationError:
            continue
        if group.ranks:
            yield group


def _count(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and 0 <= value <= limits.WORLD_SIZE_MAX else otherwise


def _read(raw: msgspec.Raw, form: Any) -> Any:
    """Return what `raw` holds, or None if it is missing, of another form or too large."""
    try:
        text = bytes(raw)
        return msgspec.json.decode(text, type=form) if 0 < len(text) <= PART_MAX_BYTES else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
