"""Causes inside communication: who is waited for, and why a link moves less than it could (Hermes, section 4.2.2).

May import contracts, trace, simulator (factors of collectives) and diagnosis.roofline (formats of numbers, launching
operators); numpy. `collectives` takes one rank's collectives out of a trace, `matching` lays ranks side by side,
`waiting` states how much of the time is waiting and for whom, `bandwidth` what moved in which time, `contention`,
`messages` and `links` why it was slow, `settings` what the environment holds. Limits are data (`thresholds`).
"""
