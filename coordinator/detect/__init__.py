"""Detectors: pure functions and tests on arrays; thresholds come from `coordinator.settings.policy`."""
