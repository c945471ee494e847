"""`lockstep specify`: other programs' configurations become the job that they configure."""

import json

import pytest

from lockstep.cli.main import main
from lockstep.simulator.spec import load_spec

LLAMA_8B = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
MIXTRAL = {**LLAMA_8B, "model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2}
MEGATRON = """\
--num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 --vocab-size 50257 \\
--tensor-model-parallel-size 8 --pipeline-model-parallel-size 8 --num-layers-per-virtual-pipeline-stage 6 \\
--micro-batch-size 1 --global-batch-size=512 --sequence-parallel --use-distributed-optimizer --use-flash-attn \\
--recompute-granularity selective --tp-comm-overlap --overlap-grad-reduce --overlap-param-gather --bf16 --lr 1e-4
"""
TORCHTITAN = """\
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 8192
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
[float8]
enable_float8_linear = true
"""
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
}
MIXTURE = """\
--num-layers 16 --hidden-size 2048 --num-attention-heads 16 --seq-length 4096 --vocab-size 102400 --ffn-hidden-size 8192
--num-experts 64 --moe-router-topk 6 --moe-ffn-hidden-size 1408 --moe-shared-expert-intermediate-size 2816
--moe-layer-freq ([0]*1+[1]*15) --multi-latent-attention --kv-lora-rank 512 --swiglu --micro-batch-size 1
--global-batch-size 64 --tensor-model-parallel-size 2 --expert-model-parallel-size 8 --expert-tensor-parallel-size 1
--sequence-parallel --use-distributed-optimizer
"""
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3, "overlap_comm": True, "reduce_bucket_size": 100_000_000},
}


@pytest.fixture
def specify(tmp_path, capsys):
    """Return what calls the command with files by option and more arguments, and returns the job, or what it refused."""

    def call(files, *more):
        arguments = []
        for option, content in files.items():
            path = tmp_path / option
            path.write_text(content if isinstance(content, str) else json.dumps(content))
            arguments += [f"--{option}", str(path)]
        status = main(["specify", *arguments, *more])
        output = capsys.readouterr()
        return load_spec(output.out, "made") if status == 0 else output.err

    return call


def test_a_model_of_hugging_face(specify):
    """Llama 3 8B has its 8.03 billion parameters, Mixtral 8x7B its 46.7 billion."""
    job = specify({"hugging-face": LLAMA_8B}, "--ranks", "8", "--sequence", "8192")
    assert job.model.parameters == 8_030_261_248
    assert (job.model.tokens, job.degrees.dp, job.cluster.size) == (8192, 8, 8)
    assert specify({"hugging-face": MIXTRAL}, "--ranks", "64", "--sequence", "4096").model.parameters == 46_702_792_704


def test_deepseek_v3_of_hugging_face(specify):
    """Its 671.03 billion parameters but for the routers' biases: latent attention, shared experts, dense layers."""
    job = specify({"hugging-face": DEEPSEEK_V3}, "--ranks", "512", "--sequence", "4096")
    assert job.model.parameters == 671_026_419_200 - 58 * 256


def test_a_mixture_of_megatron(specify):
    """Latent attention, shared experts, a dense layer first, and experts that tensor ranks do not divide."""
    job = specify({"megatron": MIXTURE}, "--ranks", "32")
    assert (job.degrees.ep, job.degrees.expert_tp, job.degrees.expert_axis) == (8, 1, 4)
    names = [{op.name for op in block.operators()} for _, block in job.model.blocks]
    assert ["router" in each for each in names] == [False, False, *[True] * 15, False]
    assert all({"latent_down", "latent_up"} <= each for each in names[1:-1])
    assert "shared_fc1" in names[2]
    ring = specify({"megatron": MIXTURE + "--context-parallel-size 2"}, "--ranks", "32")
    assert ring.options.context.exchange == "ring"


