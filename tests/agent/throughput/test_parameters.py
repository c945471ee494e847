"""How many parameters work on a token, from what optimizers hold: whole, shared, and sharded in each library's way."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from lockstep.agent.throughput.parameters import count_parameters

pytestmark = pytest.mark.torch

WORLD_SIZE = 8


@pytest.fixture
def fake_world():
    """Make this process rank 0 of 8 over torch's own fake backend: real distributed tensors without peers."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=WORLD_SIZE)
    yield
    dist.destroy_process_group()


def make_model():
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 8))


SIZE = 16 * 32 + 32 + 32 * 8 + 8


def test_each_parameter_counts_once():
    """Tied weights and parameters in two groups are one."""
    parameters = list(make_model().parameters())
    assert count_parameters(parameters) == count_parameters([*parameters, *parameters]) == SIZE


def test_flat_shards_are_not_taken_for_a_model():
    """One-dimensional parameters alone, as DeepSpeed's and Megatron's distributed optimizers hold, show nothing."""
    assert count_parameters([torch.zeros(100), torch.zeros(7)]) is None
    assert count_parameters([]) is None


def test_deepspeed_shards_name_what_they_are_shards_of():
    """ZeRO-3 leaves an empty tensor and its whole size."""
    shard = torch.nn.Parameter(torch.zeros(0))
    shard.ds_numel = 1000
    assert count_parameters([shard]) == 1000


def test_fsdp_shards_count_whole(fake_world):
    """Each rank gathers all parameters and works with all of them, with FSDP2 and with FSDP1's flat parameters."""
    model = make_model()
    fully_shard(model, mesh=init_device_mesh("cpu", (WORLD_SIZE,)))
    assert count_parameters(model.parameters()) == SIZE
    flat = torch.nn.Parameter(torch.zeros(SIZE // WORLD_SIZE))
    flat._fsdp_flattened, flat._unpadded_unsharded_size = True, torch.Size((SIZE,))
    assert count_parameters([flat]) == SIZE


def test_fsdp_shards_that_hide_their_size_are_not_guessed():
    """FSDP1 with original parameters leaves views of a shard: the count is not known."""
    view = torch.nn.Parameter(torch.zeros(4, 4))
    view._fsdp_flattened = True
    assert count_parameters([view]) is None


def test_tensor_parallel_shards_count_as_this_ranks_share(fake_world):
    """What tensor parallelism splits is divided among its ranks; what it replicates, and what FSDP shards, is not."""
    mesh = init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp_shard", "tp"))
    weight, norm = torch.zeros(16, 32), torch.zeros(16)
    split = distribute_tensor(weight, mesh, (Shard(0), Shard(1)))
    whole = distribute_tensor(norm, mesh, (Shard(0), Replicate()))
    assert count_parameters([split]) == 16 * 32 // 2
    assert count_parameters([split, whole]) == 16 * 32 // 2 + 16
