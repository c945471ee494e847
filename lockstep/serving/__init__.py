"""What both services share towards the outside: how a broker is reached, and how a scraper is answered.

For services only. Nothing of a service's own may live here: no metric, no topic, no state.
"""
