"""What both services share: the connection to a broker, responses to scrapers, HTTP, and the description of a process.

For services only. Nothing that belongs to one service may be here: no metric, no topic, no state.
"""