def test_arguments_of_megatron(specify):
    """Degrees, distributed optimizer, overlaps and a vocabulary padded to 128 x tp."""
    job = specify({"megatron": MEGATRON}, "--ranks", "128", "--preset", "DGX A100")
    degrees = job.degrees
    assert (degrees.tp, degrees.pp, degrees.dp, degrees.virtual, degrees.zero) == (8, 8, 2, 2, 1)
    assert (degrees.sequence_parallel, degrees.recompute) == (True, "selective")
    assert (job.batch, job.schedule.micro_batches) == (512, 256)
    assert job.options.overlap_tensor
    assert job.options.overlap_returns
    assert job.options.bucket_bytes is not None
    assert job.model.parameters == pytest.approx(175e9, rel=0.01)
    assert next(op.dims["v"] for op in job.model.operators() if op.name == "lookup") == 51200
    assert (job.checked["model"]["dropout"], job.checked["model"]["fused_loss"]) == (True, False)
    assert not job.options.overlap_experts
    assert specify(
        {"megatron": MEGATRON + " --overlap-moe-expert-parallel-comm"}, "--ranks", "128"
    ).options.overlap_experts
    more = " --hidden-dropout 0.0 --cross-entropy-loss-fusion --cross-entropy-fusion-impl te"
    job = specify({"megatron": MEGATRON + more}, "--ranks", "128")
    assert (job.checked["model"]["dropout"], job.checked["model"]["fused_loss"]) == (False, True)


@pytest.mark.parametrize(("recipe", "current"), [("", False), ("--fp8-recipe tensorwise", True)])
def test_fp8_recipes_of_megatron(specify, recipe, current):
    """Scaling is by the steps before unless the recipe is tensorwise."""
    job = specify({"megatron": f"{MEGATRON} --fp8-format hybrid {recipe}"}, "--ranks", "128")
    assert (job.model.precision.product, job.model.precision.current_scaling) == (1, current)


@pytest.mark.parametrize(
    ("sharding", "zero", "zero_copy"),
    [("optim_grads_params", 3, True), ("optim_grads", 2, False), ("optim", 1, False), ("no_shard", 0, False)],
)
def test_sharding_of_megatron_fsdp(specify, sharding, zero, zero_copy):
    """What is divided is a ZeRO stage; weights in parts are not copied around their collectives."""
    more = f" --use-megatron-fsdp --data-parallel-sharding-strategy {sharding}"
    job = specify({"megatron": MEGATRON + more}, "--ranks", "128")
    assert (job.degrees.zero, job.options.zero_copy) == (zero, zero_copy)
    assert "--data-parallel-sharding-strategy" in specify({"megatron": f"{MEGATRON}{more}s"}, "--ranks", "128")


def test_layers_that_megatron_recomputes_by_block(specify):
    """The first two layers of each of four chunks: stages of eight layers in two chunks."""
    blocks = "--recompute-granularity full --recompute-method block --recompute-num-layers 2 "
    virtual = "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 4 --global-batch-size 64"
    job = specify({"megatron": MIXTURE + blocks + virtual}, "--ranks", "32")
    assert (job.degrees.recompute, job.degrees.virtual) == ("none", 2)
    whole = [index for index in range(16) if job.tree()[f"layer{index}"].recomputation == "full"]
    assert whole == [0, 1, 4, 5, 8, 9, 12, 13]


def test_a_job_of_torchtitan(specify):
    """FSDP of Llama 3 8B with sequence parallelism, FP8 and recomputation per operator."""
    job = specify({"torchtitan": TORCHTITAN}, "--ranks", "16")
    assert (job.degrees.tp, job.degrees.dp, job.degrees.zero, job.degrees.recompute) == (2, 8, 3, "per_operator")
    assert (job.batch, job.schedule.micro_batches) == (16, 1)
    assert (job.model.precision.product, job.model.precision.current_scaling) == (1, True)
    assert job.model.parameters == 8_030_261_248
    assert job.checked["model"]["eager"]
    compiled = specify({"torchtitan": TORCHTITAN + "\n[compile]\nenable = true\n"}, "--ranks", "16")
    assert not compiled.checked["model"]["eager"]
    parallel = TORCHTITAN.replace("[parallelism]\n", "[parallelism]\ncontext_parallel_degree = 2\n")
    found = [specify({"torchtitan": text}, "--ranks", "16").options.context for text in (TORCHTITAN, parallel)]
    assert [each.exchange for each in found] == ["gather", "merge"]


