"""The agent's settings: every form that is taken, and one line for each that is not."""

import pytest

from lockstep.agent.throughput.options import FlopsRule, Quantity, ThroughputOptions, check_option, read_options
from lockstep.contracts.errors import ConfigError


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("LOCKSTEP_TOKENS", "auto", ThroughputOptions()),
        ("LOCKSTEP_TOKENS", "", ThroughputOptions()),
        ("LOCKSTEP_TOKENS", "off", ThroughputOptions(tokens=Quantity("off"))),
        ("LOCKSTEP_TOKENS", "4096", ThroughputOptions(tokens=Quantity("", 4096))),
        ("LOCKSTEP_TOKENS", "0.input_ids", ThroughputOptions(tokens=Quantity("", None, ("0", "input_ids")))),
        ("LOCKSTEP_SAMPLES", "labels", ThroughputOptions(samples=Quantity("", None, ("labels",)))),
        ("LOCKSTEP_MODEL_FLOPS", "measure", ThroughputOptions(model_flops=FlopsRule("measure"))),
        ("LOCKSTEP_MODEL_FLOPS", "4.2e10", ThroughputOptions(model_flops=FlopsRule("", 4.2e10))),
        ("LOCKSTEP_PARAMETERS", "7e9", ThroughputOptions(parameters=7e9)),
        ("LOCKSTEP_PEAK_FLOPS", "989e12", ThroughputOptions(peak_flops=989e12)),
        ("LOCKSTEP_DTYPE", "fp8", ThroughputOptions(dtype="fp8")),
    ],
)
def test_forms_that_are_taken(variable, text, expected):
    """Each documented form of each variable is understood, and the same text passes the command line's check."""
    assert read_options({variable: text}) == expected
    if text:
        assert check_option(variable, text, where="--x") == text


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("LOCKSTEP_TOKENS", "input ids", "a path into the batch"),
        ("LOCKSTEP_TOKENS", "-5", "a path into the batch"),
        ("LOCKSTEP_TOKENS", "9" * 30, "a whole number per step"),
        ("LOCKSTEP_MODEL_FLOPS", "lots", "auto, measure, off, or FLOPs per token"),
        ("LOCKSTEP_PARAMETERS", "7B", "a positive number, like 7e9"),
        ("LOCKSTEP_PARAMETERS", "nan", "a positive number"),
        ("LOCKSTEP_PEAK_FLOPS", "0", "a positive number"),
        ("LOCKSTEP_PEAK_FLOPS", "inf", "a positive number"),
        ("LOCKSTEP_DTYPE", "half", "fp32, tf32, fp16, bf16, fp8"),
    ],
)
def test_a_value_that_makes_no_sense_is_named_and_left(capsys, variable, text, expected):
    """One line states what, got and expected, once however often the settings are read; the default is taken."""
    environment = {variable: text, "LOCKSTEP_SAMPLES": "labels"}
    assert (
        read_options(environment)
        == read_options(environment)
        == ThroughputOptions(samples=Quantity("", None, ("labels",)))
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"lockstep: {variable}: got '{text}', expected ")
    assert expected in line
    with pytest.raises(ConfigError, match=r"--x: got"):
        check_option(variable, text, where="--x")
