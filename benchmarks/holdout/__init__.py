"""A second generator of labelled runs, which shares no model with `benchmarks/scenarios`.

A simulator and a detector by one author agree too easily. This one steps through time rank by rank with each rank's own
clock, draws what the other one fixes, and is scored from the incident lines of `lockstep replay` alone.

`job.py` defines what a case is, `work.py` draws what each rank has to do, `clockwork.py` lets them meet, `step_log.py`
writes what they measured and loses some of it, `cases.py` is the table, `score.py` compares incident lines with the
truth, `recorded.py` injects slowness into recordings of real jobs.
"""
