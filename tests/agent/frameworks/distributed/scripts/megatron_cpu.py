"""Lets megatron-core train on a CPU: what it asks of CUDA is answered for the CPU. Only megatron_gpt.py uses it."""

import contextlib

import torch
from megatron.core.tensor_parallel.random import CudaRNGStatesTracker


def _on_cpu(factory):
    def make(*args, **kwargs):
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return factory(*args, **kwargs)

    return make


def install():
    """Make tensors for the current CUDA device on the CPU, where there is nothing to synchronise."""
    for name in ("zeros", "empty", "ones", "tensor"):
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda *_: None
    own_type = torch.Tensor.type
    torch.Tensor.type = lambda self, *wanted, **more: (
        own_type(self, *wanted, **more) if wanted else own_type(self).replace("torch.", "torch.cuda.")
    )
    torch.Tensor.cuda = lambda self, *_args, **_kwargs: self

    # No random state of a CUDA device to fork: dropout is 0 and weights are initialised on the CPU.
    CudaRNGStatesTracker.fork = lambda *_: contextlib.nullcontext()
