"""Two ranks that the script starts itself: `processes.py fork|spawn STORE`."""

import multiprocessing
import sys

from training import train_in_group

RANKS = 2


def work(rank, store):
    train_in_group(init_method=f"file://{store}", rank=rank, world_size=RANKS)


if __name__ == "__main__":
    method, store = sys.argv[1:]
    context = multiprocessing.get_context(method)
    processes = [context.Process(target=work, args=(rank, store)) for rank in range(RANKS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(max(abs(process.exitcode) for process in processes))
