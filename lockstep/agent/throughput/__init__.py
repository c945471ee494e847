"""The content of a step and the rank's peak rate: samples, tokens, model FLOPs, and the rank's device.

    options.py      what the job reports of itself in LOCKSTEP_* variables
    batch.py        samples and tokens of a batch
    flops.py        model FLOPs of a step, from parameters.py or one measured step
    precision.py    the number format of the matrix products
    facts.py        all that is reported once: device, format, peak, size

docs/throughput.md has the assumptions.
"""
