"""What a window waited for, from its end back to its beginning: Hermes, section 4.2.1 ("critical path analysis").

`path` (the result, and the ranking of what lies on it), `lanes` (work in queues: streams of the device, threads of host
backends), `hosts` (where the walk is on the host), `walk` (from one to the next). The walk hands each moment of the
window to exactly one segment, so segments always sum to the window.
"""
