"""What changed between two runs: `lockstep analyze A --against B`.

`observe` (what one rank's trace measures, step by step), `compare` (two runs side by side, with their noise), `paths`
(folders to a comparison). Pure but for `paths`; nothing here looks for a culprit inside a run.
"""
