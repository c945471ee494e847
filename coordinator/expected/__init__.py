"""What a run should do: its healthy window, its fitted model, the gain of each repair."""
