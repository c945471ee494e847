"""The report of an analysis as one HTML file: `render`.

Data flow one way: `reading` (values of the JSON summary, none trusted), `parts` (the summary, typed), `findings` and
`choice` (what to show), one module for each section, `page` (the document). Markup and pictures come from
`lockstep.html`, which escapes every text. Nothing here evaluates a trace, reads a file or fetches anything.
"""

from lockstep.analysis.report.page import render

__all__ = ["render"]
