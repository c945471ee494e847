"""The model FLOPs of a token, a sample or a step; the accounting multiplies (lockstep/accounting).

Where they come from, the first that applies: what the training annotates, a configured number per token, some steps
measured by torch's own FlopCounterMode when asked for, and 6 N D: six FLOPs per parameter and token (Kaplan et
al., Scaling Laws for Neural Language Models, 2020, section 2.1: two forward, four backward; attention scores and
recomputation left out, which is what PaLM, 2022, appendix B, calls model FLOPs but for its attention term).

N is what this rank's optimizers hold (parameters.py). docs/throughput.md lists for which models that is wrong, and what
to configure then.

Measured is what runs between two ends of optimizer steps: from the third of them to the first one before which a batch
was fetched, so that a training of several optimizers is measured as a whole. Over the tokens that were fetched in
between, which in the long run are those that were trained on.
"""

import sys
from collections.abc import Callable, Iterable
from threading import get_ident
from typing import Any
from weakref import WeakSet

from lockstep.agent.boundary import warn
from lockstep.agent.throughput.options import AUTO, MEASURE, OFF, ThroughputOptions
from lockstep.agent.throughput.parameters import count_parameters
from lockstep.contracts.records import MISSING, Flag

FLOPS_PER_PARAMETER_AND_TOKEN = 6
MEASURED_END = 3
"""The end of an optimizer's step behind which measuring begins: the ones before it may still set things up."""
MEETINGS_MAX = 64
"""Optimizers that are looked at (5 us a parameter, once): a training that makes one each step must not pay for each."""


class ModelFlopsReporter:
    """Used by the training thread; keeps no parameter alive.

    `flag` marks the running step, `compilations` returns how many graphs torch.compile has made.
    """

    def __init__(
        self, options: ThroughputOptions, flag: Callable[[int], None], compilations: Callable[[], int]
    ) -> None:
        self._flag = flag
        self._compilations = compilations
        self._optimizers: WeakSet[Any] = WeakSet()
        self._meetings = MEETINGS_MAX if options.parameters is not None else 0
        self._rule = options.model_flops.mode
        self._per_token = options.model_flops.per_token
        self._per_sample: float | None = None
        self._per_step: int | None = None
        self._ends = 0
        self._has_batches = False
        self._batches: list[tuple[int, int]] = []
        """Samples and tokens of what was fetched while operators are counted."""
        self._counter: Any = None
        self._is_late = False
        self.measuring_thread = 0
        """Whose operators are being counted; 0 is no thread's id."""
        self.is_measuring = self._rule == MEASURE
        """Whether a measurement is under way or has yet to begin."""
        self.parameters = None if options.parameters is None else int(options.parameters)
        """N: configured, else of all optimizers met so far; None where it is unknown."""
        self.dtype = ""
        """Number format of the model's matrix products, empty as long as none was seen (hooks/throughput.py)."""
        self._apply_parameters()

    @property
    def source(self) -> str:
        """Where the FLOPs come from: configured, measured, parameters or none."""
        if self._rule == OFF:
            return "none"
        if not self._rule:
            return "configured"
        if self._rule == MEASURE:
            return "measured"
        return "none" if self.parameters is None else "parameters"

    @property
    def factor(self) -> tuple[str, float]:
        """What the FLOPs are for, one of `marks.FLOPS_UNITS`, and how many."""
        if self._per_token is not None:
            return "token", self._per_token
        if self._per_sample is not None:
            return "sample", self._per_sample
        if self._per_step is not None:
            return "step", self._per_step
        return "unknown", 0.0

    def meet(self, optimizer: Any) -> None:
        """Look at the parameters of an optimizer not met before, and at those of all others that still live."""
        if optimizer in self._optimizers or self._meetings == MEETINGS_MAX:
            return
        self._optimizers.add(optimizer)
        self._meetings += 1
        self.parameters = count_parameters(_parameters_of(self._optimizers))
        self._apply_parameters()

    def abandon(self) -> None:
        """Stop a measurement that the calling thread has begun and whose end will not be seen."""
        if self.measuring_thread == get_ident() and _leave_counter(self._counter) is not None:
            self._counter = None
            self.measuring_thread = 0

    def _apply_parameters(self) -> None:
        if self._rule == AUTO:
            self._per_token = None if self.parameters is None else FLOPS_PER_PARAMETER_AND_TOKEN * self.parameters

    def add_batch(self, samples: int, tokens: int) -> None:
        """Count a batch, as long as `is_measuring`."""
        self._has_batches = True
        if self._counter is not None:
            self._batches.append((samples, tokens))

    def measure(self) -> None:
        """Begin or end to measure, where an optimizer's step has just ended."""
        self._ends += 1
        if self._counter is not None:
            if self._batches or not self._has_batches:
                self._finish()
        elif self._ends == MEASURED_END:
            if self._compilations():
                self._give_up("torch.compile hides operators from the counter")
            else:
                self._batches.clear()
                self._counter = _enter_counter()
                self.measuring_thread = get_ident()
        if self._counter is not None:
            self._flag(int(Flag.PROFILED))  # the step that begins is counted, and is not like the others

    def _finish(self) -> None:
        is_first = not self._is_late
        total = _leave_counter(self._counter)
        if total is None:  # a mode of the training's own lies above ours: ours has to wait for its end
            self._is_late = True
            return
        self._counter = None
        self.measuring_thread = 0
        if not is_first or not total:
            self._give_up("another dispatch mode began in the measured step" if total else "no operator was counted")
            return
        self.is_measuring = False
        samples = sum(count for count, _ in self._batches if count != MISSING)
        tokens = sum(count for _, count in self._batches if count != MISSING)
        if tokens:
            self._per_token = total / tokens
        elif samples:
            self._per_sample = total / samples
        else:
            self._per_step = total

    def _give_up(self, reason: str) -> None:
        warn(f"LOCKSTEP_MODEL_FLOPS=measure: {reason}; 6 x parameters x tokens is taken instead")
        self.is_measuring = False
        self._rule = AUTO
        self._apply_parameters()


def _parameters_of(optimizers: Iterable[Any]) -> Iterable[Any]:
    for optimizer in list(optimizers):
        for group in optimizer.param_groups:
            yield from group["params"]


def _enter_counter() -> Any:
    """Begin to count on this thread and on autograd's behind it."""
    from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415  (training imported torch)

    counter = FlopCounterMode(display=False)
    counter.__enter__()
    return counter


def _leave_counter(counter: Any) -> int | None:
    """Stop counting and return the FLOPs, or None if ours is not the innermost mode: modes end in order only."""
    modes = sys.modules["torch.utils._python_dispatch"]._get_current_dispatch_mode_stack()  # noqa: SLF001
    if not modes or modes[-1] is not counter.mode:
        return None
    counter.__exit__(None, None, None)
    return int(counter.get_total_flops())
