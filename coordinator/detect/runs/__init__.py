"""The run against its own history."""
