"""The rings of this node: found, read once, totalled by rank, and when a run falls silent."""
