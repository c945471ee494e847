"""One per cluster: ingest, timeline, detection, state machine, incidents, metrics, API and page."""
