"""Specifications of jobs in YAML: `check` validates them against `fields`, `job` reads them and builds the job."""

from lockstep.simulator.spec.job import JobSpec, load_spec

__all__ = ["JobSpec", "load_spec"]
