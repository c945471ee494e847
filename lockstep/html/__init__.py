"""HTML and SVG building blocks for all pages that Lockstep renders.

`markup` (escaped by construction), `units` (formatted figures), `scales` (axes), `svg`, `bars`, `scatter` (pictures
without script). Pure: values in, markup out. The coordinator's pages, the trace report and the simulator's pictures
share them.
"""
