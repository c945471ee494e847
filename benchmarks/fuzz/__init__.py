"""Hostile input of every kind against the entry points of both services: `python -m benchmarks.fuzz`."""
