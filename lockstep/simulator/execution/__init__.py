"""Builds the execution graph of a step and runs it: the longest path as far as it is true, then events."""
