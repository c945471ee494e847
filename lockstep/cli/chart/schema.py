"""Generates values.schema.json from values.yaml: a key has the type of its default, and unknown keys are refused.

What a default does not show (choices, ranges, patterns, list items) is defined here by path or by name.
"""

import json
from typing import Any

import yaml

from alerts import rules
from alerts.overrides import overrides_schema, threshold_schema
from coordinator.settings.thresholds import PolicyThreshold, catalogue
from lockstep.cli.chart.blocks import FORMS
from lockstep.cli.chart.values import ChartValue, read_values
from lockstep.contracts.metrics import LEVELS
from lockstep.contracts.settings import ranges_of

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_WORDS: Schema = {"type": "array", "items": _TEXT}
_OBJECTS: Schema = {"type": "array", "items": {"type": "object"}}
_LABELS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
_FREE: Schema = {"type": "object"}
_FREE_OR_NONE: Schema = {"type": ["object", "null"]}
_PORT: Schema = {"type": "integer", "minimum": 1024, "maximum": 65535}
_PORT_OR_NONE: Schema = {"type": "integer", "minimum": 0, "maximum": 65535}
_LIMIT: Schema = {"type": "integer", "minimum": 0}
_QUANTITY: Schema = {"type": "string", "pattern": "^[0-9]+(\\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$"}
_DURATION: Schema = {"type": "string", "pattern": "^$|^([0-9]+(ms|[smhdwy]))+$"}
_PATH: Schema = {"type": "string", "pattern": "^(/[A-Za-z0-9_][A-Za-z0-9._-]*)+$"}
_PATH_OR_NONE: Schema = {"type": "string", "pattern": "^$|^(/[A-Za-z0-9_][A-Za-z0-9._-]*)+$"}
_NAME: Schema = {"type": "string", "pattern": "^$|^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"}
_ADDRESS_OR_NONE: Schema = {"type": "string", "pattern": "^$|^https?://[^\\s\"'{}]+[^/\\s\"'{}]$"}
_HOST: Schema = {"type": "string", "pattern": "^(\\*\\.)?[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"}
_JOB: Schema = {"type": "string", "pattern": "^[A-Za-z0-9_./:-]+$"}
_USERNAME: Schema = {"type": "string", "pattern": "^[A-Za-z0-9._-]+$"}
_AWAY: Schema = {
    "anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^([0-9]|[1-9][0-9]|100)%$"}]
}

_BY_PATH: dict[str, Schema] = {
    "exporter.config.metrics_level": {"enum": list(LEVELS)},
    "exporter.mode": {"enum": ["daemonset", "sidecar"]},
    "injection.mode": {"enum": ["webhook", "policy"]},
    "injection.policy.apiVersion": {
        "enum": ["admissionregistration.k8s.io/v1", "admissionregistration.k8s.io/v1beta1"]
    },
    "exporter.sharedGroup": {"type": "integer", "minimum": 0, "maximum": 2147483647},
    "exporter.mountPath": _PATH,
    "exporter.hostPath.path": _PATH,
    "exporter.hostPath.spool": _PATH_OR_NONE,
    "exporter.hostPath.prepare.directoryMode": {"type": "string", "pattern": "^[0-7]{3,4}$"},
    "exporter.sidecar.namespaces": {"type": "array", "items": _NAME, "uniqueItems": True},
    "broker.external.port": _PORT_OR_NONE,
    "broker.mosquitto.port": _PORT_OR_NONE,
    "broker.mosquitto.image.tag": _TEXT,
    "broker.mosquitto.allowFrom": _OBJECTS,
    "broker.tls.validDays": {"type": "integer", "minimum": 1, "maximum": 36500},
    "coordinator.service.type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    "coordinator.ingress.host": {"type": "string", "pattern": "^$|" + _HOST["pattern"]},
    "coordinator.httpRoute.hostnames": {"type": "array", "items": _HOST},
    "extraManifests": {"type": "array", "items": {"type": ["object", "string"]}},
    "monitoring.exporterJob": _JOB,
    "monitoring.coordinatorJob": _JOB,
    "networkPolicy.allowExporterFrom": _OBJECTS,
    "networkPolicy.allowCoordinatorFrom": _OBJECTS,
    "networkPolicy.extraEgress": _OBJECTS,
    "prometheusRule.alerts": overrides_schema(rules.alert_names()),
    "prometheusRule.runLabels": {"type": "string", "pattern": "^[a-z_][a-z0-9_]*(, [a-z_][a-z0-9_]*)*$"},
    "prometheusRule.runbooksUrl": _ADDRESS_OR_NONE,
    "prometheusRule.coordinatorUrl": _ADDRESS_OR_NONE,
    "prometheusRule.grafanaUrl": _ADDRESS_OR_NONE,
}
_BY_NAME: dict[str, Schema] = {
    **dict.fromkeys(("startupProbe", "livenessProbe", "readinessProbe"), _FREE_OR_NONE),
    **dict.fromkeys(("resources", "affinity", "content", "tlsConfig", "basicAuth"), _FREE),
    **dict.fromkeys(("extraArgs", "extraNames", "extraAddresses", "disabledGroups", "disabledAlerts"), _WORDS),
    "accessModes": _WORDS,
    "digest": {"type": "string", "pattern": "^$|^sha256:[0-9a-f]{64}$"},
    "pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "port": _PORT,
    "user": {"type": "integer", "minimum": 1, "maximum": 2147483647},
    "maxUnavailable": _AWAY,
    "replicas": {"type": "integer", "minimum": 1, "maximum": 5},
    "interval": _DURATION,
    "scrapeTimeout": _DURATION,
    **dict.fromkeys(("size", "sizeLimit", "spoolSizeLimit", "sharedMemorySize"), _QUANTITY),
    **dict.fromkeys(("sampleLimit", "targetLimit", "labelLimit", "labelValueLengthLimit", "maxPacketBytes"), _LIMIT),
    "terminationGracePeriodSeconds": _LIMIT,
    **dict.fromkeys(
        (
            "nameOverride",
            "fullnameOverride",
            "namespaceOverride",
            "existingSecret",
            "certificateSecret",
            "nodesSecret",
            "tlsSecret",
            "namespace",
        ),
        _NAME,
    ),
    **dict.fromkeys(("exporterUsername", "coordinatorUsername"), _USERNAME),
}
_LABEL_ENDINGS = ("labels", "annotations", "nodeselector")


