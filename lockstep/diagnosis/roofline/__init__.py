"""Rooflines: how much of its device an operator uses, and what limits it.

May import contracts and trace, and numpy. `classic` is Hermes' roofline of operators with a formula, from shapes;
`components` the component roofline of Ascend operators (ASPLOS 2025), from counters. `classic_rules`,
`component_rules` and `ascend_rules` turn them into findings. Thresholds are data (`roofline_limits`), and so are the
devices (`devices`). Unknown results are NotEvaluated, with their reason.
"""
