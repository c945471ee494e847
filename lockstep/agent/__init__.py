"""Inside the training process: marks of a step become a record, in shared memory. Never slows or stops training.

    bootstrap ─► agent ─┬► hooks/ ─► recorder ─► record, account   what happened, and where the time went
                        │               ├► iteration, quantities   where a step ends, what it holds
                        │               └► device/                 the same on the clock of a device
                        ├► ring                                    where the exporter reads it
                        └► profiler ─► capture/ ◄─ control         what the coordinator asks for

    throughput/   samples, tokens, model FLOPs, peak      garbage   collections, noted without a line of Python
    groups, kinds, traffic   who talks to whom, and how much      api, adapters/   what a training says itself

Standard library and `lockstep.contracts` only; torch is touched in functions, once training has imported it.
"""
