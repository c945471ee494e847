"""The demonstration's training without a fault, whose ranks all collect garbage after each step: a common recipe."""

import gc

from torch.optim.optimizer import register_optimizer_step_post_hook

from lockstep.cli.demo.training import parse_arguments, train


def main() -> None:
    """Train as the command line asks."""
    gc.disable()  # as the recipe does: only full collections, in the same step of all ranks
    register_optimizer_step_post_hook(lambda *_: gc.collect())
    train(parse_arguments())


if __name__ == "__main__":
    main()
