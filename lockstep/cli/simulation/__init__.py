"""Output of the simulator's commands: text and drawings."""
