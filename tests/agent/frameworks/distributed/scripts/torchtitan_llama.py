"""torchtitan's Trainer with two layers of its smallest Llama 3, fully sharded over two ranks, on the CPU."""

import dataclasses
import os
from types import SimpleNamespace

import torch
import torch.distributed as dist
from ledger import BATCH, SEQUENCE, STEPS, Ledger, Tokens
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

# torchtitan asks torch for its accelerator once imported, and that one for its memory: here it is the CPU.
torch._utils._get_available_device_type = lambda: "cpu"

import torchtitan  # noqa: E402
from torchtitan.components.dataloader import BaseDataLoader  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402
from torchtitan.models.llama3 import model_registry  # noqa: E402
from torchtitan.models.llama3.config_registry import llama3_debugmodel  # noqa: E402
from torchtitan.trainer import Trainer  # noqa: E402

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LAYERS = 2
barrier = dist.barrier


def install_cpu():
    """Answer for the CPU what torchtitan asks of a device, of NCCL and of a later torch."""
    torch.cpu.get_device_name = lambda *_: "cpu"
    torch.cpu.get_device_properties = lambda *_: SimpleNamespace(total_memory=1 << 30)
    torch.cpu.memory_stats = lambda *_: {}
    torch.cpu.reset_peak_memory_stats = torch.cpu.empty_cache = lambda: None
    dist.barrier = lambda **_: barrier()  # gloo takes no device_ids
    dist.set_timeout = lambda *_: None


class Loader(BaseDataLoader):
    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        pass

    def __init__(self, **_more):
        dataset = Tokens(RANKS * STEPS)
        self.loader = DataLoader(dataset, BATCH, sampler=DistributedSampler(dataset, RANKS, RANK, shuffle=False))

    def __iter__(self):
        for tokens, _ in self.loader:
            ledger.batch(len(tokens), tokens.numel())
            yield {"input": tokens}, tokens

    def state_dict(self):
        return {}

    def load_state_dict(self, _state):
        pass


class Tokenizer(BaseTokenizer):
    """The Trainer wants one, although Loader's batches are tokens already."""

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, **_more):
        super().__init__()

    def encode(self, *_others):
        raise NotImplementedError

    decode = get_vocab_size = encode


class LedgerTrainer(Trainer):
    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        pass

    def train_step(self, data_iterator):
        ledger.work()
        super().train_step(data_iterator)
        ledger.step()

    def _forward_backward_body(self, *args):
        loss = super()._forward_backward_body(*args)
        ledger.loss(loss.detach())
        return loss


def make_config():
    base = llama3_debugmodel()
    config = LedgerTrainer.Config(**{field.name: getattr(base, field.name) for field in dataclasses.fields(base)})
    config.model_spec = model_registry("debugmodel")
    config.model_spec.model.layers = config.model_spec.model.layers[:LAYERS]
    for layer in config.model_spec.model.layers:  # the default is compiled, which takes minutes
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    config.dump_folder = os.environ["LEDGERS"]
    config.tokenizer = Tokenizer.Config()
    config.dataloader = Loader.Config()
    config.training.steps = STEPS
    config.training.local_batch_size = BATCH
    config.training.seq_len = SEQUENCE
    config.training.disable_cuda_graphs = True
    config.parallelism.spmd_backend = "partial_dtensor"
    config.checkpoint.enable = False
    config.validator.enable = False
    return config


def collectives_of_a_step(model):
    """Return [collectives, bytes]: parameters are gathered in bfloat16, gradients scattered as floats."""
    parameters = [parameter.numel() for parameter in model.parameters()]
    head = sum(parameter.numel() for part in (model.norm, model.lm_head) for parameter in part.parameters())
    gathered = [2 * (sum(parameters) - head)] * 2 + [
        2 * head
    ] * 3  # forward and backward; the head once more for the loss
    all_reduced = [8, 4 * len(parameters), 4, 4, 8]  # tokens, norms of the gradients, what is logged
    units = LAYERS + 1  # layers and embedding; the head's gradients are scattered in two
    return [2 * units + 3 + units + 2 + len(all_reduced), sum(gathered) + 4 * sum(parameters) + sum(all_reduced)]


install_cpu()
ledger = Ledger(RANK)
trainer = make_config().build()
(model,) = trainer.model_parts
for module in model.modules():
    if isinstance(module, FSDPModule):
        module.set_force_sum_reduction_for_comms(True)  # gloo has no reduction that multiplies as well
trainer.train()
trainer.close()
ledger.groups = [["world", list(range(RANKS))]]
ledger.traffic = {"world": collectives_of_a_step(model)}
ledger.write(torchtitan=torchtitan)
dist.destroy_process_group()
