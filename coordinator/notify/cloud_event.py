"""Formats a notification as a signed CloudEvent 1.0 in structured JSON (github.com/cloudevents/spec). Pure.

The signature follows Standard Webhooks (github.com/standard-webhooks/standard-webhooks): HMAC-SHA256 of id, time and
body, so that a receiver can reject forged and outdated messages.
"""

import base64
import binascii
import hmac
import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from coordinator.decide.incidents import to_brief_json
from coordinator.notify.notification import ENDED, OPENED
from lockstep.contracts.errors import ConfigError

if TYPE_CHECKING:
    from coordinator.notify.notification import IncidentLinks, Notification

CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"
TYPE_PREFIX = "lockstep.incident."
_SECRET_PREFIX = "whsec_"  # noqa: S105  (the prefix of every secret, not a secret)
_KEY_MIN_BYTES, _KEY_MAX_BYTES = 24, 64
"""Limits of Standard Webhooks."""
_NS = 1e9


def cloud_event(notification: "Notification", links: "IncidentLinks", *, external_url: str = "") -> bytes:
    """Return the event; its data is the incident as listed by `/api/v1/incidents`, with host, devices lost and links.

    Both coordinators of a pair produce the same `source` and `id` if they have the same `external_url`.
    """
    incident = notification.incident
    extra: dict[str, Any] = {
        "host": notification.host,
        "devices_lost": notification.devices_lost,
        "links": {name: url for name, url in asdict(links).items() if url},
    }
    event = {
        "specversion": "1.0",
        "id": notification.id,
        "source": f"{external_url.rstrip('/')}/runs/{quote(incident.run, safe='')}",
        "type": f"{TYPE_PREFIX}{notification.stage}",
        "subject": f"{incident.run}/{incident.id}",
        "time": _time_of(notification),
        "datacontenttype": "application/json",
        "data": to_brief_json(incident) | extra,
    }
    return json.dumps(event).encode()


def _time_of(notification: "Notification") -> str:
    incident, unix_s = notification.incident, notification.unix_s
    if notification.stage == OPENED:
        unix_s = incident.opened_unix_ns / _NS
    elif notification.stage == ENDED and incident.closed_unix_ns is not None:
        unix_s = incident.closed_unix_ns / _NS
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_signing_key(secret: str, key: str) -> bytes:
    """Return the key of a secret in the format of Standard Webhooks; `key` names the setting in messages.

    Raises
    ------
    ConfigError
        It has another format. The message does not contain any of it.
    """
    expected = f"expected {_SECRET_PREFIX} and base64 of {_KEY_MIN_BYTES} to {_KEY_MAX_BYTES} bytes"
    if not secret.startswith(_SECRET_PREFIX):
        raise ConfigError(f"{key}: got a secret without {_SECRET_PREFIX}, {expected}")
    try:
        found = base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError(f"{key}: got a secret that is no base64, {expected}") from None
    if not _KEY_MIN_BYTES <= len(found) <= _KEY_MAX_BYTES:
        raise ConfigError(f"{key}: got a secret of {len(found)} bytes, {expected}")
    return found


def signature_headers(key: bytes, notification_id: str, unix_s: int, body: bytes) -> dict[str, str]:
    """Return the three headers that authenticate the sender of a body and the time."""
    signed = f"{notification_id}.{unix_s}.".encode() + body
    signature = base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
    return {
        "webhook-id": notification_id,
        "webhook-timestamp": str(unix_s),
        "webhook-signature": f"v1,{signature}",
    }
