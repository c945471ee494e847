"""Expected performance: a run's healthy window, its fitted model, the gain of each repair."""
