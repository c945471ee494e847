"""Every generated file of the chart. Only helm/lockstep/values.yaml, outside its marked blocks, is written by hand."""

from pathlib import Path

from dashboards import catalogue
from lockstep.cli import access_rules
from lockstep.cli.chart.blocks import blocks, fill
from lockstep.cli.chart.rules_file import render_rules
from lockstep.cli.chart.schema import render_schema
from lockstep.cli.chart.values import read_values, table

CHART = Path(__file__).resolve().parents[3] / "helm" / "lockstep"

_BEGIN, _END = "<!-- BEGIN values, by make generate -->\n", "<!-- END values -->\n"


def generated_files() -> dict[Path, str]:
    """Return the text of every generated file of the chart by its absolute path."""
    values = fill((CHART / "values.yaml").read_text(), blocks())
    boards = {CHART / "files" / "dashboards" / path.name: text for path, text in catalogue.render().items()}
    return {
        CHART / "values.yaml": values,
        CHART / "values.schema.json": render_schema(values),
        CHART / "README.md": _with_table((CHART / "README.md").read_text(), values),
        CHART / "files" / "lockstep.rules.yaml": render_rules(),
        CHART / "files" / "mosquitto.acl": access_rules.render(),
        CHART / "files" / "mosquitto-shared.acl": access_rules.render_shared(),
        **boards,
    }


def _with_table(readme: str, values: str) -> str:
    before, begin, rest = readme.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    assert end, f"README.md of the chart has no {_BEGIN.strip()} or no {_END.strip()}"
    return f"{before}{begin}{table(read_values(values))}{end}{after}"
