"""Costs and latencies, each printed beside its budget."""
