"""megatron-core's GPT with its schedules, its DDP and its optimizer: tensor, data and pipeline parallel."""

import sys

import megatron.core
import megatron_cpu
import torch
import torch.distributed as dist
from ledger import BATCH, SEQUENCE, STEPS, VOCABULARY, WIDTH, Ledger, Tokens
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

megatron_cpu.install()
TP, PP = map(int, sys.argv[1:3])
MICRO_BATCHES, LAYERS = 3, 2

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
parallel_state.initialize_model_parallel(TP, PP)
ledger = Ledger(rank)
config = TransformerConfig(
    num_layers=LAYERS,
    hidden_size=WIDTH,
    num_attention_heads=2,
    tensor_model_parallel_size=TP,
    pipeline_model_parallel_size=PP,
    pipeline_dtype=torch.float32,
    use_cpu_initialization=True,
    hidden_dropout=0.0,
    attention_dropout=0.0,
    gradient_accumulation_fusion=False,
    bias_dropout_fusion=False,
    masked_softmax_fusion=False,
)
is_first = parallel_state.is_pipeline_first_stage()
is_last = parallel_state.is_pipeline_last_stage()
gpt = GPTModel(
    config,
    get_gpt_layer_local_spec(),
    vocab_size=VOCABULARY,
    max_sequence_length=SEQUENCE,
    pre_process=is_first,
    post_process=is_last,
    share_embeddings_and_output_weights=False,
)
ddp_config = DistributedDataParallelConfig(use_distributed_optimizer=True, overlap_grad_reduce=False)
model = DistributedDataParallel(config, ddp_config, gpt)
optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=1e-3, use_distributed_optimizer=True), [model])
config.finalize_model_grads_func = finalize_model_grads
config.grad_scale_func = optimizer.scale_loss
config.no_sync_func = model.no_sync


def collectives_of_a_step():
    """Return {kind: [collectives, bytes]} of this rank."""
    activations, losses, token_ids = (BATCH * SEQUENCE * size for size in (4 * WIDTH, 4, 8))
    shapes = 5 * 8  # of what is broadcast
    tensor = [shapes, token_ids]
    if is_last:
        tensor += [losses] * 3  # the cross entropy's maximum, target logit and sum of exponentials
    if TP > 1:
        layers = 4 * LAYERS // PP  # attention and MLP, forward and backward
        tensor += [activations] * (layers + is_first + is_last)  # the embedding forward, the output layer backward
    buffers = [buffer.grad_data.nbytes for buffer in model.buffers]
    traffic = {
        "tp": [MICRO_BATCHES * len(tensor), MICRO_BATCHES * sum(tensor)],
        "dp": [2 * len(buffers), 2 * sum(buffers)],  # gradients scattered, parameters gathered
        "world": [1, 4],  # the norm of the gradients
    }
    if PP > 1:
        traffic["pp"] = [2 * MICRO_BATCHES, 2 * MICRO_BATCHES * activations]
    return traffic


def load():
    """Yield batches, on the first tensor-parallel rank only, as Megatron-LM does."""
    replicas, replica = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    dataset = Tokens(STEPS * MICRO_BATCHES * replicas)
    sampler = DistributedSampler(dataset, replicas, replica, shuffle=False)
    for tokens, _ in DataLoader(dataset, BATCH, sampler=sampler):
        ledger.batch(len(tokens), tokens.numel())
        yield {"tokens": tokens}


def forward_step(batches, stage):
    batch = next(batches) if batches is not None else None
    tokens = tensor_parallel.broadcast_data(["tokens"], batch, torch.int64)["tokens"]
    positions = torch.arange(SEQUENCE).expand(BATCH, -1)
    mask = torch.ones(1, 1, SEQUENCE, SEQUENCE).triu(1).bool()
    output = stage(tokens, positions, mask, labels=tokens)

    def mean(losses):
        loss = losses.mean()
        ledger.loss(loss.detach())
        return loss, {"loss": loss.detach()}

    return output, mean


# Megatron-LM's order: tensor parallel ranks are neighbours, then replicas, then stages.
stage_ranks = ranks // PP
stage = rank // stage_ranks * stage_ranks
ledger.groups = [
    ["tp", [rank // TP * TP + member for member in range(TP)]],
    ["dp", list(range(stage + rank % TP, stage + stage_ranks, TP))],
    ["world", list(range(ranks))],
]
if PP > 1:
    ledger.groups.append(["pp", list(range(rank % stage_ranks, ranks, stage_ranks))])
ledger.traffic = collectives_of_a_step()
batches = load() if parallel_state.get_tensor_model_parallel_rank() == 0 else None
forward_backward = get_forward_backward_func()
for _ in range(STEPS):
    model.zero_grad_buffer()
    optimizer.zero_grad()
    ledger.work()
    forward_backward(
        forward_step_func=forward_step,
        data_iterator=batches,
        model=model,
        num_microbatches=MICRO_BATCHES,
        seq_length=SEQUENCE,
        micro_batch_size=BATCH,
        forward_only=False,
    )
    optimizer.step()
    ledger.step()
ledger.write(**{"megatron-core": megatron.core})
dist.destroy_process_group()
