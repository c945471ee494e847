"""Sends a run's step breakdown and incidents to experiment trackers: W&B, MLflow, TensorBoard, OpenTelemetry (OTLP).

`lockstep forward` runs it in its own process: it reads the coordinator's HTTP API and calls the tracker's own library.
Training imports none of it. A tracker is one file behind the protocol of `tracker.py`. Its library is an extra, and is
imported when that tracker is opened.
"""
