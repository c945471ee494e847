"""One capture of torch.profiler in the training process: whose turn it is, how much it may take, what it leaves.

`profiler.py` next door looks for orders; `capture_runner.py` answers them and carries them out, and is loaded when the
first one arrives. Nothing here reads the control block or the ring, and only `recording.py` starts and stops a
profiler.
"""
