"""A GPT trained with DistributedDataParallel on the CPU, whose batch, micro-batches and buckets are options.

    torchrun ... whatif_changes_job.py --samples 8 --micro-batches 2 --bucket-mib 1

It knows nothing of Lockstep.
"""

import argparse
import contextlib

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

LAYERS, WIDTH, HEADS, CONTEXT, VOCABULARY = 4, 256, 4, 128, 512


class Block(nn.Module):
    """One transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output for `x`, both of shape (samples, tokens, WIDTH)."""
        b, s, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).reshape(b, s, WIDTH))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """A decoder whose output weights are its embedding's."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of shape (samples, tokens, VOCABULARY) for `tokens` of shape (samples, tokens)."""
        x = self.blocks(self.token(tokens) + self.position.weight)
        return self.norm(x) @ self.token.weight.T


def main() -> None:
    """Train until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=8, help="of a step on a rank")
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--bucket-mib", type=float, default=25.0)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(GPT(), bucket_cap_mb=arguments.bucket_mib)
    optimizer = torch.optim.AdamW(model.parameters())
    size = arguments.samples // arguments.micro_batches
    while True:
        optimizer.zero_grad()
        for micro in range(arguments.micro_batches):
            last = micro == arguments.micro_batches - 1
            tokens = torch.randint(VOCABULARY, (size, CONTEXT + 1))
            with contextlib.nullcontext() if last else model.no_sync():
                logits = model(tokens[:, :-1]).flatten(0, 1)
                functional.cross_entropy(logits, tokens[:, 1:].flatten()).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
