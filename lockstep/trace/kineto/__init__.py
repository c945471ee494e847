"""Converts Kineto and Chrome JSON of all versions to columns."""
