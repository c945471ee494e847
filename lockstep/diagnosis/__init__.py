"""Cause, function and advice from trace summaries: `explain.explain` is what others call.

`excess` compares call trees, `communication` collectives, `advice_table` is the cause -> remedy data, `diagnose` puts
them together, and `verdict` is the form of the result. Nothing is imported here: code that needs one rule
(`lockstep.analysis`) does not pay for the remedies and the comparison of all ranks.
"""
