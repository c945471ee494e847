"""The contracts between processes: byte layouts, messages, names and limits, each with its version.

Standard library only, so that the agent can import every module here except `codec`, which needs msgspec and is for
services.
"""
