"""Model FLOPs of a token: configured, from the parameters, measured by torch's own counter; what ends the measuring."""

import gc
import weakref
from threading import Thread

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from lockstep.agent.throughput.flops import MEASURED_END, MEETINGS_MAX, ModelFlopsReporter
from lockstep.agent.throughput.options import read_options
from lockstep.contracts.records import MISSING, Flag

pytestmark = pytest.mark.torch

BATCH, INNER = 4, 16
UNKNOWN = ("unknown", 0.0)
LINEAR_FLOPS = 2 * BATCH * INNER * INNER
"""Of one product of a batch with a square matrix; a training step has three: forward, and backward twice."""


def make(compilations=0, flags=None, **environment):
    options = read_options({f"LOCKSTEP_{name.upper()}": value for name, value in environment.items()})
    return ModelFlopsReporter(options, (flags if flags is not None else []).append, lambda: compilations)


def make_optimizer(*sizes):
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(size, INNER)) for size in sizes], lr=0.1)


def train_step():
    weight = torch.ones(INNER, INNER, requires_grad=True)
    inputs = torch.ones(BATCH, INNER, requires_grad=True)
    (inputs @ weight).sum().backward()


def test_configured_flops_per_token():
    """A number per token is taken as it is."""
    flops = make(model_flops="2.5e9")
    assert flops.factor == ("token", 2.5e9)
    assert flops.source == "configured"


def test_six_per_parameter_and_token():
    """Parameters of all optimizers that live count once each, and those of one that died no longer."""
    flops = make()
    assert (flops.factor, flops.source) == (UNKNOWN, "none")
    generator, discriminator = make_optimizer(10, 20), make_optimizer(5)
    flops.meet(generator)
    flops.meet(generator)
    assert flops.factor == ("token", 6 * 30 * INNER)
    flops.meet(discriminator)
    assert flops.factor == ("token", 6 * 35 * INNER)
    assert (flops.source, flops.parameters) == ("parameters", 35 * INNER)
    del generator
    gc.collect()
    third = make_optimizer(1)
    flops.meet(third)
    assert flops.parameters == 6 * INNER


def test_configured_parameters_go_before_seen_ones():
    """A mixture of experts states how many of its parameters work on a token."""
    flops = make(parameters="1e9")
    flops.meet(make_optimizer(10))
    assert flops.factor == ("token", 6e9)


def test_optimizers_made_at_each_step_are_not_all_looked_at():
    """After a bounded number of meetings the count stays what it was."""
    flops = make()
    kept = [make_optimizer(1) for _ in range(MEETINGS_MAX + 5)]
    for optimizer in kept:
        flops.meet(optimizer)
    assert flops.parameters == MEETINGS_MAX * INNER


def test_off_and_what_is_unknown_are_missing():
    """Without a count, or switched off: not known, never 0."""
    off = make(model_flops="off", parameters="1e9")
    assert (off.factor, off.source) == (UNKNOWN, "none")
    shards = make()
    shards.meet(torch.optim.SGD([torch.zeros(100)], lr=0.1))
    assert (shards.factor, shards.parameters) == (UNKNOWN, None)


def test_no_parameter_is_kept_alive():
    """A model that training dropped is gone, optimizer and all."""
    flops = make()
    optimizer = make_optimizer(10)
    parameter = weakref.ref(optimizer.param_groups[0]["params"][0])
    flops.meet(optimizer)
    del optimizer
    gc.collect()
    assert parameter() is None


def run_steps(flops, count, batches=((BATCH, 100),)):
    """Train steps of so many batches, as (samples, tokens); return what is known after each."""
    found = []
    for _ in range(count):
        for batch in batches:
            flops.add_batch(*batch)
        train_step()
        flops.measure()
        found.append(flops.factor)
    return found


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([(BATCH, 100)], ("token", 3 * LINEAR_FLOPS / 100)),
        ([(BATCH, 60), (BATCH, 40)], ("token", 3 * LINEAR_FLOPS / 100)),
        ([(BATCH, MISSING)], ("sample", 3 * LINEAR_FLOPS / BATCH)),
        ([(MISSING, MISSING)], ("step", 3 * LINEAR_FLOPS)),
        ([], ("step", 3 * LINEAR_FLOPS)),
    ],
)
def test_one_step_is_measured(batches, expected):
    """Exactly one step is counted, by torch's counter, flagged, and scales with tokens, samples or nothing."""
    flags = []
    flops = make(model_flops="measure", flags=flags)
    found = run_steps(flops, MEASURED_END + 2, batches)
    assert found == [UNKNOWN] * MEASURED_END + [expected] * 2
    assert flags == [int(Flag.PROFILED)]
    assert _get_current_dispatch_mode_stack() == []
    assert not flops.is_measuring
    assert flops.source == "measured"


def test_an_iteration_of_several_optimizers_is_measured_as_a_whole():
    """A batch is fetched once for two optimizers' steps: both are what its tokens cost."""
    flops = make(model_flops="measure")
    for _ in range(MEASURED_END):
        run_steps(flops, 1)
        run_steps(flops, 1, batches=())
    assert flops.factor == ("token", 2 * 3 * LINEAR_FLOPS / 100)


def test_compiled_training_is_not_measured(capsys):
    """Where torch.compile hides operators the parameters' rule is taken, and one line states that."""
    flops = make(compilations=1, model_flops="measure", parameters="1000")
    assert run_steps(flops, MEASURED_END + 1)[-1] == ("token", 6000)
    assert "torch.compile hides operators" in capsys.readouterr().err
    assert flops.source == "parameters"


def test_a_mode_of_the_trainings_own_is_left_in_its_place(capsys):
    """Modes end in order only: ours waits for one begun inside the measured step, and gives up its figure."""
    flops = make(model_flops="measure", parameters="1000")
    run_steps(flops, MEASURED_END)

    class Own(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    with Own() as own:
        run_steps(flops, 2)
        assert _get_current_dispatch_mode_stack()[-1] is own
    assert run_steps(flops, 2)[-1] == ("token", 6000)
    assert _get_current_dispatch_mode_stack() == []
    assert "another dispatch mode" in capsys.readouterr().err


def test_a_measurement_without_an_end_is_abandoned():
    """When no one asks any more, the thread that began to count stops, and no other thread does it for it."""
    flops = make(model_flops="measure")
    run_steps(flops, MEASURED_END)
    assert len(_get_current_dispatch_mode_stack()) == 1
    other = Thread(target=flops.abandon)
    other.start()
    other.join()
    assert len(_get_current_dispatch_mode_stack()) == 1
    flops.abandon()
    flops.abandon()
    assert _get_current_dispatch_mode_stack() == []
