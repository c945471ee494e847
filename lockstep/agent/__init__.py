"""The part of Lockstep inside the training process: writes marks of events to shared memory, never blocks training.

    bootstrap ─► agent ─┬► hooks/ ─► mark_buffer or _marks.c   events: clock, kind, argument
                        │               └► device/             the same for work queued on a device
                        ├► ring                                the file that the exporter reads
                        ├► attempt_facts ─► throughput/        known after the first steps: facts, model FLOPs
                        └► profiler ─► capture/ ◄─ control     captures that the coordinator requests

    groups, kinds, traffic   process groups and their traffic     api, adapters/   what a training reports itself

Nothing is interpreted here: lockstep/accounting, in the exporter, builds steps from the marks.

Standard library and `lockstep.contracts` only; functions use torch once training has imported it.
"""
