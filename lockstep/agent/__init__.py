"""Inside the training process: marks of a step become a record, in shared memory. Never slows or stops training.

    bootstrap ─► agent ─┬► hooks/ ─► recorder ─► account      what happened, and where the time went
                        ├► ring                               where the exporter reads it
                        └► profiler ◄─ control                what the coordinator asks for

Standard library and `lockstep.contracts` only; torch is touched in functions, once training has imported it.
"""
