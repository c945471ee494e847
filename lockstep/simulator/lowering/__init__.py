"""From a model spread over a cluster to programs of stages and the execution graph."""
