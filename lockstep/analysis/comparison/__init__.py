"""What changed between two runs: `lockstep analyze A --against B`.

`observe` measures one rank's trace step by step, `compare` compares two runs and their noise, `paths` compares two
folders. Pure except for `paths`; nothing here looks for a culprit inside a run.
"""
