"""A policy file with some thresholds, for services that tests and benchmarks start."""

from collections.abc import Mapping
from pathlib import Path


def policy_file(folder: Path, thresholds: Mapping[str, object]) -> str:
    """Write `policy.yaml` into a folder and return its path."""
    path = folder / "policy.yaml"
    path.write_text("".join(f"{name}: {value}\n" for name, value in thresholds.items()))
    return str(path)
