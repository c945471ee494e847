"""Renders the rules with a name in place of each number, so that the chart can insert a site's own values.

The rules are rendered with numbers that occur nowhere else. Each is then replaced by `@@name@@`, a waiting time by
`@@duration.name@@`, a percentage in a text by `@@percent.name@@`. So a new rule needs no change here.
"""

from dataclasses import fields
from typing import Any

from alerts import rules
from alerts.policy import AlertPolicy, Site
from alerts.rule import dump

_HEADING = """\
Written by `make generate` from alerts/*.py; change it there. templates/_rules.tpl puts the site's values
in place of the names between at signs."""
_FIRST_INT = 7_000_001  # not a multiple of 60, so that durations stay in seconds
_INT_STEP = 60
_FIRST_SHARE = 0.1101  # five digits, where `:g` keeps six; its percentage is unique too
_SHARE_STEP = 0.01


def render_rules() -> str:
    """Return the rule file with names in place of numbers."""
    site = Site(**{field.name: f"@@{field.name}@@" for field in fields(Site)})
    numbers = _stand_ins()
    text = dump(rules.groups(site, AlertPolicy(**numbers)), site, heading=_HEADING)
    for name, number in numbers.items():
        if isinstance(number, int):
            text = text.replace(f"{number}s", f"@@duration.{name}@@").replace(str(number), f"@@{name}@@")
        else:
            text = text.replace(f"{number:g}", f"@@{name}@@").replace(f"{number:.0%}", f"@@percent.{name}@@")
    return text


def _stand_ins() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for index, field in enumerate(fields(AlertPolicy)):
        is_int = isinstance(field.default, int)
        found[field.name] = (
            _FIRST_INT + _INT_STEP * index if is_int else round(_FIRST_SHARE + _SHARE_STEP * len(found), 4)
        )
    return found
