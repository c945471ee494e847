"""A run's step breakdown and incidents in experiment trackers: W&B, MLflow, TensorBoard, and OpenTelemetry by OTLP.

`lockstep forward` runs it, in a process of its own: it reads the coordinator's HTTP API and calls the tracker's own
library. Training imports nothing of it. A tracker is one file behind the protocol of `tracker.py`, and its library, an
extra, is imported when that tracker is opened.
"""
