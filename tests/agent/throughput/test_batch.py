"""Samples, tokens and work of batches as training libraries make them, on real tensors."""

import warnings
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from lockstep.agent.throughput.batch import BOUNDARIES_MAX, BatchCounter
from lockstep.agent.throughput.options import read_options
from lockstep.contracts.records import MISSING

pytestmark = pytest.mark.torch

INTEGERS = frozenset((torch.int64, torch.int32, torch.int16, torch.uint8))
IDS = torch.zeros(4, 16, dtype=torch.int64)
ROW = torch.zeros(1, 12, dtype=torch.int64)
IMAGES = torch.zeros(8, 3, 5, 5)
LABELS = torch.zeros(8, dtype=torch.int64)
TEXT = (4, 64, 4 * 16 * 16)
PICTURES = (8, MISSING, MISSING)
NOTHING = (MISSING, MISSING, MISSING)


@dataclass(slots=True)
class Slotted:
    label: str
    input_ids: Any


class Named(NamedTuple):
    images: Any
    labels: Any


def count(batch, **environment):
    """Return what the first batch of a step counts for, and what was complained of."""
    lines = []
    options = read_options({f"LOCKSTEP_{name.upper()}": value for name, value in environment.items()})
    counter = BatchCounter(options, torch.Tensor, INTEGERS, lines.append)
    return counter.count(batch, 0), lines


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (IMAGES, PICTURES),
        ([IMAGES, LABELS], PICTURES),
        (Named(IMAGES, LABELS), PICTURES),
        ({"pixel_values": IMAGES, "labels": LABELS}, PICTURES),
        ([IDS, LABELS], TEXT),
        (({"input": IDS}, IDS), TEXT),
        ({"attention_mask": torch.ones(4, 20), "input_ids": IDS}, TEXT),
        ([{"input_ids": IDS}], TEXT),
        (SimpleNamespace(name="x", tokens=IDS), TEXT),
        (Slotted("x", IDS), TEXT),
        ({"text": "abc", "batch": {"input_ids": IDS}}, TEXT),
        ({"input_ids": IDS.float()}, (4, MISSING, MISSING)),
        ({"tokens": torch.zeros(10, dtype=torch.int32)}, (1, 10, 100)),
        ((LABELS, IMAGES), PICTURES),
        (((IMAGES[0], IMAGES[0, :, :4]), ({}, {})), NOTHING),
        (([IMAGES[0], IMAGES[0]], LABELS), PICTURES),
        (torch.zeros(()), NOTHING),
        ("text", NOTHING),
        (["text"] * 1000, NOTHING),
        (None, NOTHING),
        (iter([IMAGES]), NOTHING),
        ({}, NOTHING),
        ([[[[IMAGES]]]], NOTHING),
    ],
)
def test_usual_shapes_are_understood(batch, expected):
    """Tensors, pairs, mappings, objects and what lies inside them; never a guess where the shape does not show it."""
    assert count(batch) == (expected, [])


def test_an_encoding_of_transformers_is_understood():
    """A mapping that is no dictionary."""
    from transformers import BatchEncoding  # noqa: PLC0415  (seconds that other processes need not spend)

    assert count(BatchEncoding({"labels": LABELS, "input_ids": IDS})) == (TEXT, [])


@pytest.mark.parametrize(
    ("neighbours", "expected"),
    [
        ({}, (1, 12, 144)),
        ({"position_ids": torch.arange(12)[None]}, (1, 12, 144)),
        ({"position_ids": torch.tensor([[*range(5), *range(7)]])}, (MISSING, 12, MISSING)),
        ({"cu_seqlens": torch.tensor([0, 5, 12], dtype=torch.int32)}, (2, 12, 25 + 49)),
        ({"cu_seq_lens_q": torch.tensor([0, 12])}, (1, 12, 144)),
        ({"cu_seqlens": torch.arange(BOUNDARIES_MAX + 2)}, (BOUNDARIES_MAX + 1, 12, MISSING)),
        ({"cu_seqlens": torch.tensor([5, 0, 12])}, (2, 12, MISSING)),
        ({"cu_seqlens": torch.tensor([0, 1 << 40])}, (1, 12, MISSING)),
        ({"cu_seqlens": torch.zeros(3, device="meta", dtype=torch.int32)}, (2, 12, MISSING)),
        ({"cu_seqlens": torch.tensor([0.0, 5.5, 12.0])}, (1, 12, 144)),
        ({"position_ids": torch.zeros(1, 12, device="meta")}, (MISSING, 12, MISSING)),
    ],
)
def test_packed_sequences(neighbours, expected):
    """Work is the sum of squared lengths where boundaries show them, cheaply and in host memory; else it is not known."""
    assert count({"input_ids": ROW, **neighbours}) == (expected, [])


def sequences(*lengths, layout=torch.jagged, make=torch.arange):
    """Return a nested tensor of sequences of these lengths; the first one takes seconds."""
    with warnings.catch_warnings(action="ignore"):  # torch calls nested tensors a prototype
        return torch.nested.nested_tensor([make(length) for length in lengths], layout=layout)


