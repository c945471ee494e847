"""The look of the page: the coordinator's (`coordinator/page/static/page.css`) with colours for classes of time.

The colours began as those of Okabe and Ito and were moved apart until people who see red and green, or blue and yellow,
alike can distinguish any two classes of a bar, on white and on black (tests/analysis/report/test_style.py). A mark of a
rank to look at differs in shape as well.
"""

import base64
import hashlib
from pathlib import Path

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --line: #d0d7de; --back: #fff; --bad: #b42318;
  --good: #00704f; --grid: #e7ebef; --compute: #0a3fb5; --memory: #3cb4ee; --communication: #dd6a10; --host: #a3439b;
  --overlap: #2b8b5b; --free: #bcc2ca; --gap: #7d8793; --other: #5a4233; --track: #dfe4ea; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #9aa5b1; --line: #30363d; --back: #0d1117; --bad: #ff7b72; --good: #3fbf92;
    --grid: #1f252d; --compute: #2aa3fa; --memory: #c4ecff; --communication: #eb9a10; --host: #cf9fc0;
    --overlap: #2a8350; --free: #464c57; --gap: #7a838f; --other: #d9c7a8; --track: #2d343e; }
}
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); margin: 2rem auto;
  max-width: 70rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0 0 .2rem; } h2 { font-size: 1.1rem; margin: 2.4rem 0 .4rem; }
h3 { font-size: 1rem; margin: 0 0 .3rem; } p { margin: .4rem 0; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; vertical-align: top; padding: .35rem .6rem;
  border-bottom: 1px solid var(--line); } th { color: var(--soft); font-weight: 600; white-space: nowrap; }
td.number, th.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
th button { font: inherit; color: inherit; background: none; border: 0; padding: 0; cursor: pointer; }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
.scroll { overflow-x: auto; margin: .5rem 0; }
article { border: 1px solid var(--line); border-left: 4px solid var(--bad); border-radius: 6px; padding: .8rem 1rem;
  margin: .8rem 0; } article.lesser { border-left-color: var(--line); } article.good { border-left-color: var(--good); }
article.verdict h2 { font-size: 1.25rem; line-height: 1.35; margin: 0 0 .5rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1rem; margin: .4rem 0; }
dt { color: var(--soft); } dd { margin: 0; min-width: 0; overflow-wrap: anywhere; }
.soft, figcaption { color: var(--soft); } figcaption { font-size: .9rem; margin: 0 0 .5rem; }
code { font-family: ui-monospace, monospace; font-size: .92em; overflow-wrap: anywhere; }
li, p, h2, h3 { overflow-wrap: anywhere; } td code { display: inline-block; min-width: 9rem; }
td { min-width: 5rem; overflow-wrap: anywhere; } td.number { min-width: 3rem; } td.wide { min-width: 16rem; }
details { margin: .4rem 0; } summary { cursor: pointer; color: var(--soft); }
ul { margin: .3rem 0; padding-left: 1.2rem; } a { color: inherit; }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin: .8rem 0; font-size: .9rem; }
figure { margin: .8rem 0 1.4rem; } svg { display: block; width: 100%; overflow: visible; }
svg text { font: 12px system-ui, sans-serif; fill: var(--soft); } svg .ink { fill: var(--ink); }
svg .named { fill: var(--bad); font-weight: 600; }
.plot { padding: .5rem 1.4rem 2.6rem 4rem; } .rows .plot { padding-left: 5.6rem; padding-right: 4.6rem; }
.grid { stroke: var(--grid); } .edge { stroke: var(--soft); } .limit { stroke: var(--soft); stroke-dasharray: 4 4; }
.roof { stroke-width: 2; } .dash0 { stroke: var(--ink); } .dash1 { stroke: var(--ink); stroke-dasharray: 9 4; }
.dash2 { stroke: var(--ink); stroke-dasharray: 2 4; } .dash3 { stroke: var(--ink); stroke-dasharray: 9 4 2 4; }
.mark { stroke: var(--back); stroke-width: 1; fill-opacity: .85; }
.mark.flagged { fill: var(--bad); stroke: var(--ink); stroke-width: 1.5; fill-opacity: 1; }
.span { stroke: var(--soft); stroke-width: 1.5; }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1.1rem; list-style: none; padding: 0; margin: .3rem 0;
  font-size: .9rem; } .legend svg { display: inline-block; width: 18px; height: 12px; vertical-align: -1px;
  margin-right: .4rem; }
