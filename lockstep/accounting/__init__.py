"""Turns the marks of a training process into step records: pure functions and state objects, run by the exporter.

    block_reader.py     reads blocks from the slots of a ring, and counts lost ones
    step_builder.py     finds the steps in blocks; the entry point
    spans.py            phases of the training thread, and the candidates for the end of an iteration
    iteration.py        learns which of these candidates end a step
    pending_marks.py    buffers marks of communication until the step ends
    communication_marks.py   dispatches marks of communication
    communication.py    collectives and waits of the running step, mark by mark
    communication_arrays.py  the same with arrays, for large steps and for all steps with a device
    quantities.py       samples, tokens, work and FLOPs of the running step
    breakdown.py        partitions the time of a step by its events
    breakdown_arrays.py the same for steps whose communication is in arrays, those of all ranks together
    domain_totals.py    bytes and counts of a step's collectives
    model_flops.py      model FLOPs of a step
    step_record.py      packs the records of steps that ended
    alignment.py        numbers steps by the counts of ends: after lost marks, and for captures
    state.py            saves and restores state as JSON values, for a restart of the exporter

    device_marks.py     on a device: which marks have events, and what is read of them
    device_tracker.py   steps that the device has not finished, and device time on the host's clock
    device_step.py      the events of one step, and what they measure
    device_axis.py      converts host times to device times

No clock, no file, no thread. Lost marks are counted and flagged, never guessed.
"""
