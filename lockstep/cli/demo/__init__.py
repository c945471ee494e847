"""The demonstration: a real data-parallel job, a real fault on one rank, and Lockstep's detection of it."""
