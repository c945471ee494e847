"""Model, strategy and batch from the command line of Megatron-LM."""

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.contracts.errors import ConfigError
from lockstep.simulator.imports.values import whole

_WHERE = "Megatron-LM's arguments"
_VOCABULARY_MULTIPLE = 128
_FUSED_BACKENDS = ("flash", "fused", "auto")
_UNSUPPORTED = ("--multi-latent-attention", "--moe-shared-expert-intermediate-size", "--expert-tensor-parallel-size")


def document_of_megatron(arguments: Sequence[str], *, ranks: int) -> dict[str, Any]:
    """Return model, strategy and batch of a specification for so many ranks; arguments of no consequence are skipped.

    Vocabularies are padded to a multiple of `--make-vocab-size-divisible-by` times the tensor parallel degree.

    Raises
    ------
    LockstepError
        An argument is missing or wrong, or means what the simulator has not.
    """
    given = _read(arguments)
    for name in _UNSUPPORTED:
        if name in given:
            raise ConfigError(f"{_WHERE}: got {name}, expected a job without")
    tp, pp = _number(given, "--tensor-model-parallel-size", 1), _number(given, "--pipeline-model-parallel-size", 1)
    cp = _number(given, "--context-parallel-size", 1)
    if ranks % (tp * pp * cp):
        raise ConfigError(f"ranks: got {ranks}, expected a multiple of tp {tp} x pp {pp} x cp {cp}")
    degrees = {"tp": tp, "cp": cp, "dp": ranks // (tp * pp * cp), "pp": pp}
    strategy = _strategy(given, degrees)
    batch = _number(given, "--global-batch-size", strategy["micro_batch_size"] * degrees["dp"])
    return {"model": _model(given, tp), "batch": batch, "strategy": strategy}


def _strategy(given: Mapping[str, str], degrees: Mapping[str, int]) -> dict[str, Any]:
    found: dict[str, Any] = {
        **degrees,
        "ep": _number(given, "--expert-model-parallel-size", 1),
        "zero": 1 if "--use-distributed-optimizer" in given else 0,
        "sequence_parallel": "--sequence-parallel" in given and degrees["tp"] > 1,
        "recompute": given.get("--recompute-granularity", "none"),
        "micro_batch_size": _number(given, "--micro-batch-size"),
        "overlap_tensor": "--tp-comm-overlap" in given,
        "overlap_returns": "--overlap-param-gather" in given,
    }
    if "--overlap-grad-reduce" not in given:
        found["bucket_bytes"] = None
    layers_of_chunk = "--num-layers-per-virtual-pipeline-stage"
    if layers_of_chunk in given:
        found["virtual"] = _number(given, "--num-layers") // degrees["pp"] // _number(given, layers_of_chunk)
    return found


def _model(given: Mapping[str, str], tp: int) -> dict[str, Any]:
    multiple = _number(given, "--make-vocab-size-divisible-by", _VOCABULARY_MULTIPLE) * tp
    hidden = _number(given, "--hidden-size")
    found: dict[str, Any] = {
        "type": "gpt",
        "layers": _number(given, "--num-layers"),
        "hidden": hidden,
        "heads": _number(given, "--num-attention-heads"),
        "sequence": _number(given, "--seq-length"),
        "vocabulary": -(-_number(given, "--vocab-size", 51200) // multiple) * multiple,
    }
    if "--kv-channels" in given:
        found["head_dim"] = _number(given, "--kv-channels")
    if "--fp8-format" in given or "--fp8-hybrid" in given:
        found["precision"] = {"product": 1}
    if "--swiglu" not in given and "--num-experts" not in given:
        backend = given.get("--attention-backend")
        return {**found, "fused_attention": "--use-flash-attn" in given or backend in _FUSED_BACKENDS}
    found |= {"type": "llama", "ffn": _number(given, "--ffn-hidden-size", 4 * hidden)}
    if "--group-query-attention" in given:
        found["kv_heads"] = _number(given, "--num-query-groups", 1)
    if "--num-experts" in given:
        experts = {"experts": _number(given, "--num-experts"), "chosen": _number(given, "--moe-router-topk", 2)}
        found |= {"type": "moe", **experts, "ffn": _number(given, "--moe-ffn-hidden-size", found["ffn"])}
    return found


def _read(arguments: Sequence[str]) -> dict[str, str]:
    """Return the value of each option, an empty text of a flag."""
    found: dict[str, str] = {}
    name = ""
    for each in arguments:
        if each.startswith("--"):
            name, is_given, value = each.partition("=")
            found[name] = value if is_given else ""
        elif name:
            found[name] = each
            name = ""
    return found


def _number(given: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = given.get(name)
    if text is not None and not (text.isascii() and text.isdecimal()):
        raise ConfigError(f"{name} of {_WHERE}: got {text!r}, expected a whole number")
    return whole({name: None if text is None else int(text[:18])}, name, _WHERE, default)
