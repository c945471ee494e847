"""Everything killed, again and again, and every record counted: `python -m benchmarks.chaos`.

`ranks.py` plays the training ranks, `world.py` is all that runs, `faults.py` what is done to it, `watch.py` what is
scraped meanwhile, `run.py` inflicts and waits, `verdict.py` is what must hold at the end.
"""
