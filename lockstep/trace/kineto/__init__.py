"""Kineto and Chrome JSON of every age to columns."""
