"""The hardware of a job: devices, links by level, their symmetries, and the cost of collectives."""
