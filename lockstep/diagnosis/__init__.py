"""Derives cause, function and advice from trace summaries; the entry point is `explain.explain`.

`excess` compares call trees, `communication` collectives, `advice_table` maps causes to remedies, `diagnose` combines
them, and `verdict` defines the result. This package imports nothing itself, so that code that needs one rule
(`lockstep.analysis`) does not load the remedies and the comparison of all ranks.
"""
