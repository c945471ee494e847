"""What a job runs on: devices, links by level, which of them are alike, and what collectives take on them."""
