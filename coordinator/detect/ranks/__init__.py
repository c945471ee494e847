"""Slow ranks, replicas and stages among peers."""
