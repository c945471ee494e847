"""The demonstration's training with a fault that can be repaired: it lasts while FOLDER/broken exists.

    torchrun ... whatif_job.py FOLDER --fault compute --rank 2 --fault-ms 100

It knows nothing of Lockstep.
"""

import sys
from pathlib import Path

from lockstep.cli.demo import training

FOLDER = Path(sys.argv.pop(1))


class Mendable(training.Fault):
    """A fault of the demonstration, switched by a file."""

    def active(self, kind: str, step: int | None = None) -> bool:  # noqa: ARG002  (it does not depend on the step)
        """Return whether the fault is there."""
        return self.kind == kind and (FOLDER / "broken").exists()


if __name__ == "__main__":
    training.Fault = Mendable  # type: ignore[misc]
    training.train(training.parse_arguments())
