"""The run, compared with its own history."""
