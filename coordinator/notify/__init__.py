"""Notifications of incidents by the coordinator itself, for sites without Prometheus: a signed webhook, and Slack."""

from itertools import product
from typing import TYPE_CHECKING, Any

from coordinator.decide.incidents import CLOSED
from coordinator.notify.notifier import Notifier
from coordinator.notify.sender import GIVE_UP_S
from coordinator.notify.targets import SlackTarget, WebhookTarget
from lockstep.contracts.metric import NOTIFICATION_OUTCOMES, NOTIFICATION_TARGETS

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.leadership import Leadership
    from coordinator.notify.targets import NotificationTarget
    from coordinator.runs import Runs
    from coordinator.settings.config import CoordinatorConfig
    from coordinator.store import Store

__all__ = ["count_notifications", "make_notifier"]

_NS = 1e9


def make_notifier(
    config: "Callable[[], CoordinatorConfig]",
    runs: "Runs",
    store: "Store",
    leadership: "Leadership",
    **notifier_arguments: Any,
) -> Notifier | None:
    """Return the notifier; None if no receiver is configured. Blocking.

    `notifier_arguments` are passed to `Notifier`.

    Raises
    ------
    ConfigError
        The file of a secret cannot be used.
    """
    targets: list[NotificationTarget] = []
    if config().notify_webhook_url:
        webhook = WebhookTarget(config)
        webhook.key()
        targets.append(webhook)
    if config().notify_slack_url_file:
        slack = SlackTarget(config)
        slack.url()
        targets.append(slack)
    if not targets:
        return None
    notifier = Notifier(targets, runs, store, leadership, config=config, **notifier_arguments)
    since_ns = (notifier_arguments["now_s"]() - GIVE_UP_S) * _NS
    closed = [each for each in store.incidents(state=CLOSED) if (each.closed_unix_ns or 0) > since_ns]
    notifier.restore(store.load_notifications(), closed)
    return notifier


def count_notifications(notifier: Notifier | None) -> dict[tuple[str, str], int]:
    """Return the notifications by target and outcome, 0 for targets that are not configured."""
    counts = dict.fromkeys(product(NOTIFICATION_TARGETS, NOTIFICATION_OUTCOMES), 0)
    return counts | (notifier.counts() if notifier is not None else {})