def images(length):
    """Return so many rows of a picture."""
    return torch.zeros(length, 7)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (lambda: sequences(3, 5), (2, 8, 9 + 25)),
        (lambda: {"input_ids": sequences(3, 5)}, (2, 8, 9 + 25)),
        (lambda: {"input_ids": sequences(3, 5, layout=torch.strided)}, (2, 8, MISSING)),
        (lambda: (sequences(3, 5, make=images), LABELS), (2, MISSING, MISSING)),
        (lambda: sequences(3, 5, layout=torch.strided, make=images), (2, MISSING, MISSING)),
        (lambda: sequences(*[1] * (BOUNDARIES_MAX + 1)), (BOUNDARIES_MAX + 1, BOUNDARIES_MAX + 1, MISSING)),
    ],
)
def test_nested_tensors(batch, expected):
    """Sequences of different lengths in one tensor: samples and tokens, and work where their offsets are few."""
    assert count(batch()) == (expected, [])


class Stored(Mapping):
    """A batch that reads its parts from a store when they are asked for."""

    def __init__(self):
        self.reads = 0

    def __getitem__(self, name):
        self.reads += 1
        return IDS

    def __iter__(self):
        return iter(["input_ids"])

    def __len__(self):
        self.reads += 1
        return 1


class Listed(dict):
    """A dictionary with items of its own."""

    def items(self):
        """Fail as a store does that was closed."""
        raise RuntimeError("closed")


@dataclass
class Derived:
    """A batch with a field that is worked out when it is asked for."""

    images: Any

    @property
    def tokens(self):
        """Fail as a store does that was closed."""
        raise RuntimeError("closed")


def test_code_of_the_batch_does_not_run():
    """What a batch would have to fetch or work out is not asked for; what it holds is counted."""
    batch = Stored()
    assert count(batch) == (NOTHING, [])
    assert batch.reads == 0
    assert count(Listed(input_ids=IDS)) == (TEXT, [])
    assert count(Derived(IMAGES)) == (PICTURES, [])


def test_a_configured_path_asks_a_mapping():
    """Where the training names the part, that part is fetched."""
    batch = Stored()
    assert count(batch, tokens="attention_mask")[0] == (MISSING, 0, 0)
    assert batch.reads == 1


MASK = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]])


@pytest.mark.parametrize(
    ("environment", "batch", "expected"),
    [
        ({"tokens": "attention_mask"}, {"input_ids": MASK, "attention_mask": MASK}, (2, 4, 9 + 1)),
        ({"tokens": "0.mask"}, ({"mask": MASK.bool()}, LABELS), (2, 4, 9 + 1)),
        ({"tokens": "attention_mask"}, {"input_ids": MASK, "attention_mask": MASK.float()}, (2, 4, 9 + 1)),
        ({"tokens": "mask"}, {"input_ids": MASK, "mask": MASK.half()[None]}, (2, 4, 2 * 16)),
        ({"tokens": "mask"}, {"input_ids": MASK, "mask": (MASK - 1) * 1e9}, (2, MISSING, 2 * 16)),
        ({"tokens": "mask"}, {"input_ids": MASK, "mask": (1 - 1 / MASK)}, (2, MISSING, 2 * 16)),
        ({"tokens": "attention_mask"}, {"input_ids": MASK, "attention_mask": MASK.to("meta")}, (2, MISSING, 8 * 4)),
        ({"tokens": "ntokens"}, {"input_ids": IDS, "ntokens": 50}, (4, 50, 1024)),
        ({"tokens": "ntokens"}, {"input_ids": IDS, "ntokens": torch.tensor(50)}, (4, 50, 1024)),
        ({"tokens": "cu_seqlens"}, {"x": IMAGES, "cu_seqlens": torch.arange(0, 501, 5)}, (8, 500, 2500)),
        ({"tokens": "off"}, [IDS], (4, MISSING, 1024)),
        ({"tokens": "512", "samples": "2"}, [IDS], (2, 512, 1024)),
        ({"samples": "1"}, [IMAGES, LABELS[:5]], (1, MISSING, MISSING)),
        ({"samples": "labels"}, {"images": [IMAGES[0]] * 3, "labels": LABELS[:3]}, (3, MISSING, MISSING)),
    ],
)
def test_configured_quantities(environment, batch, expected):
    """A path, a number per step or `off` takes the place of what the shape shows; nothing is read from a device."""
    assert count(batch, **environment) == (expected, [])


def test_a_number_per_step_counts_once_a_step():
    """With gradient accumulation the second batch of a step adds nothing to a configured number."""
    counter = BatchCounter(read_options({"LOCKSTEP_TOKENS": "512"}), torch.Tensor, INTEGERS, print)
    assert [counter.count([IDS], step)[1] for step in (0, 0, 1, 2, 2)] == [512, MISSING, 512, 512, MISSING]


def test_a_path_that_leads_nowhere_is_named_once():
    """The line states what was asked for and what the batch holds, once."""
    lines = []
    counter = BatchCounter(read_options({"LOCKSTEP_TOKENS": "0.mask"}), torch.Tensor, INTEGERS, lines.append)
    assert counter.count({"input_ids": IDS, "labels": LABELS}, 0) == (4, MISSING, 1024)
    assert counter.count([IDS], 1) == (4, MISSING, 1024)
    (line,) = lines
    assert "'0.mask'" in line
    assert "input_ids, labels" in line


def test_nothing_of_the_batch_is_kept_or_changed():
    """A counter leaves neither reference nor trace: tensors die with their batch."""
    batch = {"input_ids": IDS.clone(), "cu_seqlens": torch.tensor([0, 64])}
    alive = [weakref.ref(tensor) for tensor in batch.values()]
    counter = BatchCounter(read_options({}), torch.Tensor, INTEGERS, print)
    counter.count(batch, 0)
    del batch
    assert [reference() for reference in alive] == [None, None]