def render_schema(values: str) -> str:
    """Return the schema of the text of values.yaml."""
    documented = {value.path: value for value in read_values(values)}
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the Lockstep chart; written by make generate",
        **_object(yaml.safe_load(values), "", documented),
    }
    return json.dumps(schema, indent=2) + "\n"


def _object(tree: dict[str, Any], path: str, documented: dict[str, ChartValue]) -> Schema:
    """Return the schema of a mapping whose keys the chart defines."""
    properties = {}
    for key, default in tree.items():
        inner = f"{path}.{key}" if path else key
        value = documented.get(inner)
        properties[key] = _object(default, inner, documented) if value is None else _leaf(value)
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _leaf(value: ChartValue) -> Schema:
    name = value.path.rpartition(".")[2]
    return {"description": value.text} | (
        _service_key(value.path, value.default) or _BY_PATH.get(value.path) or _by_kind(name, value.default)
    )


def _by_kind(name: str, default: Any) -> Schema:
    if isinstance(default, bool):
        return {"type": "boolean"}
    if name in _BY_NAME:
        return _BY_NAME[name]
    if isinstance(default, list):
        return _OBJECTS
    if isinstance(default, dict):
        return _LABELS if name.lower().endswith(_LABEL_ENDINGS) else _FREE
    return {"type": {int: "integer", float: "number", str: "string"}[type(default)]}


def _service_key(path: str, default: Any) -> Schema | None:
    """Return the schema of a service's own key, of an alert threshold, or of the coordinator's policy."""
    owner, _, key = path.rpartition(".")
    if owner in ("exporter.config", "coordinator.config"):
        bound = ranges_of(FORMS[owner]).get(key)
        return None if bound is None else _range(bound.low, bound.high, default)
    if owner == "prometheusRule.thresholds":
        return threshold_schema(key)
    if path == "coordinator.policy":
        known = {name: _threshold(one) for name, one in catalogue().items()}
        return {"type": "object", "additionalProperties": False, "properties": known}
    return None


def _range(low: float, high: float, default: Any) -> Schema:
    return {"type": "integer" if isinstance(default, int) else "number", "minimum": low, "maximum": high}


def _threshold(threshold: PolicyThreshold) -> Schema:
    if isinstance(threshold.default, bool):
        return {"type": "boolean"}
    if isinstance(threshold.default, tuple):
        return _WORDS
    return _range(threshold.low or 0.0, threshold.high or 0.0, threshold.default)
