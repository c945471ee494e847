"""Reads the site's own monitoring of an incident's machines, compares it with that of peers, and reports deviations."""

from typing import TYPE_CHECKING, Any

from coordinator.evidence.catalogue import load_catalogue
from coordinator.evidence.node_samples import NodeSamplesClient
from coordinator.evidence.prometheus import Access, PrometheusClient
from coordinator.evidence.reader import EvidenceReader
from coordinator.evidence.scheduler import EvidenceScheduler

if TYPE_CHECKING:
    from coordinator.intake.devices import DeviceTable
    from coordinator.runs import Runs
    from coordinator.settings.config import CoordinatorConfig

__all__ = ["make_evidence"]


def make_evidence(
    config: "CoordinatorConfig", runs: "Runs", devices: "DeviceTable", **scheduler_arguments: Any
) -> EvidenceScheduler | None:
    """Return the evidence scheduler; None if no source is configured. Blocking.

    `scheduler_arguments` are passed to `EvidenceScheduler`.

    Raises
    ------
    ConfigError
        A file that the configuration names cannot be used.
    """
    if not config.evidence_prometheus_url and not config.evidence_from_nodes:
        return None
    access = Access(
        url=config.evidence_prometheus_url,
        token_file=config.evidence_token_file,
        password_file=config.evidence_password_file,
        ca_file=config.evidence_ca_file,
    )
    access.headers()
    access.context()
    client = NodeSamplesClient(access, runs.targets.url_of) if config.evidence_from_nodes else PrometheusClient(access)
    reader = EvidenceReader(
        client,
        load_catalogue(config.evidence_queries_file),
        link_url=config.evidence_link_url,
        matchers=config.evidence_matchers,
    )
    return EvidenceScheduler(reader, runs, devices, **scheduler_arguments)
