"""Slow links, groups and nodes."""
