"""What another user, machine or network peer tries against Lockstep, and what becomes of it: a table for each."""
