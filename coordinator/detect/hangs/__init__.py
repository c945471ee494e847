"""Who has not arrived, and who waits for whom."""
