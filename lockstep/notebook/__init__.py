"""The Python API for notebooks and scripts: traces, analyses, step logs and incidents as tables.

`lockstep` loads these names when they are used first, so that a training process never imports them: `open_trace`
(`traces`), `analyze` (`analyses`), `read_steps` (`step_logs`), `incidents` (`coordinators`). Every table has a fixed
schema with units (`tables`), as a pandas DataFrame or, on request, as an Arrow table. Nothing here evaluates a trace.
"""
