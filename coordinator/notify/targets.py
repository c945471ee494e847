"""Targets of notifications: each builds one HTTP request per notification, with the current secrets from files."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from coordinator.notify.cloud_event import CONTENT_TYPE, cloud_event, parse_signing_key, signature_headers
from coordinator.notify.notification import links_of
from coordinator.notify.slack import slack_message
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.metric import NOTIFICATION_TARGETS
from lockstep.serving.secret_file import read_secret

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.notify.notification import Notification
    from coordinator.settings.config import CoordinatorConfig

WEBHOOK, SLACK = NOTIFICATION_TARGETS
_SECRET_KEY, _SLACK_KEY = "notify_webhook_secret_file", "notify_slack_url_file"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class NotificationRequest:
    """A request to post. The URL may be a secret, so `repr` does not show the fields."""

    url: str
    headers: dict[str, str]
    body: bytes


class NotificationTarget(Protocol):
    """A target of notifications; `name` is one of `NOTIFICATION_TARGETS`."""

    name: str

    def request(self, notification: "Notification", now_s: float) -> NotificationRequest:
        """Return the request to post now; blocking.

        Raises
        ------
        ConfigError
            The file of a secret cannot be used now; the message does not contain any of it.
        """


class WebhookTarget:
    """Posts signed CloudEvents. `config` returns the configuration in force."""

    name = WEBHOOK

    def __init__(self, config: "Callable[[], CoordinatorConfig]") -> None:
        self._config = config

    def key(self) -> bytes:
        """Return the signing key; blocking, raises like `request`."""
        return parse_signing_key(read_secret(self._config().notify_webhook_secret_file, _SECRET_KEY), _SECRET_KEY)

    def request(self, notification: "Notification", now_s: float) -> NotificationRequest:
        """Return the request with the signed event."""
        config = self._config()
        body = cloud_event(notification, links_of(notification.incident, config), external_url=config.external_url)
        signed = signature_headers(self.key(), notification.id, int(now_s), body)
        return NotificationRequest(
            url=config.notify_webhook_url, headers={"Content-Type": CONTENT_TYPE, **signed}, body=body
        )


class SlackTarget:
    """Posts messages to a Slack incoming webhook, or to a service that accepts the same format."""

    name = SLACK

    def __init__(self, config: "Callable[[], CoordinatorConfig]") -> None:
        self._config = config

    def url(self) -> str:
        """Return the webhook's URL; blocking, raises like `request`."""
        file = self._config().notify_slack_url_file
        found = read_secret(file, _SLACK_KEY)
        try:
            parts = urlsplit(found)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{_SLACK_KEY}: got no URL in {file!r}, expected https://hooks.slack.com/services/...")
        return found

    def request(self, notification: "Notification", now_s: float) -> NotificationRequest:  # noqa: ARG002  (unsigned)
        """Return the request with the message."""
        links = links_of(notification.incident, self._config())
        return NotificationRequest(
            url=self.url(),
            headers={"Content-Type": "application/json; charset=utf-8"},
            body=slack_message(notification, links),
        )
