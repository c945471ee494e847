"""The JSON schema and the page's table are the fields', and the schema refuses what the reader refuses."""

import json
from pathlib import Path

import pytest
import yaml

from lockstep.cli.simulation import pages
from lockstep.contracts.errors import LockstepError
from lockstep.simulator.spec import load_spec
from lockstep.simulator.spec.schema import rows, schema

EXAMPLES = Path(__file__).parents[2] / "examples" / "simulator"
TYPES = {"object": dict, "array": (list, tuple), "string": str, "boolean": bool, "null": type(None)}


def accepts(schema, value):
    """Whether a value satisfies a schema, as far as this schema's words go."""
    return all(
        (
            all(any(accepts(each, value) for each in schema[word]) for word in ("anyOf", "oneOf") if word in schema),
            value in schema.get("enum", [value]),
            value == schema.get("const", value),
            "type" not in schema or is_a(schema["type"], schema, value),
        )
    )


def is_a(kind, schema, value):
    if kind in ("number", "integer"):
        return isinstance(value, int | float) and not isinstance(value, bool) and in_bounds(kind, schema, value)
    if not isinstance(value, TYPES[kind]):
        return False
    if kind == "array":
        return len(value) <= schema["maxItems"] and all(accepts(schema["items"], each) for each in value)
    if kind == "object":
        known, other = schema.get("properties", {}), schema["additionalProperties"]
        others = [each for key, each in value.items() if key not in known]
        return (
            set(schema.get("required", ())) <= set(value)
            and all(accepts(known[key], each) for key, each in value.items() if key in known)
            and all(other is not False and accepts(other, each) for each in others)
        )
    return True


def in_bounds(kind, schema, value):
    return (
        (kind == "number" or value % 1 == 0)
        and value >= schema.get("minimum", value)
        and value > schema.get("exclusiveMinimum", value - 1)
        and value <= schema.get("maximum", value)
    )


def test_generated_files_are_what_the_fields_render():
    """After a change of the fields, `pages.render()` has to be written again."""
    differing = [path.name for path, text in pages.render().items() if path.read_text() != text]
    assert differing == []


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_schema_takes_the_examples(path):
    """What is shown can be edited with the schema."""
    document = json.loads(json.dumps(yaml.safe_load(path.read_text())))  # JSON's keys are texts
    assert accepts(schema(), document)


def document():
    return {
        "model": {"type": "llama", "layers": 4, "hidden": 512, "heads": 8, "sequence": 256, "ffn": 1024},
        "batch": 16,
        "strategy": {"dp": 8, "overrides": [{"node": "head", "recompute": "full", "keep": {"optimizer": "dp"}}]},
        "cluster": {"preset": "DGX A100", "nodes": 1, "health": {"links": {"NVLink/3": 0.5}, "ranks": {"5": 1}}},
    }


WRONG = [
    ("model.type", "lama"),
    ("model.layers", 0),
    ("model.layers", 2.5),
    ("model.layer", 2),
    ("model.experts", 8),
    ("model.precision", "half"),
    ("model.precision", {"weights": 2}),
    ("batch", "16"),
    ("batch", None),
    ("strategy.bucket_bytes", 0),
    ("strategy.schedule", "2f2b"),
    ("strategy.overrides", [{"split": {"o": "tp"}}]),
    ("strategy.overrides", [{"node": "head", "keep": {"weights": "dp"}}]),
    ("cluster.health", {"links": {"NVLink/3": 1.5}}),
    ("cluster.device", {"memory_byte": 1}),
    ("calibration", {"parameters": {"gamma": 1}}),
]


@pytest.mark.parametrize(("path", "value"), WRONG, ids=lambda each: str(each)[:40])
def test_reader_and_schema_refuse_alike(path, value):
    """A field that the reader refuses by itself is refused by the schema, and the document without it by neither."""
    good, bad = document(), document()
    *above, last = path.split(".")
    at = bad
    for part in above:
        at = at[part]
    at[last] = value
    assert accepts(schema(), good)
    assert load_spec(json.dumps(good), "good").batch == 16
    assert not accepts(schema(), bad)
    with pytest.raises(LockstepError):
        load_spec(json.dumps(bad), "bad")


def test_every_field_has_words():
    """No field is without an explanation, and none is listed twice for the same models."""
    table = list(rows())
    assert all(path and holds and meaning for path, holds, _, meaning in table)
    assert len({(path, meaning) for path, _, _, meaning in table}) == len(table)
