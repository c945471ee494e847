"""Renders every generated file: rules, dashboards, access rules, parts of the chart, pages of docs.

`python -m lockstep.cli.generate` writes them. With `--check` it writes nothing, and exits 1 with the names of files
that differ.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from alerts import rules, table
from coordinator import app
from coordinator.api import openapi
from coordinator.decide import state_diagram
from dashboards import catalogue
from lockstep.cli import access_rules, level_table, series_table, settings_page
from lockstep.cli.chart import files as chart
from lockstep.cli.markdown import markdown_table
from lockstep.cli.simulation import pages as simulation_pages
from lockstep.contracts.metric import LEVELS
from lockstep.contracts.metrics import CATALOGUE, STEP_BUCKETS_SECONDS, Metric
from lockstep.diagnosis import causes_page
from tests.agent.frameworks import page as frameworks_page
from tests.agent.launchers import page as launchers_page

ROOT = Path(__file__).resolve().parents[2]

_SOURCES = {
    "exporter": ("Measured on the node", "Exported by each node's exporter."),
    "coordinator": (
        "Evaluated over the cluster",
        "Exported by the coordinator; their number does not grow with the ranks.",
    ),
    "both": (
        "The process itself",
        (
            "Exported by each service about its own process, under the names that every Prometheus client library "
            "uses. The processes in which an exporter summarises traces are not included. To select exporters among "
            "other processes: `and on (job, instance) lockstep_exporter_build_info`."
        ),
    ),
}

_HEADING = """\
# Metrics

Written by `make generate` from `lockstep/contracts/metrics.py` and `alerts/`; change it there.

Counters carry numerators and denominators; rates and ratios are recorded series. Enumerated label values are exported
from the start.
"""

_SERIES = """\
The table counts the series of a scrape from the lists above; a test counts them in a real scrape. A value that a node
does not let the exporter read, or that a rank does not measure, has no series.

`metrics_level` of an exporter chooses among three levels. Detection does not depend on it, because records reach
the coordinator through the broker. Every alert fires at every level.

- `minimal`: for each rank its steps and step time, and whether its agent is down. Everything else that alerts and
  recorded series of a run read is one series for all ranks of a run on a node. Dashboards show runs, incidents and
  suspects; the matrices by rank and host, most of Rank and parts of Self-monitoring are empty.
- `default`: for each rank also where a step goes (phases and waits), its host and device, its last step, its memory and
  its wait for a CPU. What only `full` has by rank is one series a node, if a rule or panel reads it.
- `full`: everything by rank. For clusters of some hundred ranks, or for some nodes during an investigation.
"""

_MISSED = """\
This table lists what each level leaves out, and the panels and runbooks that read it. "sum of a node" is one series,
without the label rank, for all ranks that the run ever had on the node. A panel without data names the level that it
needs. To keep one family by rank without the others, choose the higher level and drop the others with
`metric_relabel_configs`.
"""

_HISTOGRAMS = """\
Both histograms are classic histograms of {buckets} buckets. Prometheus 3 with native histograms can store each as one
series with the same buckets (`convert_classic_histograms_to_nhcb` of a scrape configuration,
`convertClassicHistogramsToNHCB` of a PodMonitor or ServiceMonitor); this is not tested. The dashboards read series that
end in `_bucket`: keep these too with `always_scrape_classic_histograms` (`scrapeClassicHistograms`), or the heat maps
have no data.
"""


_ALERT_TABLE = """\
`lockstep export alerts` prints the same table for a site, with its policy file, `--set` and addresses. Thresholds are
fields of `alerts/policy.py`. Receivers are those of [the example](../alerts/alertmanager.example.yml), where `null`
notifies no one. A link to `/incidents/ID` leads to `/runs/RUN` if no incident is open.
"""


def generated_files() -> dict[Path, str]:
    """Return the text of every generated file by its absolute path."""
    return {
        rules.RENDERED: rules.render(),
        rules.SCHEMA: rules.render_schema(),
        **catalogue.render(),
        **simulation_pages.render(),
        **chart.generated_files(),
        ROOT / "deploy" / "systemd" / "mosquitto.acl": access_rules.render(),
        ROOT / "docs" / "causes.md": causes_page.render(),
        ROOT / "docs" / "frameworks.md": frameworks_page.render(),
        ROOT / "docs" / "launchers.md": launchers_page.render(),
        ROOT / "docs" / "metrics.md": metrics_page(),
        ROOT / "docs" / "openapi.json": json.dumps(openapi.describe(app.routes()), indent=1) + "\n",
        ROOT / "docs" / "settings.md": settings_page.render(),
        ROOT / "docs" / "states.md": state_diagram.render(),
    }


def metrics_page() -> str:
    """Return docs/metrics.md: the catalogue, the recorded series and the alerts."""
    parts = [_HEADING]
    for source, metrics in groupby(CATALOGUE, key=lambda metric: metric.source):
        title, text = _SOURCES[source]
        rows = [(f"`{m.name}`", m.type, _labels(m), m.help) for m in metrics]
        parts.append(f"## {title}\n\n{text}\n\n{markdown_table(('name', 'type', 'labels', 'meaning'), rows)}")
    heads = ("series at most", *(f"at level {level}" for level in LEVELS))
    parts.append(f"## Series\n\n{_SERIES}\n{markdown_table(heads, series_table.rows())}")
    parts.append(f"{_MISSED}\n{markdown_table(level_table.HEADINGS, level_table.rows())}")
    parts.append(_HISTOGRAMS.format(buckets=len(STEP_BUCKETS_SECONDS)))
    recorded = [(f"`{rule.record}`", rule.help) for rule in rules.recordings()]
    parts.append(f"## Recorded series\n\n{markdown_table(('name', 'meaning'), recorded)}")
    alerts = [(f"[{alert.name}](../alerts/runbooks/{alert.name}.md)", alert.summary) for alert in rules.alerts()]
    parts.append(f"## Alerts\n\n{markdown_table(('name', 'summary'), alerts)}")
    each = [row.cells() for row in table.rows()]
    parts.append(f"### What each alert does\n\n{_ALERT_TABLE}\n{markdown_table(table.COLUMNS, each)}")
    return "\n".join(parts)


def differing_files(files: dict[Path, str]) -> list[Path]:
    """Return the paths whose content differs from `files`, including missing ones."""
    return [path for path, text in files.items() if not path.is_file() or path.read_text() != text]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the generated files; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lockstep.cli.generate", description="Render all generated files.")
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 naming the files that differ")
    check = parser.parse_args(arguments).check
    files = generated_files()
    differing = differing_files(files)
    for path in differing:
        if check:
            print(f"{path.relative_to(ROOT)} differs from what its sources render; run make generate", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[path])
            print(path.relative_to(ROOT))
    return 1 if check and differing else 0


def _labels(metric: Metric) -> str:
    labels = [f"`{label}`" for label in metric.labels]  # the values are those of the last one
    if metric.values:
        labels[-1] += f" ({', '.join(metric.values)})"
    return ", ".join(labels)


if __name__ == "__main__":
    sys.exit(main())
