"""The nodes, devices and links that incidents named, over all runs, to find those that are named repeatedly."""
