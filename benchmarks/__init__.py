"""Costs and latencies, each printed with its budget."""
