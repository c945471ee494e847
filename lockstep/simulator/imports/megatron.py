"""Model, strategy and batch from the command line of Megatron-LM."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from lockstep.contracts.errors import ConfigError
from lockstep.simulator.hardware.collectives import ALL_TO_ALL, DEEPEP, HYBRIDEP
from lockstep.simulator.imports.values import whole

_WHERE = "Megatron-LM's arguments"
_VOCABULARY_MULTIPLE = 128
_GPT2_TOKENIZER, _GPT2_VOCABULARY = "GPT2BPETokenizer", 50257
_UNSUPPORTED = {
    "--mtp-num-layers": "multi-token prediction",
    "--pipeline-model-parallel-layout": "a layout of a stage by hand",
    "--optimizer-cpu-offload": "an optimizer on the host",
    "--cpu-offloading": "offloading of activations",
    "--hybrid-override-pattern": "a model of other layers than attention",
}
_OPERATORS = ("|", "&", ";", "&&", "||")
_CONDITIONS, _ENDS_OF_CONDITIONS = ("if", "case"), ("fi", "esac")
_ASSIGNED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_VARIABLE = re.compile(
    r"\$(?:(?P<plain>[A-Za-z_][A-Za-z0-9_]*)|\{(?P<braced>[A-Za-z0-9_]+)(?::?-(?P<default>[^}]*))?\})"
)
_REPEATED = re.compile(r"\[(?P<digits>[01](?:,[01])*)\](?:\*(?P<times>[0-9]{1,4}))?")
_FUSED_BACKENDS = ("flash", "fused", "auto")
_NO_GPT = ("--multi-latent-attention", "--group-query-attention", "--qk-layernorm")
"""What the simulator's GPT has not; without a gate such a model is a Llama without one."""
_BLOCK_RECIPES = ("mxfp8", "blockwise")
_MULTIPROCESSORS = {DEEPEP: ("--moe-deepep-num-sms", 20), HYBRIDEP: ("--moe-hybridep-num-sms", 16)}
"""Options that state the multiprocessors of an exchange, and their defaults (TransformerConfig)."""
_CORE = "core_attn"
_MODULES = {"layernorm": ("norm1", "norm2"), "moe_act": ("expert_gate",)}
"""Operators of a layer by the modules of `--recompute-modules`."""
_ROUTER_PADDING = ("--moe-router-padding-for-fp8", "--moe-router-padding-for-quantization")
_NO_DROPOUT = ("0", "0.0")
_EXCHANGES = {"p2p": "ring", "all_gather": "gather"}
"""Of `--cp-comm-type`: Megatron-LM's other kinds exchange heads, which is not simulated."""
_SHARDINGS = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""Megatron-FSDP's `--data-parallel-sharding-strategy` as a ZeRO stage."""


_HALF_BYTES, _SINGLE_BYTES = 2, 4
_BUCKET_PARAMETERS, _BUCKET_PARAMETERS_PER_RANK = 40_000_000, 1_000_000


def bucket_parameters(ranks: int) -> int:
    """Return the parameters of a bucket of gradients among `ranks` by default.

    `max(40000000, 1000000 * dp_size)`, in megatron/core/distributed/distributed_data_parallel.py.
    """
    return max(_BUCKET_PARAMETERS, _BUCKET_PARAMETERS_PER_RANK * ranks)


