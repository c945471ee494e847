"""Calibrates models on monitored jobs: fitted parameters, their error band, and the gain of a repair."""
