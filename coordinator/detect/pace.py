"""How long steps of another pace are remembered: an evaluation step by step has none of the backward pass.

Pure. A run (`runs/fluctuation.py`) and its stages (`ranks/stage_past.py`) are compared with steps of the same pace.
"""

SETTLED_STEPS = 8
"""So many steps in a row at another pace are one that the run now has."""
RETURN_STEPS = 64
"""For so long it may go back to the former one: evaluations step by step take tens of steps."""