def document_of_megatron(arguments: Sequence[str], *, ranks: int) -> dict[str, Any]:
    """Return model, strategy and batch of a specification for so many ranks; arguments of no consequence are skipped.

    Raises
    ------
    LockstepError
        An argument is missing or wrong, or means what the simulator has not.
    """
    given = _read(arguments)
    _check_supported(given)
    tp, pp = _number(given, "--tensor-model-parallel-size", 1), _number(given, "--pipeline-model-parallel-size", 1)
    cp = _number(given, "--context-parallel-size", 1)
    if ranks % (tp * pp * cp):
        raise ConfigError(f"ranks: got {ranks}, expected a multiple of tp {tp} x pp {pp} x cp {cp}")
    degrees = {"tp": tp, "cp": cp, "dp": ranks // (tp * pp * cp), "pp": pp}
    strategy = _strategy(given, degrees)
    batch = _number(given, "--global-batch-size", strategy["micro_batch_size"] * degrees["dp"])
    return {"model": _model(given), "batch": batch, "strategy": strategy}


def _strategy(given: Mapping[str, str], degrees: Mapping[str, int]) -> dict[str, Any]:
    found: dict[str, Any] = {
        **degrees,
        "ep": _number(given, "--expert-model-parallel-size", 1),
        **_sharding(given),
        "sequence_parallel": "--sequence-parallel" in given and degrees["tp"] > 1,
        **_recompute(given, degrees["pp"]),
        "micro_batch_size": _number(given, "--micro-batch-size"),
        "overlap_tensor": "--tp-comm-overlap" in given,
        "overlap_experts": "--overlap-moe-expert-parallel-comm" in given,
        "overlap_returns": "--overlap-param-gather" in given,
    }
    if _is_flexible(given):
        is_hybrid = given.get("--moe-flex-dispatcher-backend") == "hybridep"
        found["algorithms"] = {ALL_TO_ALL: HYBRIDEP if is_hybrid else DEEPEP}
        name, default = _MULTIPROCESSORS[HYBRIDEP if is_hybrid else DEEPEP]
        found["exchange_multiprocessors"] = _number(given, name, default)
    if "--expert-tensor-parallel-size" in given:
        found["expert_tp"] = _number(given, "--expert-tensor-parallel-size")
    if degrees["cp"] > 1:
        kind = given.get("--cp-comm-type", "p2p")
        if kind not in _EXCHANGES:
            raise ConfigError(f"--cp-comm-type of {_WHERE}: got {kind!r}, expected one of {', '.join(_EXCHANGES)}")
        found["context_exchange"] = _EXCHANGES[kind]
    if "--overlap-grad-reduce" not in given:
        found["bucket_bytes"] = None
    elif found["zero"] < max(_SHARDINGS.values()):
        parameters = _number(given, "--ddp-bucket-size", bucket_parameters(degrees["dp"] * degrees["cp"]))
        found["bucket_bytes"] = float(parameters * _sent_gradient_bytes(given))
    if _chunks(given, degrees["pp"]) > 1:
        found["virtual"] = _chunks(given, degrees["pp"])
    uneven = _uneven_stages(given, degrees["pp"])
    return found | ({"overrides": [*found.get("overrides", ()), *uneven]} if uneven else {})


def _is_flexible(given: Mapping[str, str]) -> bool:
    """Return whether DeepEP or HybridEP sends tokens to experts."""
    return "--moe-enable-deepep" in given or given.get("--moe-token-dispatcher-type") == "flex"


def _check_supported(given: Mapping[str, str]) -> None:
    for name, what in _UNSUPPORTED.items():
        if given.get(name, "0") != "0":
            raise ConfigError(f"{name} of {_WHERE}: got it, expected a job without: {what} is not simulated")


def _uneven_stages(given: Mapping[str, str], pp: int) -> list[dict[str, Any]]:
    """Return the stage of each layer where the first or the last stage has another number of layers than the rest."""
    layers = _number(given, "--num-layers")
    counts = {side: given.get(f"--decoder-{side}-pipeline-num-layers") for side in ("first", "last")}
    ends = {"first": "--account-for-embedding-in-pipeline-split", "last": "--account-for-loss-in-pipeline-split"}
    if pp == 1 or not (any(counts.values()) or any(name in given for name in ends.values())):
        return []
    if _chunks(given, pp) > 1:
        raise ConfigError(f"{_WHERE}: got stages of unequal size with virtual stages, expected one of them")
    even = (layers + sum(name in given for name in ends.values())) // pp
    own = {
        side: _number(given, f"--decoder-{side}-pipeline-num-layers") if counts[side] else even - 1
        for side, name in ends.items()
        if counts[side] or name in given
    }
    between, left = divmod(layers - sum(own.values()), max(1, pp - len(own)))
    sizes = [own.get("first", between), *[between] * (pp - 2), own.get("last", between)]
    if left or sum(sizes) != layers or min(sizes) < 1:
        raise ConfigError(f"layers of the stages of {_WHERE}: got {sizes}, expected {layers} in all, the same between")
    stages = [stage for stage, size in enumerate(sizes) for _ in range(size)]
    return [{"node": f"layer{index}", "map": stage} for index, stage in enumerate(stages)]


def _sharding(given: Mapping[str, str]) -> dict[str, Any]:
    """Return what is kept in parts: by Megatron-FSDP or PyTorch's FSDP, or the distributed optimizer's state."""
    if "--use-torch-fsdp2" in given:
        return {"zero": max(_SHARDINGS.values())}
    if "--use-megatron-fsdp" not in given:
        return {"zero": 1 if "--use-distributed-optimizer" in given else 0}
    name = "--data-parallel-sharding-strategy"
    kind = given.get(name, "no_shard")
    if kind not in _SHARDINGS:
        raise ConfigError(f"{name} of {_WHERE}: got {kind!r:.100}, expected one of {', '.join(_SHARDINGS)}")
    stage = _SHARDINGS[kind]
    return {"zero": stage, "zero_copy": stage == max(_SHARDINGS.values())}


def _chunks(given: Mapping[str, str], pp: int) -> int:
    """Return the chunks of the model on each pipeline stage."""
    if "--num-virtual-stages-per-pipeline-rank" in given:
        return _number(given, "--num-virtual-stages-per-pipeline-rank")
    layers_of_chunk = "--num-layers-per-virtual-pipeline-stage"
    if layers_of_chunk not in given:
        return 1
    return _number(given, "--num-layers") // pp // _number(given, layers_of_chunk)


def _recompute(given: Mapping[str, str], pp: int) -> dict[str, Any]:
    """Return what is recomputed; with the method `block` the first layers of each chunk are, others keep all."""
    what = "selective" if "--recompute-activations" in given else given.get("--recompute-granularity", "none")
    if what == "selective":
        return _recompute_modules(given.get("--recompute-modules", _CORE).split())
    if what != "full" or given.get("--recompute-method") != "block":
        return {"recompute": what}
    layers, chunks = _number(given, "--num-layers"), pp * _chunks(given, pp)
    count = _number(given, "--recompute-num-layers", 1)
    bounds = [layers * chunk // chunks for chunk in range(chunks + 1)]
    chosen = [index for first, end in pairwise(bounds) for index in range(first, min(first + count, end))]
    return {"overrides": [{"node": f"layer{index}", "recompute": "full"} for index in chosen]}


def _recompute_modules(modules: Sequence[str]) -> dict[str, Any]:
    """Return what selective recomputation of these modules repeats: the core of attention, and single operators."""
    known = (_CORE, *_MODULES)
    unknown = next((name for name in modules if name not in known), None)
    if unknown is not None:
        raise ConfigError(f"--recompute-modules of {_WHERE}: got {unknown!r:.100}, expected some of {', '.join(known)}")
    chosen = [{"node": f"layer*.{node}", "recompute": "full"} for name in modules for node in _MODULES.get(name, ())]
    found: dict[str, Any] = {"recompute": "selective" if _CORE in modules else "none"}
    return found | ({"overrides": chosen} if chosen else {})


def _model(given: Mapping[str, str]) -> dict[str, Any]:
    hidden = _number(given, "--hidden-size")
    found: dict[str, Any] = {
        "layers": _number(given, "--num-layers"),
        "hidden": hidden,
        "heads": _number(given, "--num-attention-heads"),
        "sequence": _number(given, "--seq-length"),
        "vocabulary": _vocabulary(given),
        "vocabulary_multiple": _number(given, "--make-vocab-size-divisible-by", _VOCABULARY_MULTIPLE),
        "tied_embeddings": "--untie-embeddings-and-output-weights" not in given,
        "precision": _precision(given),
    }
    if "--kv-channels" in given:
        found["head_dim"] = _number(given, "--kv-channels")
    if given.get("--cross-entropy-fusion-impl") == "te" and "--cross-entropy-loss-fusion" in given:
        found["fused_loss"] = True
    ffn = _number(given, "--ffn-hidden-size", 4 * hidden)
    is_gated = "--swiglu" in given or "--num-experts" in given
    if not is_gated and ffn == 4 * hidden and not any(name in given for name in _NO_GPT):
        return found | _gpt(given)
    found |= {"type": "llama", "ffn": ffn} | ({} if is_gated else {"gate": False})
    if "--group-query-attention" in given:
        found["kv_heads"] = _number(given, "--num-query-groups", 1)
    if "--qk-layernorm" in given and "--multi-latent-attention" not in given:
        found["head_norm"] = True
    if "--multi-latent-attention" in given:
        found["latent"] = _latent(given)
        found.pop("kv_heads", None)
        found.pop("head_dim", None)
    return found | _mixture(given, found) if "--num-experts" in given else found


def _vocabulary(given: Mapping[str, str]) -> int:
    """Return the tokens of the vocabulary; where the tokenizer alone has them, GPT-2's only are known."""
    tokenizer = given.get("--tokenizer-type", _GPT2_TOKENIZER)
    is_known = tokenizer == _GPT2_TOKENIZER
    if "--vocab-size" not in given and not is_known:
        raise ConfigError(
            f"--vocab-size of {_WHERE}: got none with the tokenizer {tokenizer:.100}, expected its tokens"
        )
    return _number(given, "--vocab-size", _GPT2_VOCABULARY)


def _sent_gradient_bytes(given: Mapping[str, str]) -> int:
    is_half = "--fp16" in given and "--accumulate-allreduce-grads-in-fp32" not in given
    return _HALF_BYTES if is_half or "--grad-reduce-in-bf16" in given else _SINGLE_BYTES


def _precision(given: Mapping[str, str]) -> Any:
    """Return the number formats. Without --bf16 or --fp16 Megatron-LM trains in single precision.

    It sums gradients in single precision with --bf16, in half precision with --fp16, unless an option states otherwise.
    """
    is_fp8 = "--fp8-format" in given or "--fp8-hybrid" in given
    if not (is_fp8 or "--bf16" in given or "--fp16" in given):
        return "full"
    found: dict[str, Any] = {}
    if _sent_gradient_bytes(given) == _HALF_BYTES:
        found |= {"gradient": _HALF_BYTES, "sent_gradient": _HALF_BYTES}
    if is_fp8:
        recipe = given.get("--fp8-recipe")
        found |= {"product": 1, "stored_product": 1}
        found |= {"current_scaling": recipe == "tensorwise", "block_scaling": recipe in _BLOCK_RECIPES}
    return found or "mixed"


def _gpt(given: Mapping[str, str]) -> dict[str, Any]:
    """Return what a model without gates has; attention is fused unless an option turns Transformer Engine's off."""
    is_local = given.get("--transformer-impl") == "local"
    is_fused = given.get("--attention-backend", "auto") in _FUSED_BACKENDS and not is_local
    return {
        "type": "gpt",
        "fused_attention": is_fused or "--use-flash-attn" in given,
        "dropout": given.get("--hidden-dropout") not in _NO_DROPOUT,
    }


def _latent(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the sizes of latent attention, with the defaults of Megatron-LM's MLATransformerConfig."""
    found: dict[str, Any] = {
        "kv_rank": _number(given, "--kv-lora-rank", 512),
        "nope_dim": _number(given, "--qk-head-dim", 128),
        "rope_dim": _number(given, "--qk-pos-emb-head-dim", 64),
        "value_dim": _number(given, "--v-head-dim", 128),
    }
    if "--q-lora-rank" in given:
        found["query_rank"] = _number(given, "--q-lora-rank")
    return found


def _mixture(given: Mapping[str, str], dense: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "moe",
        "experts": _number(given, "--num-experts"),
        "chosen": _number(given, "--moe-router-topk", 2),
        "ffn": _number(given, "--moe-ffn-hidden-size", dense["ffn"]),
    }
    is_padded_by_router = any(name in given for name in _ROUTER_PADDING)
    if (
        dense["precision"] != "full"
        and "product" in dense["precision"]
        and not (is_padded_by_router or _is_flexible(given))
    ):
        found["padded_tokens"] = True
    if "--moe-use-legacy-grouped-gemm" not in given:
        found["separate_experts"] = True
    if "moe_router" in given.get("--cuda-graph-scope", "").split():
        found["graphed_router"] = True
    if "--moe-shared-expert-intermediate-size" in given:
        found["shared_ffn"] = _number(given, "--moe-shared-expert-intermediate-size")
    dense_layers = _dense_layers(given.get("--moe-layer-freq", "1"), dense["layers"])
    return found | ({"dense_layers": dense_layers, "dense_ffn": dense["ffn"]} if dense_layers else {})


def _dense_layers(text: str, layers: int) -> int:
    """Return how many layers come before those with experts, of a pattern like `([0]*3+[1]*58)` or `1`."""
    pattern = [
        digit
        for part in text.replace(" ", "").strip("()").split("+")
        for match in [_REPEATED.fullmatch(part)]
        for digit in (match["digits"].split(",") * int(match["times"] or 1) if match else ["?"])
    ]
    dense = pattern.count("0")
    if text != "1" and pattern != ["0"] * dense + ["1"] * (layers - dense):
        expected = f"1, or dense layers before all others of {layers}, like ([0]*3+[1]*{max(layers - 3, 1)})"
        raise ConfigError(f"--moe-layer-freq of {_WHERE}: got {text!r:.100}, expected {expected}")
    return dense


def _read(arguments: Sequence[str]) -> dict[str, str]:
    """Return the values of each option, joined by blanks, an empty text of a flag.

    The words may be those of a shell script: variables are replaced by what was assigned to them, and options may
    stand in one (`ARGS="--num-layers 12"`, `ARGS=(--num-layers 12)`). Whether a condition holds is not known here.
    """
    found: dict[str, str] = {}
    variables: dict[str, str] = {}
    name = ""

    def value_of(match: re.Match[str]) -> str:
        default = match["default"]
        return variables.get(match["plain"] or match["braced"], match[0] if default is None else default)

    depth = 0
    for word in arguments:
        depth += (word in _CONDITIONS) - (word.rstrip(";") in _ENDS_OF_CONDITIONS)
        assigned = _ASSIGNED.match(word)
        text = _VARIABLE.sub(value_of, word[assigned.end() if assigned else 0 :])
        if assigned:
            variables[assigned[0].rstrip("+=")] = text
            name = ""
        for part in (each.strip("()") for each in text.split()):
            if part in _OPERATORS or ">" in part or part.endswith("[@]}"):
                name = ""
            elif part.startswith("--"):
                if depth > 0:
                    raise ConfigError(f"{part} of {_WHERE}: got it inside a condition, expected those of one run alone")
                name, is_given, value = part.partition("=")
                found[name] = value if is_given else ""
            elif name and part:
                found[name] = f"{found[name]} {part}".strip()
        if assigned or text.endswith(")"):
            name = ""
    return found


def _number(given: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = given.get(name)
    if text is not None and not (text.isascii() and text.isdecimal()):
        raise ConfigError(f"{name} of {_WHERE}: got {text!r}, expected a whole number")
    return whole({name: None if text is None else int(text[:18])}, name, _WHERE, default)
