"""What a monitored job says of the model: fitted figures, their error band, and what a repair gives back."""
