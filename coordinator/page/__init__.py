"""The pages that people look at: all runs (`overview`), one run (`run_page`), incident cards, the rank x step map.

Pure: plain values in, text out; `coordinator/app.py` and `coordinator/api` serve them. Every text passes through
`lockstep.html.markup`, which escapes it: anybody on the bus may have written it. Scripts and styles are files in
`static`; nothing is fetched from elsewhere, and no script or style stands in a page.
"""

from coordinator.page.overview import CLOSED_MAX, render_page

__all__ = ["CLOSED_MAX", "render_page"]
