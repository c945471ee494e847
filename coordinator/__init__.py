"""The coordinator, one per cluster: intake, detection, run state machines, incidents, metrics, API and pages."""
