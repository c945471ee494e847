"""Rooflines: what an operator gets of its device, and why not more.

May import contracts and trace, and numpy. `classic` is Hermes' roofline of operators with a formula, from shapes;
`components` the component roofline of Ascend operators (ASPLOS 2025), from counters. `classic_rules`,
`component_rules` and `ascend_rules` turn them into findings; `picture` gives the points that a report draws. Thresholds
are data (`thresholds`), and so are the devices (`devices`). What is unknown is NotJudged, with its reason.
"""
