"""Lowers a model that is spread over a cluster to stage programs and the execution graph."""
