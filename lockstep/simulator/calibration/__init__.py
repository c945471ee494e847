"""From a monitored job to its model: fitted figures, their error band, and the gain of a repair."""
