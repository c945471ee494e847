"""What Prometheus scrapes: a snapshot of the node, turned into metric families and text, and served over HTTP."""
