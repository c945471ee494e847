"""Profile requests: taken or refused, written for the ranks, and the traces that come of them summarised."""
