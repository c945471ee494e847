"""Determines the number format of a model's matrix products, from the autograd graph of its loss, once.

Parameters do not show it (autocast, FSDP's and Megatron-LM's mixed precision keep them in fp32), and peaks differ by a
factor of 16 between formats. The graph's nodes carry the type of what each operator made in the forward pass.
"""

from collections import Counter, deque
from collections.abc import Iterable
from typing import Any

NODES_MAX = 1000
"""Graph nodes looked at, from the loss downwards: 3 ms, once."""

_PRODUCTS = ("MmBackward", "AddmmBackward", "BmmBackward", "BaddbmmBackward", "LinearBackward", "ConvolutionBackward")
_COMPILED = "CompiledFunctionBackward"
_NAMES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def product_dtype(roots: Iterable[Any]) -> str:
    """Return the commonest format of the matrix products behind `roots` (tensors), or an empty text.

    Of a compiled graph only the formats of its results are seen: a half-precision one among them counts.
    """
    products: Counter[str] = Counter()
    compiled: Counter[str] = Counter()
    for node in _nodes(roots):
        name = node.name()
        if name == _COMPILED:
            compiled.update(dtype for dtype in _dtypes(node) if dtype != "fp32")
        elif name.rpartition("::")[2].startswith(_PRODUCTS):
            products.update(_dtypes(node)[:1])
    found = (products or compiled).most_common(1)
    return found[0][0] if found else ""


def allows_tf32(torch: Any) -> bool:
    """Whether fp32 products of this process run on NVIDIA's tensor cores in tf32."""
    if torch.version.cuda is None:
        return False
    chosen = getattr(torch.backends.cuda.matmul, "fp32_precision", None)  # since torch 2.9
    return bool(torch.backends.cuda.matmul.allow_tf32 if chosen is None else chosen == "tf32")


def _nodes(roots: Iterable[Any]) -> Iterable[Any]:
    """Yield the nodes of the graph, the loss's first, each once."""
    waiting = deque(node for node in (getattr(root, "grad_fn", None) for root in roots) if node is not None)
    seen: set[Any] = set()
    while waiting and len(seen) < NODES_MAX:
        node = waiting.popleft()
        if node in seen:
            continue
        seen.add(node)
        yield node
        waiting.extend(follower for follower, _ in node.next_functions if follower is not None)


def _dtypes(node: Any) -> list[str]:
    names = (str(item.dtype).removeprefix("torch.") for item in getattr(node, "_input_metadata", ()))
    return [_NAMES[name] for name in names if name in _NAMES]
