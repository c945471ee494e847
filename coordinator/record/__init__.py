"""Stored observations: step logs, recordings, and their replay."""
