"""The `lockstep` command. May import every room; nothing imports it."""
