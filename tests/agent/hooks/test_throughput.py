"""From batches to model FLOPs in the record and facts in the ring, on real training in this process."""

import sys

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.data import DataLoader, TensorDataset

from lockstep.agent import bootstrap
from lockstep.agent.throughput.flops import MEASURED_END
from lockstep.contracts import ring as layout
from lockstep.contracts.blob import read_blob
from lockstep.contracts.facts import facts_from_json
from lockstep.contracts.records import MISSING, Flag
from tests.agent.rings import read_ring

pytestmark = pytest.mark.torch

WORDS, WIDTH, LENGTH, BATCH = 50, 8, 16, 4
STEPS = MEASURED_END + 3
PARAMETERS = WORDS * WIDTH + (WIDTH * LENGTH) * WORDS + WORDS
TOKENS = BATCH * LENGTH
PRODUCT_FLOPS = 2 * BATCH * (WIDTH * LENGTH) * WORDS


def train(*, dtype=None):
    """Run a plain loop over tokens and return its losses."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Embedding(WORDS, WIDTH), torch.nn.Flatten(), torch.nn.Linear(WIDTH * LENGTH, WORDS)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids = torch.arange(STEPS * TOKENS).reshape(-1, LENGTH) % WORDS
    losses = []
    for batch, target in DataLoader(TensorDataset(ids, ids[:, 0]), batch_size=BATCH):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            loss = torch.nn.functional.cross_entropy(model(batch), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def read_facts(path):
    blob = read_blob(memoryview(path.read_bytes()), layout.FACTS_OFFSET, layout.FACTS_BYTES)
    return facts_from_json(blob[1], where=str(path))


@pytest.fixture
def watch(rank_environment, monkeypatch):
    """Return a function that trains under an agent with settings, and gives (losses, ring, facts)."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None:
        dynamo.counters.clear()  # what former tests compiled in this process is not this training's

    def run(**settings):
        for name, value in settings.items():
            monkeypatch.setenv(f"LOCKSTEP_{name.upper()}", value)
        assert bootstrap.install()
        agent = bootstrap._agent
        engine = torch.autograd.Variable._execution_engine
        losses = train(dtype=torch.bfloat16)
        assert "run_backward" not in vars(engine)  # given back after the first look
        assert agent.boundary.failures == 0
        bootstrap.uninstall()
        path = rank_environment / "0.ring"
        return losses, read_ring(path), read_facts(path)

    yield run
    bootstrap.uninstall()


def test_tokens_times_parameters_without_any_setting(watch):
    """Six FLOPs per parameter and token stand in each record, and the ring states what the rank runs on."""
    losses, ring, facts = watch()
    assert losses == train(dtype=torch.bfloat16)
    for record in ring.records[1:]:  # the first batch was fetched before anything trained
        assert (record["samples"], record["tokens"], record["work"]) == (BATCH, TOKENS, TOKENS * LENGTH)
        assert record["model_flops"] == 6 * PARAMETERS * TOKENS
    assert (facts.device, facts.device_kind, facts.dtype, facts.backend) == ("cpu", "cpu", "bf16", "")
    assert (facts.parameters, facts.flops_source, facts.peak_flops_per_second) == (PARAMETERS, "parameters", None)
    assert facts.torch_version == torch.__version__


def test_settings_reach_record_and_facts(watch):
    """Tokens, FLOPs, peak and format are those of the environment."""
    _, ring, facts = watch(tokens="1000", samples="off", model_flops="5e6", peak_flops="1e12", dtype="fp8")
    for record in ring.records[1:]:  # the first batch was fetched before anything trained
        assert (record["samples"], record["tokens"]) == (MISSING, 1000)
        assert record["model_flops"] == 5_000_000_000
    assert (facts.peak_flops_per_second, facts.dtype, facts.flops_source) == (1e12, "fp8", "configured")


def test_measuring_changes_no_loss_and_flags_one_step(watch):
    """One step is counted by torch and flagged; losses are the same bit for bit; nothing of the counter stays."""
    losses, ring, _ = watch(model_flops="measure")
    assert losses == train(dtype=torch.bfloat16)
    measured = [record["model_flops"] for record in ring.records]
    assert measured == [MISSING] * (MEASURED_END + 1) + [3 * PRODUCT_FLOPS] * 2
    assert [bool(record["flags"] & Flag.PROFILED) for record in ring.records] == [
        index == MEASURED_END for index in range(STEPS)
    ]
    assert _get_current_dispatch_mode_stack() == []


def test_a_wrong_setting_costs_one_line(watch, capsys):
    """Training goes on with the default where a setting makes no sense."""
    _, ring, _ = watch(model_flops="plenty")
    assert ring.records[-1]["model_flops"] == 6 * PARAMETERS * TOKENS
    (line,) = capsys.readouterr().err.splitlines()
    assert "LOCKSTEP_MODEL_FLOPS: got 'plenty', expected auto, measure, off, or FLOPs per token" in line
