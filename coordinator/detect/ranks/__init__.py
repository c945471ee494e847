"""Slow ranks, replicas and stages, compared with their peers."""
