"""Expected performance of a run: its healthy window, its fitted model, and the predicted gain of each repair."""
