"""Specifications of jobs in YAML: `text` reads them, `check` validates them against `fields`, `job` builds the job."""

from lockstep.simulator.spec.job import JobSpec, load_spec

__all__ = ["JobSpec", "load_spec"]