.bars { list-style: none; padding: 0; margin: .4rem 0; } .bars li { margin: .45rem 0; }
.bars div { display: flex; flex-wrap: wrap; gap: 0 1rem; justify-content: space-between; font-size: .9rem; }
.bars div > * { min-width: 0; } .bars .figure { font-variant-numeric: tabular-nums; color: var(--soft); }
.side-by-side { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); gap: 0 1.5rem; }
.side-by-side figure { min-width: 0; margin-bottom: .6rem; } .axes { font-size: .9rem; margin: .6rem 0 0; }
.rows rect { stroke: var(--back); stroke-width: .6; }
.track { fill: var(--grid); }
.compute { fill: var(--compute); } .memory { fill: var(--memory); } .communication { fill: var(--communication); }
.host { fill: var(--host); } .overlap { fill: var(--overlap); } .free, .idle { fill: var(--free); }
.gap { fill: var(--gap); } .other { fill: var(--other); } .bad { fill: var(--bad); }
.controls { display: flex; flex-wrap: wrap; gap: .4rem; margin: .4rem 0; }
.controls button { font: inherit; font-size: .9rem; color: inherit; background: none; border: 1px solid var(--line);
  border-radius: 4px; padding: .15rem .6rem; cursor: pointer; }
.readout { min-height: 1.6em; font-size: .9rem; overflow-wrap: anywhere; }
.timeline { max-height: 34rem; overflow: hidden auto; border: 1px solid var(--line); }
.timeline canvas { display: block; width: 100%; touch-action: pan-y; cursor: grab; }
.flame { position: relative; overflow: hidden; }
.flame span { position: absolute; height: 17px; overflow: hidden; white-space: nowrap; color: #fff;
  font: 11px/17px system-ui, sans-serif; padding-left: 3px; border-right: 1px solid var(--back); }
.flame .compute { background: var(--compute); } .flame .memory { background: var(--memory); color: #000; }
.flame .communication { background: var(--communication); color: #000; } .flame .host { background: var(--host); }
.flame .gap { background: var(--gap); color: #000; } .flame .other { background: var(--other); }
.flame .bad { background: var(--bad); }
@media (prefers-color-scheme: dark) { .flame span { color: #000; } }
@media (max-width: 40rem) { .readout { min-height: 4.5em; } body { margin: 1rem auto; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: .4rem; } .rows .plot { padding-left: 4.6rem; padding-right: 4.2rem; } }
@media print {
  :root { font-size: 11px; color-scheme: light; --ink: #000; --soft: #444; --line: #bbb; --back: #fff; --bad: #b42318;
    --good: #00704f; --grid: #e7ebef; --compute: #0a3fb5; --memory: #3cb4ee; --communication: #dd6a10; --host: #a3439b;
    --overlap: #2b8b5b; --free: #bcc2ca; --gap: #7d8793; --other: #5a4233; --track: #dfe4ea; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  body { max-width: none; margin: 0; font-size: 1rem; }
  th, th.number, td.number { white-space: normal; } td, th { padding: .2rem .4rem; }
  td, td.wide, td code { min-width: 0; }
  nav { display: none; } figure, article, tr, li { break-inside: avoid; } h2, h3 { break-after: avoid; }
  .scroll { overflow: visible; } details::details-content { content-visibility: visible; height: auto; } }
"""

SCRIPT = """
for (const head of document.querySelectorAll("th")) {
  const button = document.createElement("button");
  button.append(...head.childNodes); head.append(button);
  button.onclick = () => {
    const down = head.getAttribute("aria-sort") !== "descending", body = head.closest("table").tBodies[0];
    const key = row => row.cells[head.cellIndex].dataset.value ?? row.cells[head.cellIndex].textContent;
    const order = (a, b) => isNaN(key(a) - key(b)) ? key(a).localeCompare(key(b)) : key(a) - key(b);
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...[...body.rows].sort((a, b) => down ? order(b, a) : order(a, b)));
  };
}
"""
"""Heads of tables become buttons that sort; the timeline is drawn. Without it the rest of the page reads the same."""

SCRIPT += (Path(__file__).parent / "static" / "timeline.js").read_text(encoding="utf-8")

_HASH = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{_HASH}'"
"""What a browser may do with the page: this script, this style, and nothing from anywhere. A second fence behind the
escaping."""
