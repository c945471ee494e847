"""Screenshots of the report of `lockstep analyze`, at the widths of a desktop and of a phone, in both colour schemes.

    python -m benchmarks.report_pictures [TRACES ...] [--out build/report]

Without paths the report is of a recorded job whose rank 2 sleeps in its forward. Chromium draws it; anything that its
console warns of, or that reaches beyond the page's width, makes the exit status 1.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lockstep.cli.main import main as lockstep
from tests.support.browser import chromium

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "tests" / "analysis" / "recorded" / "forward_stacks"
WIDTHS = (1440, 390)
SCHEMES = ("light", "dark")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pictures and name each; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, default=[RECORDED])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "report")
    given = parser.parse_args(arguments)
    if lockstep(["analyze", *map(str, given.paths), "--out", str(given.out)]):
        return 1
    is_good = True
    with chromium() as browser:
        for width in WIDTHS:
            for scheme in SCHEMES:
                browser.open((given.out / "report.html").resolve(), width=width, scheme=scheme)
                reached = browser.ask("document.documentElement.scrollWidth")
                path = given.out / f"report-{width}-{scheme}.png"
                browser.picture(path)
                print(f"{path}: {path.stat().st_size / 1024:.0f} KB, {reached} px wide")
                is_good &= reached <= width
        complaints = list(browser.complaints)
    print("\n".join(complaints), end="\n" if complaints else "")
    return int(not is_good or bool(complaints))


if __name__ == "__main__":
    sys.exit(main())
