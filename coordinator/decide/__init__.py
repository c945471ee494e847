"""The run's state machine and what it decides: incidents, captures, and why each. No clock, no I/O."""
