"""Planted shapes found by the printed and the robust rule: `python -m benchmarks.localisation_accuracy [--seeds 5]`.

Prints recall and precision of (function, worker) pairs, means over seeds, as a Markdown table; of healthy jobs the
share of patterns that is flagged. `--write FILE` puts the table between the marks in FILE. Returns 1 where the robust
rule misses its aims (`is_good`).
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.localisation_shapes import Shape, score, shapes
from lockstep.diagnosis.localisation import Rule, localise

BEGIN, END = "<!-- localisation_accuracy: begin -->", "<!-- localisation_accuracy: end -->"
_LEAST = 0.99
_WEAK = "the same, beta x 1.15, SM x 0.87"
_WEAK_LEAST = 0.68
_HEALTHY_MOST = 0.0005


def measure(shape: Shape) -> list[tuple[float, float]]:
    """Return recall and precision of both rules."""
    return [
        score(shape, localise(shape.matrix, rule=rule, groups=shape.groups)) for rule in (Rule.PRINTED, Rule.ROBUST)
    ]


def is_good(shape: Shape, recall: float, precision: float) -> bool:
    """Whether the robust rule reaches its aim."""
    if not shape.planted:
        return precision <= _HEALTHY_MOST
    return recall >= (_WEAK_LEAST if shape.name == _WEAK else _LEAST) and precision >= _LEAST


def table(seeds: Sequence[int]) -> tuple[list[str], bool]:
    """Return the table's lines, and whether every aim is reached."""
    made = [shapes(seed) for seed in seeds]
    lines = ["| planted | printed rule: recall / precision | robust rule |", "|---|---|---|"]
    good = True
    for same in zip(*made, strict=True):
        means = np.mean([measure(shape) for shape in same], axis=0)
        good &= is_good(same[0], *means[1])
        shown = [
            f"{recall:.2f} / {precision:.2f}" if same[0].planted else f"{precision:.2%} of patterns flagged"
            for recall, precision in means
        ]
        lines.append(f"| {same[0].name} | {shown[0]} | {shown[1]} |")
    return lines, good


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 where an aim is missed."""
    parser = argparse.ArgumentParser(description="Accuracy of localisation on planted shapes.")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--write", type=Path)
    parsed = parser.parse_args(arguments)
    lines, good = table(range(parsed.first_seed, parsed.first_seed + parsed.seeds))
    print("\n".join(lines))
    if parsed.write:
        text = parsed.write.read_text()
        before, after = text[: text.index(BEGIN)], text[text.index(END) :]
        parsed.write.write_text("\n".join((before + BEGIN, *lines, after)))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
