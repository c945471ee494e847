"""A rank that trains and then ends badly: `failing_spawn_job.py fork|spawn raise|exit`; the parent ends well."""

import gc
import multiprocessing
import sys

import torch

gc.freeze()  # half a second at the end of each process would go into the search for garbage among torch's objects


def work(how):
    torch.set_num_threads(1)
    torch.nn.Linear(4, 1)(torch.ones(2, 4)).sum().backward()
    if how == "raise":
        raise RuntimeError("out of memory")
    sys.exit(int(how))


if __name__ == "__main__":
    method, how = sys.argv[1:]
    process = multiprocessing.get_context(method).Process(target=work, args=(how,))
    process.start()
    process.join()
