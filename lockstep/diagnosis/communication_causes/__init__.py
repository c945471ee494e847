"""Causes inside communication: which rank is waited for, and why a link is slower than it could be (Hermes, 4.2.2).

May import contracts, trace, simulator (bus factors of collectives) and diagnosis.roofline (number formats, launching
operators); numpy. `collectives` extracts one rank's collectives from a trace, `matching` aligns ranks, `waiting`
measures how much time is waiting and for which rank, `bandwidth` measures throughput, `contention`, `messages` and
`links` explain low throughput, `settings` checks the environment. Limits are data (`thresholds`).
"""
