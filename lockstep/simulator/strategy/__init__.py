"""Parallelisation strategies: the strategy tree, meshes, placements and their collectives, schedules, memory."""
