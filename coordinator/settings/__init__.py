"""What can be set: thresholds with their reasons, specifications, the layers they come from."""
