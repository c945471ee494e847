"""Turns step batches into a timeline: validates records, assigns them to attempts and finds complete steps."""
