"""HTML and SVG for every page that Lockstep makes.

`markup` (escaped by construction), `units` (figures), `scales` (axes), `svg`, `bars`, `scatter` (pictures without
script). Pure: values in, markup out. The coordinator's pages, the trace report and the simulator's pictures share it.
"""
