"""From batches to a timeline: which records are true, which attempt they belong to, which steps are complete."""
