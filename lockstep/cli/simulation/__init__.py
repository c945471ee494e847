"""What the commands on the simulator print and draw."""
