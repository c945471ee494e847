"""Expected performance: a model, a strategy and a cluster in, the forecast of a step out.

`simulate.simulate` is the door for programs, `spec.load_spec` that for a job in YAML. Nothing is imported here: a
coordinator that reads step records alone needs none of it.
"""
