"""The rings of this node: finds them, reads each record once, totals by rank, and notices when a run makes no steps."""
