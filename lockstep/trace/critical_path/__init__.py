"""What a window waited for, from its end back to its beginning: Hermes, section 4.2.1 ("critical path analysis").

`path` (the result, and the ranking of what lies on it), `lanes` (work in queues: streams of the device, threads of host
backends), `waits` (what the profiler recorded of waiting), `allowed` (what allowed each piece of such work to begin),
`walk` (from one to the next), `walked` (what was passed, as segments). The walk hands each moment of the window to
exactly one segment, so segments always sum to the window.
"""
