"""The HTML pages: all runs (`overview`), one run (`run_page`), incident cards, the rank x step heat map.

Pure: plain values in, text out; `coordinator/app.py` and `coordinator/api` serve them. Every text is escaped by
`lockstep.html.markup`, because anyone on the bus may have written it. Scripts and styles are files in `static`: nothing
is loaded from other servers, and pages contain no inline script or style.
"""

from coordinator.page.overview import CLOSED_MAX, render_page

__all__ = ["CLOSED_MAX", "render_page"]
