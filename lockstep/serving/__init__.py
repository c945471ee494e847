"""What both services share towards the outside: how a broker is reached, a scraper answered, a process described.

For services only. Nothing of a service's own may live here: no metric, no topic, no state.
"""
