"""Profiler output to columns, to a call tree, to a summary of kilobytes.

The way of a trace: `source` (bytes, limits, gzip), `decode` (blocks of events with exact times), `load` (columns),
`calls` (the training thread's call tree, with its waits by `waiting`), `summarise` (what travels). Everything here
treats the file as hostile: what is wrong with it ends in a `MalformedError` that names the file, never in a bare
failure of a library.
"""
