"""How a job is spread: the strategy tree, its mesh, placements and the collectives they need, schedules, memory."""
