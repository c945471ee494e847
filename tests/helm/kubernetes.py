"""Kubernetes' own schemas, from the package kubernetes-validate, and those of custom resources; each read once a session.

The package's own function reads a schema of megabytes for every object, which is a hundred times the check itself.
"""

import json
from functools import cache
from pathlib import Path

import jsonschema
import kubernetes_validate
import yaml
from referencing import Registry, Resource

OPERATOR = "monitoring.coreos.com/v1"
OLDEST, NEWEST, SIDECARS_SINCE, POLICIES_SINCE = "1.25", "1.37", "1.29", "1.36"

_SCHEMAS = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
_OPERATOR_SCHEMAS = Path(__file__).parent / "data"
_CUSTOM = yaml.safe_load((_OPERATOR_SCHEMAS / "custom_resources.yaml").read_text())


def check(item: dict, version: str) -> None:
    """Refuse an object that this version of Kubernetes, or its operator, does not take; unknown fields are refused.

    Raises
    ------
    jsonschema.ValidationError
        What is wrong, and where.
    """
    _validator(item["apiVersion"], item["kind"], version).validate(item)


@cache
def _validator(api_version: str, kind: str, version: str) -> jsonschema.Draft202012Validator:
    if api_version == OPERATOR:
        return jsonschema.Draft202012Validator(json.loads((_OPERATOR_SCHEMAS / f"{kind}.schema.json").read_text()))
    if f"{api_version} {kind}" in _CUSTOM["$defs"]:
        members = {name: {"type": "string"} for name in ("apiVersion", "kind")}
        members |= {
            "metadata": {"$ref": "#/$defs/metadata"},
            "spec": {"$ref": f"#/$defs/{_pointer(api_version, kind)}"},
        }
        schema = _CUSTOM | {"properties": members, "required": [*members], "additionalProperties": False}
        return jsonschema.Draft202012Validator(schema, registry=_definitions(version))
    group, slash, number = api_version.rpartition("/")
    name = f"{kind.lower()}-{group.partition('.')[0]}{'-' if slash else ''}{number}.json"
    schema = json.loads((_folder(version) / name).read_text())
    registry = Resource.from_contents(schema) @ _definitions(version)
    return jsonschema.Draft202012Validator(schema, registry=registry)


def _pointer(api_version: str, kind: str) -> str:
    return f"{api_version} {kind}".replace("/", "~1").replace(" ", "%20")


@cache
def _definitions(version: str) -> Registry:
    return Resource.from_contents(json.loads((_folder(version) / "_definitions.json").read_text())) @ Registry()


def _folder(version: str) -> Path:
    (folder,) = _SCHEMAS.glob(f"v{version}.*-local-strict")
    return folder
