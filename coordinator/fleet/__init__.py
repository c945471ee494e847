"""Which nodes, devices and links incidents named, over all runs: the third time in a fortnight is no coincidence."""
