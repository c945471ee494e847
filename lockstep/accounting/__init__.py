"""Marks of a training process become step records: pure functions and states, run by the exporter.

    block_reader.py     slots of a ring to blocks, and what was lost
    step_builder.py     blocks to step records; the one way in
    spans.py            phases of the training thread, and where an iteration may end
    iteration.py        which of these ends are a step's
    pending_marks.py    marks of communication, kept until the step ends
    communication_marks.py   which of them does what
    communication.py    collectives and waits of the running step, mark by mark
    communication_arrays.py  the same at once, for large steps, and for all with a device
    quantities.py       samples, tokens, work and FLOPs of the running step
    breakdown.py        the events of a step to a partition of its time
    breakdown_arrays.py the same for a step whose communication was read at once
    domain_totals.py    what a step's collectives moved
    model_flops.py      model FLOPs of a step
    step_record.py      the record's bytes
    alignment.py        steps from the counts of ends: over lost marks, and for captures
    state.py            what a restart of the exporter needs, as values of JSON

    device_marks.py     on a device: which marks have events, and what is read of them
    device_tracker.py   steps that it is not done with, and where its time lies on the host's clock
    device_step.py      the events of one step, and what they measure
    device_axis.py      host times to device times

No clock, no file, no thread. What is lost is counted and flagged, never guessed.
"""
