"""What a job is, in YAML: `text` reads it, `check` holds it against `fields`, `job` builds it."""

from lockstep.simulator.spec.job import JobSpec, load_spec

__all__ = ["JobSpec", "load_spec"]
