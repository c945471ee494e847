"""Hostile input of every kind against the doors of both services: `python -m benchmarks.fuzz`."""
