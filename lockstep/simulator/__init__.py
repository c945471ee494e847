"""Expected performance: predicts a step from a model, a strategy and a cluster.

The entry point for programs is `simulate.simulate`, that for a job in YAML is `spec.load_spec`. This package imports
nothing itself, since a coordinator that only reads step records needs none of it.
"""
