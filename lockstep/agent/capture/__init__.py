"""One capture of torch.profiler in the training process: whose turn it is, how much it may take, what it leaves.

`profiler.py` next door reads orders and answers them; here is what carries one out. Nothing here reads the control
block or the ring, and only `recording.py` starts and stops a profiler.
"""
