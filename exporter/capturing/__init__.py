"""Capture requests: accepts or refuses them, orders the ranks to capture, and summarises the resulting traces."""
