"""What was seen, written down and read again: step logs, recordings, replays."""
