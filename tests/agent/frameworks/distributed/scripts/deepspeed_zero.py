"""DeepSpeed's engine on two ranks: ZeRO stage 1, 2 or 3, gradient accumulation over two batches."""

import sys

import deepspeed
import torch
import torch.distributed as dist
from ledger import BATCH, STEPS, Ledger, Tokens, make_model, parameter_bytes

STAGE = int(sys.argv[1])
ACCUMULATE = 2

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # minutes to compile, and for inference only
deepspeed.init_distributed("gloo", verbose=False)
rank, ranks = dist.get_rank(), dist.get_world_size()
ledger = Ledger(rank)
model = make_model()
size = parameter_bytes(model)
ledger.groups = [["world", list(range(ranks))]]
# Gradients are reduced once a step or, from stage 2 on, once a batch; then all ranks gather the parameters. In stage 3
# they gather them before each batch instead. The norm of the gradients is one float, in stage 3 a double.
ledger.traffic = {
    "world": {
        1: [3, 2 * size + 4],
        2: [ACCUMULATE + 2, (ACCUMULATE + 1) * size + 4],
        3: [2 * ACCUMULATE + 1, 2 * ACCUMULATE * size + 8],
    }[STAGE]
}
engine, _, loader, _ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters()),
    training_data=Tokens(ranks * ACCUMULATE * STEPS),
    config={
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": ACCUMULATE,
        "zero_optimization": {"stage": STAGE, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
    },
)
for tokens, targets in loader:
    ledger.batch(len(tokens), tokens.numel())
    loss = torch.nn.functional.cross_entropy(engine(tokens), targets)
    engine.backward(loss)
    ledger.loss(loss.detach())
    is_last = engine.is_gradient_accumulation_boundary()
    if is_last:
        ledger.work()
    engine.step()
    if is_last:
        ledger.step()
ledger.write(deepspeed=deepspeed)
dist.destroy_process_group()
