"""The critical path of a window, from its end back to its beginning: Hermes, section 4.2.1 ("critical path analysis").

`path` defines the result and ranks its entries, `lanes` are the queues of work (device streams, threads of host
backends), `waits` the waits that the profiler recorded, `allowed` what allowed each op to begin, `walk` goes from one
op to the previous one, and `path_recorder` converts the walk to segments. The walk assigns each moment of the window to
exactly one segment, so segments always sum to the window.
"""
