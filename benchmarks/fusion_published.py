"""Hermes, table 5 (VGG16 on 8 cards): the exposed communication after gradient fusion, derived from that before.

    python -m benchmarks.fusion_published

The paper states the step before fusion (54.555 ms of computation, 21.760 ms of exposed communication, 0.177 ms free)
and two facts on the link (section 5.1.3): packets of 12.81 MB use 53 % of the bandwidth. With latency a and bandwidth
B the use of V bytes is V / (V + a B), which gives a B. Each gradient takes part in one all-reduce before fusion, so B
follows from the 21.760 ms. What fusion leaves of them is then computed (appendix E), and printed next to the paper's.

Not in the paper, and assumed: the backward takes two thirds of the computation, each layer by its operations (the first
layer has no gradient of its input); gradients are weights and biases, in fp32 or fp16. The link's two facts are
averages. Computation and free time stay as they were: the paper's computation after fusion is 1.648 ms shorter, which
no model of communication explains.
"""

import sys
from typing import NamedTuple

from lockstep.simulator.fusion import Gradient, Task, exact, fixed_buckets, forward_search, one_bucket, unfused

COMPUTE_MS, EXPOSED_MS, FREE_MS = 54.555, 21.760, 0.177
AFTER_COMPUTE_MS, AFTER_EXPOSED_MS, AFTER_MS = 52.907, 3.594, 56.640
PACKET_BYTES, USED_RATIO = 12.81e6, 0.53
BACKWARD_RATIO = 2 / 3
PICTURE = 224
STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
CLASSIFIER = (4096, 4096, 1000)
PARAMETERS = 138_357_544
"""Of VGG16 (Simonyan and Zisserman 2014, configuration D)."""
_HALVINGS = 60


class Layer(NamedTuple):
    """The weights and biases of a layer, and the operations of its forward on one picture."""

    weights: int
    biases: int
    operations: float


def layers() -> list[Layer]:
    """Return VGG16's layers in the order of the forward."""
    found, inputs, side = [], 3, PICTURE
    for stage in STAGES:
        for outputs in stage:
            weights = 9 * inputs * outputs
            found.append(Layer(weights, outputs, float(weights) * side * side))
            inputs = outputs
        side //= 2
    inputs *= side * side
    for outputs in CLASSIFIER:
        found.append(Layer(inputs * outputs, outputs, float(inputs * outputs)))
        inputs = outputs
    return found


def gradients(width: int) -> list[Gradient]:
    """Return the gradients in the order of the backward, of `width` bytes an element."""
    spent = [each.operations * (1 if index == 0 else 2) for index, each in enumerate(layers())]
    backward_s = BACKWARD_RATIO * COMPUTE_MS / 1e3
    found = []
    for layer, operations in zip(reversed(layers()), reversed(spent), strict=True):
        seconds = backward_s * operations / sum(spent)
        found += [Gradient(width * layer.weights, seconds), Gradient(width * layer.biases, 0.0)]
    return found


def task_of(width: int, bytes_per_second: float) -> Task:
    """Return the problem of fusion on a link of this bandwidth, whose latency follows from the use of it."""
    unused_bytes = PACKET_BYTES * (1 / USED_RATIO - 1)
    return Task(gradients(width), lambda volume_bytes: (unused_bytes + volume_bytes) / bytes_per_second)


def exposed_ms(task: Task, end_s: float) -> float:
    """Return what communication takes beyond the backward."""
    return 1e3 * (end_s - task.ready_s(task.count))


def fitted(width: int) -> Task:
    """Return the problem on the link with which unfused gradients leave EXPOSED_MS of communication exposed."""
    low, high = 1e8, 1e13
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        task = task_of(width, middle)
        low, high = (middle, high) if exposed_ms(task, unfused(task).end_s) > EXPOSED_MS else (low, middle)
    return task_of(width, (low * high) ** 0.5)


def main() -> int:
    """Print the derived rows next to the paper's; exit 1 if VGG16 has another number of parameters."""
    if (count := sum(each.weights + each.biases for each in layers())) != PARAMETERS:
        print(f"VGG16 has {count} parameters here, expected {PARAMETERS}")
        return 1
    print(
        "| gradients | fusion | all-reduces | exposed ms | step ms | error of the step |\n|---|---|---:|---:|---:|---:|"
    )
    for name, width in (("fp32", 4), ("fp16", 2)):
        task = fitted(width)
        ways = {
            "none (fitted)": unfused(task),
            "buckets of 25 MiB": fixed_buckets(task, 25 * 2**20),
            "one bucket": one_bucket(task),
            "Hermes's greedy search": forward_search(task),
            "best": exact(task),
        }
        for way, fusion in ways.items():
            tail_ms = exposed_ms(task, fusion.end_s)
            step_ms = COMPUTE_MS + tail_ms + FREE_MS
            error = "" if way.startswith("none") else f"{step_ms / AFTER_MS - 1:+.1%}"
            print(f"| {name} | {way} | {len(fusion.segments)} | {tail_ms:.3f} | {step_ms:.3f} | {error} |")
    print(f"\npaper: {EXPOSED_MS:.3f} exposed of {COMPUTE_MS + EXPOSED_MS + FREE_MS:.3f} ms before, ", end="")
    print(f"{AFTER_EXPOSED_MS:.3f} of {AFTER_MS:.3f} after fusion, with {AFTER_COMPUTE_MS:.3f} of computation")
    return 0


if __name__ == "__main__":
    sys.exit(main())
