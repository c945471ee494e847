"""What Prometheus gets: the node at one moment, as families, as text, over HTTP."""
