"""The state machine of a run: decides on incidents and captures, and records the reasons. No clock, no I/O."""
