"""The `lockstep` command. It may import every package; nothing imports it."""
