"""One capture of torch.profiler in the training process: arbitration of the profiler, its budget, its output.

`profiler.py`, in the parent package, polls for capture requests; `capture_runner.py` answers and executes them, and is
loaded when the first one arrives. Nothing here reads the control block or the ring, and only `recording.py` starts and
stops a profiler.
"""
