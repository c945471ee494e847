"""Inside the training process: marks of what happens, in shared memory. Never slows or stops training.

    bootstrap ─► agent ─┬► hooks/ ─► mark_buffer or _marks.c   what happened: clock, kind, argument
                        │               └► device/             the same for what is queued on a device
                        ├► ring                                where the exporter reads it
                        ├► attempt_facts ─► throughput/        what is known after the first steps: facts, model FLOPs
                        └► profiler ─► capture/ ◄─ control     what the coordinator asks for

    groups, kinds, traffic   who talks to whom, and how much      api, adapters/   what a training reports itself

Nothing is interpreted here: lockstep/accounting makes steps of the marks, in the exporter.

Standard library and `lockstep.contracts` only; torch is touched in functions, once training has imported it.
"""
