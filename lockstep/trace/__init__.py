"""Converts profiler output to columns, to a call tree, and to a summary of kilobytes.

Stages: `source` (bytes, limits, gzip), `decode` (blocks of events with exact times), `load` (columns), `calls` (the
training thread's call tree, with its waits by `waiting`), `summarise` (what is sent to the coordinator). Everything
here treats the file as hostile: any defect ends in a `MalformedError` that names the file, never in a library's
exception.
"""