@pytest.mark.parametrize("section", ["parallelism", "experimental"])
def test_async_tensor_parallelism_of_torchtitan(specify, section):
    """Either section turns it on; without compilation, which makes it, it is refused."""
    text = TORCHTITAN if section in TORCHTITAN else f"{TORCHTITAN}\n[{section}]\n"
    text = text.replace(f"[{section}]\n", f"[{section}]\nenable_async_tensor_parallel = true\n")
    job = specify({"torchtitan": f"{text}\n[compile]\nenable = true\n"}, "--ranks", "16")
    assert (job.options.overlap_tensor, job.options.late_tensor_sums) == (True, True)
    assert "enable_async_tensor_parallel" in specify({"torchtitan": text}, "--ranks", "16")


def test_hybrid_sharding_and_layers_checkpointed_in_turn_of_torchtitan(specify):
    """A replicate degree below dp is HSDP; option 2 checkpoints every second layer whole."""
    text = TORCHTITAN.replace('"op"', '"2"').replace("shard_degree = -1", "replicate_degree = 4")
    job = specify({"torchtitan": text}, "--ranks", "16")
    assert (job.degrees.dp, job.degrees.hsdp_replicas, job.degrees.zero) == (8, 4, 3)
    tree = job.tree()
    whole = [tree[f"layer{index}"].recomputation for index in range(4)]
    assert whole == [None, "full", None, "full"]
    replicated = specify({"torchtitan": text.replace("replicate_degree = 4", "replicate_degree = 8")}, "--ranks", "16")
    assert (replicated.degrees.hsdp_replicas, replicated.degrees.zero) == (1, 0)


def test_a_configuration_of_deepspeed_goes_with_a_model(specify):
    """ZeRO 3 with its buckets; the model and its sequence come from Hugging Face."""
    job = specify({"hugging-face": LLAMA_8B, "deepspeed": DEEPSPEED}, "--ranks", "16", "--sequence", "2048")
    assert (job.degrees.dp, job.degrees.zero, job.batch, job.schedule.micro_batches) == (16, 3, 128, 2)
    assert job.options.gradient_buffer_bytes == 2 * 100_000_000 * 2
    assert job.options.live_parameters == 1e9


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"hugging-face": {**LLAMA_8B, "model_type": "mamba"}}, "model_type"),
        ({"hugging-face": {**MIXTRAL, "mlp_only_layers": [3]}}, "dense layers among those with experts"),
        ({"hugging-face": {**DEEPSEEK_V3, "v_head_dim": None}}, "v_head_dim"),
        ({"hugging-face": {**LLAMA_8B, "hidden_size": "wide"}}, "hidden_size"),
        ({"hugging-face": "[1]"}, "expected an object"),
        ({"megatron": MEGATRON + "--multi-latent-attention"}, "--multi-latent-attention"),
        ({"megatron": MIXTURE.replace("[0]*1+[1]*15", "[1]*15+[0]*1")}, "--moe-layer-freq"),
        ({"megatron": MIXTURE + "--context-parallel-size 2 --cp-comm-type a2a"}, "--cp-comm-type"),
        ({"megatron": MIXTURE + "--recompute-modules core_attn moe_act"}, "--recompute-modules"),
        ({"megatron": MEGATRON.replace("12288", "wide")}, "--hidden-size"),
        ({"torchtitan": TORCHTITAN.replace("8B", "8X")}, "llama3 8X"),
        ({"torchtitan": TORCHTITAN.replace('"op"', '"half"')}, "activation_checkpoint"),
        (
            {"torchtitan": TORCHTITAN.replace("shard_degree = -1", "replicate_degree = 3")},
            "data_parallel_replicate_degree",
        ),
        ({"torchtitan": "x"}, "TOML"),
        ({"deepspeed": DEEPSPEED}, "expected one of --hugging-face"),
        ({"hugging-face": LLAMA_8B, "deepspeed": {**DEEPSPEED, "train_batch_size": 100}}, "train_batch_size"),
    ],
)
def test_what_the_simulator_has_not_is_refused_by_name(specify, files, message):
    """A file of another form, a model or an option that would silently be simulated as something else."""
    refusal = specify(files, "--ranks", "64")
    assert isinstance(refusal, str)
    assert any(each in refusal for each in message.split("|")), refusal
