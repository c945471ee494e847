"""Classes are distinguished by people who see red and green, or blue and yellow, alike."""

import itertools
import re

import numpy as np
import pytest

from lockstep.analysis.report.parts import CLASSES
from lockstep.analysis.report.style import STYLE

SIGHT = {
    "all": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
"""The physiologically-based model of Machado, Oliveira and Fernandes (2009), severity 1.0, on linear RGB."""
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = XYZ.sum(axis=1)
KINDS = (*CLASSES, "memory", "gap", "other")
APART = 12.0
"""Difference in CIELAB; 2.3 is just noticeable side by side."""


def linear(colour):
    value = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    ratio = XYZ @ np.clip(rgb, 0, 1) / WHITE
    x, y, z = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def colours(scheme):
    light, dark = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)[:2]
    return dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", dark if scheme == "dark" else light))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("sight", SIGHT)
def test_classes_of_a_bar_differ(scheme, sight):
    """Any two classes of the breakdown and of the critical path lie far apart in CIELAB, however one sees."""
    seen = {name: lab(np.array(SIGHT[sight]) @ linear(colours(scheme)[name])) for name in KINDS}
    for one, other in itertools.combinations(KINDS, 2):
        assert np.linalg.norm(seen[one] - seen[other]) >= APART, (one, other)


def test_paper_has_the_light_scheme_colours():
    """Print takes the colours of the light scheme, so that a dark screen prints like a light one."""
    paper = dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", STYLE[STYLE.index("@media print") :]))
    assert {name: paper[name] for name in KINDS} == {name: colours("light")[name] for name in KINDS}
