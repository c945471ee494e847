"""`lockstep specify`: other programs' configurations become the job that they configure."""

import json

import pytest

from lockstep.cli.main import main
from lockstep.simulator.lowering.program import DDP_BUCKET_BYTES
from lockstep.simulator.models.model import Operator
from lockstep.simulator.spec import load_spec
from lockstep.simulator.strategy.tree import resolve

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


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        # Llama 3.2 1B and Qwen2.5 0.5B, as their cards state them; Qwen's biases of 3 x 24 layers are left out.
        (
            {**LLAMA_8B, "num_hidden_layers": 16, "hidden_size": 2048, "head_dim": 64, "intermediate_size": 8192}
            | {"tie_word_embeddings": True},
            1_235_814_400,
        ),
        (
            {"model_type": "qwen2", "num_hidden_layers": 24, "hidden_size": 896, "num_attention_heads": 14}
            | {"num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936, "tie_word_embeddings": True}
            | {"max_position_embeddings": 32768, "sliding_window": 32768, "use_sliding_window": False},
            494_032_768 - 24 * (896 + 2 * 128),
        ),
        # Gemma 2B leaves tie_word_embeddings out; its heads are wider than its tokens divided by them.
        (
            {"model_type": "gemma", "num_hidden_layers": 18, "hidden_size": 2048, "num_attention_heads": 8}
            | {"num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 16384, "vocab_size": 256000}
            | {"max_position_embeddings": 8192},
            2_506_172_416,
        ),
    ],
)
def test_output_weights_that_are_the_embedding(specify, config, parameters):
    """A model whose configuration ties them has no second table of the vocabulary."""
    job = specify({"hugging-face": config}, "--ranks", "8", "--sequence", "4096")
    assert job.model.parameters == parameters


@pytest.mark.parametrize(
    ("config", "parameters", "tolerance"),
    [
        (
            {"model_type": "gpt_neox", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32}
            | {"intermediate_size": 16384, "vocab_size": 50432, "max_position_embeddings": 2048}
            | {"tie_word_embeddings": False},
            6_857_302_016,  # Pythia 6.9B
            0.002,  # its positions are rotations; the simulator's GPT has learnt ones
        ),
        (
            {"model_type": "opt", "num_hidden_layers": 24, "hidden_size": 2048, "num_attention_heads": 32}
            | {"ffn_dim": 8192, "vocab_size": 50272, "max_position_embeddings": 2048, "word_embed_proj_dim": 2048},
            1_315_758_080,  # OPT 1.3B
            0.001,
        ),
        (
            {"model_type": "bloom", "n_layer": 70, "hidden_size": 14336, "n_head": 112, "vocab_size": 250880}
            | {"seq_length": 2048},
            176_247_271_424,
            0.001,
        ),
    ],
)
def test_gpts_of_other_names(specify, config, parameters, tolerance):
    """Pythia, OPT and BLOOM have a GPT's layers under other names; their attention is PyTorch's fused kernel."""
    job = specify({"hugging-face": config}, "--ranks", "512", "--preset", "DGX A100")
    assert job.model.parameters == pytest.approx(parameters, rel=tolerance)
    assert job.checked["model"]["fused_attention"]


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
    assert job.model.parameters == pytest.approx(175e9, rel=0.01)
    assert next(op.dims["v"] for op in job.model.operators() if op.name == "lookup") == 51200
    assert (job.checked["model"]["dropout"], job.checked["model"]["fused_loss"]) == (True, False)
    assert not job.options.overlap_experts
    assert specify(
        {"megatron": MEGATRON + " --overlap-moe-expert-parallel-comm"}, "--ranks", "128"
    ).options.overlap_experts
    for flags in ("--moe-enable-deepep", "--moe-token-dispatcher-type flex"):
        assert specify({"megatron": f"{MEGATRON} {flags}"}, "--ranks", "128").options.algorithms == {
            "all_to_all": "deepep"
        }
    flags = "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep"
    assert specify({"megatron": f"{MEGATRON} {flags}"}, "--ranks", "128").options.algorithms == {
        "all_to_all": "hybridep"
    }
    more = " --hidden-dropout 0.0 --cross-entropy-loss-fusion --cross-entropy-fusion-impl te"
    job = specify({"megatron": MEGATRON + more}, "--ranks", "128")
    assert (job.checked["model"]["dropout"], job.checked["model"]["fused_loss"]) == (False, True)


def test_experts_in_fp8_are_padded_by_copies_unless_the_router_or_the_exchange_pads(specify):
    experts = f"{MEGATRON} --num-experts 8 --fp8-format hybrid"
    padding = [
        specify({"megatron": f"{experts} {flags}"}, "--ranks", "128").checked["model"]["padded_tokens"]
        for flags in ("", "--moe-router-padding-for-fp8", "--moe-token-dispatcher-type flex")
    ]
    assert padding == [True, False, False]
    bf16 = specify({"megatron": f"{MEGATRON} --num-experts 8"}, "--ranks", "128")
    assert not bf16.checked["model"]["padded_tokens"]


def test_the_router_is_in_a_cuda_graph_and_exchanges_have_multiprocessors_as_stated(specify):
    experts = f"{MEGATRON} --num-experts 8"
    graphs = ("", "--cuda-graph-scope attn", "--cuda-graph-scope moe_router moe_preprocess")
    found = [specify({"megatron": f"{experts} {flags}"}, "--ranks", "128").checked["model"] for flags in graphs]
    assert [model["graphed_router"] for model in found] == [False, False, True]
    legacy = specify({"megatron": f"{experts} --moe-use-legacy-grouped-gemm"}, "--ranks", "128").checked["model"]
    assert (found[0]["separate_experts"], legacy["separate_experts"]) == (True, False)
    flex = "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend"
    stated = ("", f"{flex} deepep", f"{flex} hybridep", f"{flex} hybridep --moe-hybridep-num-sms 32")
    jobs = [specify({"megatron": f"{experts} {flags}"}, "--ranks", "128") for flags in stated]
    assert [job.options.exchange_multiprocessors for job in jobs] == [None, 20, 16, 32]


@pytest.mark.parametrize(
    ("modules", "core", "names"),
    [
        ("", True, set()),
        ("--recompute-modules core_attn", True, set()),
        ("--recompute-modules moe_act layernorm", False, {"norm1", "norm2", "expert_gate"}),
        ("--recompute-modules core_attn layernorm", True, {"norm1", "norm2"}),
    ],
)
def test_modules_that_are_recomputed_are_operators_of_the_layers(specify, modules, core, names):
    job = specify({"megatron": f"{MIXTURE} --recompute-granularity selective {modules}"}, "--ranks", "64")
    leaves = [leaf for leaf in job.tree().root.find("*") if isinstance(leaf.module, Operator)]
    assert {leaf.name for leaf in leaves if resolve(leaf).recomputation == "full"} == names
    assert (job.degrees.recompute == "selective") == core


def test_queries_and_keys_are_normalized_where_the_model_states_it(specify):
    qwen = {**LLAMA_8B, "model_type": "qwen3", "head_dim": 128}
    assert specify({"hugging-face": qwen}, "--ranks", "8").checked["model"]["head_norm"]
    assert not specify({"hugging-face": LLAMA_8B}, "--ranks", "8").checked["model"]["head_norm"]
    job = specify({"megatron": f"{MEGATRON} --qk-layernorm"}, "--ranks", "128")
    assert (job.checked["model"]["type"], job.checked["model"]["head_norm"]) == ("llama", True)
    latent = f"{MEGATRON} --qk-layernorm --multi-latent-attention"
    assert not specify({"megatron": latent}, "--ranks", "128").checked["model"]["head_norm"]


SCRIPT = """\
#!/bin/bash
# Runs a 1.3B on one node
GPUS_PER_NODE=8
TP=${TP:-2}
GPT_ARGS="
    --num-layers 24
    --hidden-size 2048 --num-attention-heads 16
    --seq-length $SEQ --vocab-size 50257
"
SEQ=2048
MODEL_ARGS=(
    --tensor-model-parallel-size ${TP}
    --micro-batch-size 4  # of each rank
    --global-batch-size 64
    --fp16
)
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes 1"
torchrun $DISTRIBUTED_ARGS pretrain_gpt.py $GPT_ARGS ${MODEL_ARGS[@]} --seq-length $SEQ 2>&1 | tee log
"""


@pytest.mark.parametrize(
    "more", ["--group-query-attention --num-query-groups 8", "--ffn-hidden-size 32768", "--multi-latent-attention"]
)
def test_a_wide_layer_of_megatron_without_a_gate(specify, more):
    """Without --swiglu a model that no GPT of the simulator is has a wide layer of two products (Nemotron 4)."""
    model = specify({"megatron": MEGATRON + more}, "--ranks", "64").checked["model"]
    assert (model["type"], model["gate"]) == ("llama", False)


@pytest.mark.parametrize("kind", ["nemotron", "starcoder2"])
def test_a_model_of_hugging_face_without_a_gate(specify, kind):
    """Their wide layers are two products: two thirds of the parameters of a gated one."""
    config = {**LLAMA_8B, "model_type": kind}
    arguments = ("--ranks", "8", "--sequence", "8192")
    models = [specify({"hugging-face": each}, *arguments).tree().model for each in (config, LLAMA_8B)]
    assert models[1].parameters - models[0].parameters == 32 * 4096 * 14336


def test_a_script_that_starts_megatron(specify):
    """Options in variables and arrays count as if they stood in the command, with variables replaced."""
    job = specify({"megatron": SCRIPT}, "--ranks", "8", "--preset", "DGX A100")
    assert (job.degrees.tp, job.degrees.dp, job.batch, job.schedule.micro_batches) == (2, 4, 64, 4)
    assert (job.model.tokens, len(job.model.blocks)) == (2048, 26)
    assert (job.model.precision.gradient, job.model.precision.sent_gradient) == (2, 2)
    assert job.checked["model"]["fused_attention"]


@pytest.mark.parametrize(
    ("more", "gradient"),
    [("", 4), ("--grad-reduce-in-bf16", 2), ("--fp16", 2), ("--fp16 --accumulate-allreduce-grads-in-fp32", 4)],
)
def test_formats_of_gradients_of_megatron(specify, more, gradient):
    """Gradients are single precision with bf16 and half precision with fp16, unless an option states otherwise."""
    text = MEGATRON.replace("--bf16", "") if "--fp16" in more else MEGATRON
    precision = specify({"megatron": f"{text} {more}"}, "--ranks", "128").model.precision
    assert (precision.activation, precision.gradient, precision.sent_gradient) == (2, gradient, gradient)
    single = specify({"megatron": MEGATRON.replace("--bf16", "")}, "--ranks", "128").model.precision
    assert (single.activation, single.gradient) == (4, 4)


@pytest.mark.parametrize(
    ("more", "ranks", "bucket_bytes"),
    [
        ("", 128, 40e6 * 4),
        ("", 64 * 100, 100e6 * 4),
        ("--grad-reduce-in-bf16", 128, 40e6 * 2),
        ("--ddp-bucket-size 250000000", 128, 250e6 * 4),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", 128, DDP_BUCKET_BYTES),
    ],
)
def test_buckets_of_megatron(specify, more, ranks, bucket_bytes):
    """They have parameters, at least 40 million or a million for each rank that sums them; sharded weights have none."""
    text = MEGATRON.replace("--global-batch-size=512", "--global-batch-size=6400")
    assert specify({"megatron": f"{text} {more}"}, "--ranks", str(ranks)).options.bucket_bytes == bucket_bytes
    alone = specify({"megatron": text.replace("--overlap-grad-reduce", "")}, "--ranks", "128")
    assert alone.options.bucket_bytes is None


def test_pipelines_of_megatron(specify):
    """Virtual stages by their number, a shorter first and last stage, and embedding and head that count as layers."""
    text = MEGATRON.replace("--num-layers-per-virtual-pipeline-stage 6", "{}")
    virtual = specify({"megatron": text.format("--num-virtual-stages-per-pipeline-rank 2")}, "--ranks", "128")
    assert virtual.degrees.virtual == 2
    text = text.replace("--num-layers 96", "--num-layers 94")
    ends = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    sizes = "--decoder-first-pipeline-num-layers 11 --decoder-last-pipeline-num-layers 11"
    for more in (ends, sizes):
        job = specify({"megatron": text.format(more)}, "--ranks", "128")
        blocks = list(job.tree().root.children.values())
        meshes = [block.mesh for block in blocks]
        assert [meshes.count(mesh) for mesh in dict.fromkeys(meshes)] == [12] * 8
    assert "unequal size" in specify(
        {"megatron": text.format(f"{ends} --num-virtual-stages-per-pipeline-rank 2")}, "--ranks", "128"
    )


def test_output_weights_of_megatron(specify):
    """They are the embedding's unless an option unties them; PyTorch's FSDP divides everything."""
    tied = specify({"megatron": MIXTURE}, "--ranks", "32").model.parameters
    untied = specify({"megatron": MIXTURE + "--untie-embeddings-and-output-weights"}, "--ranks", "32").model.parameters
    assert untied - tied == 102400 * 2048
    assert specify({"megatron": MIXTURE + "--use-torch-fsdp2"}, "--ranks", "32").degrees.zero == 3


@pytest.mark.parametrize(
    ("recipe", "current", "block"),
    [
        ("", False, False),
        ("--fp8-recipe tensorwise", True, False),
        ("--fp8-recipe mxfp8", False, True),
        ("--fp8-recipe blockwise", False, True),
    ],
)
def test_fp8_recipes_of_megatron(specify, recipe, current, block):
    """Scaling is by the steps before unless the recipe states otherwise."""
    job = specify({"megatron": f"{MEGATRON} --fp8-format hybrid {recipe}"}, "--ranks", "128")
    precision = job.model.precision
    assert (precision.product, precision.stored_product) == (1, 1)
    assert (precision.current_scaling, precision.block_scaling) == (current, block)


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
    texts = [
        TORCHTITAN.replace("[parallelism]\n", f'[parallelism]\nexpert_parallel_comm_backend = "{backend}"\n')
        for backend in ("standard", "deepep", "hybridep")
    ]
    found = [specify({"torchtitan": text}, "--ranks", "16").options.algorithms for text in texts]
    assert found == [{}, {"all_to_all": "deepep"}, {"all_to_all": "hybridep"}]
    compiled = specify({"torchtitan": TORCHTITAN + "\n[compile]\nenable = true\n"}, "--ranks", "16")
    assert not compiled.checked["model"]["eager"]
    parallel = TORCHTITAN.replace("[parallelism]\n", "[parallelism]\ncontext_parallel_degree = 2\n")
    found = [specify({"torchtitan": text}, "--ranks", "16").options.context for text in (TORCHTITAN, parallel)]
    assert [each.exchange for each in found] == ["gather", "merge"]


@pytest.mark.parametrize(
    ("model", "more", "is_fp8"),
    [
        ("", "[quantize.linear.float8]\nenable_fsdp_float8_all_gather = false\n", False),
        ("", "[float8]\nenable_fsdp_float8_all_gather = false\n", False),
        ('converters = ["float8"]\n', "", True),
        ('converters = "quantize.linear.float8"\n', "", True),
        ("converters = []\n", "", False),
    ],
)
def test_fp8_of_torchtitan_is_a_converter(specify, model, more, is_fp8):
    """Every job file has the converter's section, whether the converter is on or not."""
    text = TORCHTITAN.partition("[float8]")[0].replace("[training]", f"{model}[training]") + more
    assert specify({"torchtitan": text}, "--ranks", "16").model.precision.product == (1 if is_fp8 else None)


def test_degrees_of_torchtitan_before_2025(specify):
    """Tensor parallelism was an option of training, context and pipeline parallelism were experimental."""
    text = TORCHTITAN.replace("tensor_parallel_degree = 2\n", "").replace(
        "[training]\n", "[training]\ntensor_parallel_degree = 2\n"
    )
    job = specify({"torchtitan": f"{text}\n[experimental]\npipeline_parallel_degree = 2\n"}, "--ranks", "16")
    assert (job.degrees.tp, job.degrees.pp, job.degrees.dp) == (2, 2, 4)


@pytest.mark.parametrize(
    ("schedule", "virtual", "order"),
    [("", 1, "1f1b"), ('"GPipe"', 1, "gpipe"), ('"Interleaved1F1B"', 2, "1f1b")],
)
def test_pipeline_schedules_of_torchtitan(specify, schedule, virtual, order):
    """Interleaving gives a stage two chunks unless the layers of one are given."""
    line = f"pipeline_parallel_schedule = {schedule}\n" if schedule else ""
    text = TORCHTITAN.replace("[parallelism]\n", f"[parallelism]\npipeline_parallel_degree = 2\n{line}")
    job = specify({"torchtitan": text}, "--ranks", "16")
    assert (job.degrees.virtual, job.schedule.order) == (virtual, order)


def test_layers_of_a_stage_of_torchtitan(specify):
    """32 layers and two for the ends are six stages of six, two for each of three ranks; five stages do not divide."""
    more = 'pipeline_parallel_degree = 3\npipeline_parallel_schedule = "Interleaved1F1B"\n'
    text = TORCHTITAN.replace("local_batch_size = 2", "local_batch_size = 6")
    text = text.replace("[parallelism]\n", f"[parallelism]\n{more}pipeline_parallel_layers_per_stage = 6\n")
    job = specify({"torchtitan": text}, "--ranks", "24")
    assert (job.degrees.virtual, job.schedule.micro_batches) == (2, 6)
    assert "layers_per_stage" in specify({"torchtitan": text.replace("stage = 6", "stage = 7")}, "--ranks", "24")


def test_another_model_of_torchtitan_comes_from_hugging_face(specify):
    """Its layers, experts and vocabulary; everything else is the job file's."""
    text = TORCHTITAN.replace("llama3", "deepseek_v3").replace("8B", "671B")
    text = text.replace("[parallelism]\n", "[parallelism]\nexpert_parallel_degree = 16\n")
    job = specify({"hugging-face": DEEPSEEK_V3, "torchtitan": text}, "--ranks", "64")
    assert job.model.parameters == 671_026_419_200 - 58 * 256
    assert (job.model.tokens, job.degrees.ep, job.degrees.expert_tp, job.degrees.tp) == (8192, 16, 1, 2)
    assert "or another model's --hugging-face" in specify({"torchtitan": text}, "--ranks", "64")


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


def test_numbers_of_deepspeed_in_scientific_notation(specify):
    """JSON's 5e8 is no integer, but DeepSpeed's documentation writes buckets so."""
    zero = '{"stage": 3, "reduce_bucket_size": 2e8, "stage3_max_live_parameters": 1e9}'
    text = f'{{"train_micro_batch_size_per_gpu": 4, "bf16": {{"enabled": true}}, "zero_optimization": {zero}}}'
    job = specify({"hugging-face": LLAMA_8B, "deepspeed": text}, "--ranks", "16", "--sequence", "2048")
    assert (job.options.bucket_bytes, job.options.live_parameters) == (2e8 * 2, 1e9)


def test_buckets_that_deepspeed_leaves_to_transformers(specify):
    """A bucket of "auto" has the square of the features of a token, a batch of "auto" follows from the rest."""
    zero = {"stage": 2, "reduce_bucket_size": "auto"}
    config = {**DEEPSPEED, "train_batch_size": "auto", "zero_optimization": zero}
    job = specify({"hugging-face": LLAMA_8B, "deepspeed": config}, "--ranks", "16", "--sequence", "2048")
    assert (job.options.bucket_bytes, job.batch) == (4096**2 * 2, 128)


def test_a_micro_batch_that_deepspeed_computes(specify):
    """Of batch and micro-batch, one follows from the other; without both, Megatron's hold."""
    config = {"train_batch_size": 256, "gradient_accumulation_steps": 4, "zero_optimization": {"stage": 1}}
    job = specify({"hugging-face": LLAMA_8B, "deepspeed": config}, "--ranks", "16", "--sequence", "2048")
    assert (job.batch, job.schedule.micro_batches) == (256, 4)
    job = specify({"megatron": MEGATRON, "deepspeed": {"zero_optimization": {"stage": 1}}}, "--ranks", "128")
    assert (job.batch, job.schedule.micro_batches, job.degrees.dp, job.degrees.tp) == (512, 256, 2, 8)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"hugging-face": {"model_type": "gemma3", "text_config": {}}}, "text_config"),
        ({"hugging-face": {**LLAMA_8B, "model_type": "mistral", "sliding_window": 4096}}, "sliding_window"),
        ({"hugging-face": {**MIXTRAL, "model_type": "qwen3_moe", "decoder_sparse_step": 2}}, "decoder_sparse_step"),
        ({"megatron": MEGATRON + "--mtp-num-layers 1"}, "--mtp-num-layers"),
        (
            {"megatron": MEGATRON.replace("--vocab-size 50257", "--tokenizer-type Llama3Tokenizer")},
            "--vocab-size of Megatron-LM's arguments: got none",
        ),
        ({"megatron": MEGATRON.replace("96", "$LAYERS")}, "'$LAYERS'"),
        ({"megatron": MEGATRON + '"'}, "as a shell reads them"),
        (
            {"megatron": f'if [ "$FP8" = 1 ]; then\n  MORE="--fp8-format hybrid"\nfi\n{MEGATRON} $MORE'},
            "--fp8-format of Megatron-LM's arguments: got it inside a condition",
        ),
        ({"torchtitan": TORCHTITAN.replace("shard_degree = -1", "shard_degree = 16")}, "data_parallel_shard_degree"),
        (
            {
                "torchtitan": TORCHTITAN.replace(
                    "degree = -1",
                    'degree = -1\npipeline_parallel_degree = 2\npipeline_parallel_schedule = "ZBVZeroBubble"',
                )
            },
            "pipeline_parallel_schedule",
        ),
        ({"torchtitan": TORCHTITAN.replace("[training]", 'converters = ["mx"]\n[training]')}, "model.converters"),
        ({"hugging-face": LLAMA_8B, "deepspeed": {"bf16": {"enabled": "auto"}}}, "bf16.enabled"),
        (
            {"hugging-face": LLAMA_8B, "deepspeed": {**DEEPSPEED, "train_micro_batch_size_per_gpu": "auto"}},
            "the number that Transformers puts there",
        ),
        (
            {"hugging-face": LLAMA_8B, "deepspeed": {"zero_optimization": {"stage": 2, "cpu_offload": True}}},
            "cpu_offload",
        ),
        ({"hugging-face": {**LLAMA_8B, "model_type": "mamba"}}, "model_type"),
        ({"hugging-face": {**MIXTRAL, "mlp_only_layers": [3]}}, "dense layers among those with experts"),
        ({"hugging-face": {**DEEPSEEK_V3, "v_head_dim": None}}, "v_head_dim"),
        ({"hugging-face": {**LLAMA_8B, "hidden_size": "wide"}}, "hidden_size"),
        ({"hugging-face": "[1]"}, "expected an object"),
        ({"megatron": MIXTURE.replace("[0]*1+[1]*15", "[1]*15+[0]*1")}, "--moe-layer-freq"),
        ({"megatron": MIXTURE + "--context-parallel-size 2 --cp-comm-type a2a"}, "--cp-comm-type"),
        (
            {"megatron": MIXTURE + "--recompute-granularity selective --recompute-modules core_attn mlp"},
            "--recompute-modules",
        ),
        ({"megatron": MEGATRON.replace("12288", "wide")}, "--hidden-size"),
        ({"torchtitan": TORCHTITAN.replace("8B", "8X")}, "llama3 8X"),
        ({"torchtitan": TORCHTITAN.replace('"op"', '"half"')}, "activation_checkpoint"),
        (
            {"torchtitan": TORCHTITAN.replace("shard_degree = -1", "replicate_degree = 3")},
            "data_parallel_replicate_degree",
        ),
        ({"torchtitan": "x"}, "TOML"),
        ({"deepspeed": DEEPSPEED}, "expected one of --from-run, --hugging-face"),
        ({"hugging-face": LLAMA_8B, "deepspeed": {**DEEPSPEED, "train_batch_size": 100}}, "train_batch_size"),
    ],
)
def test_what_the_simulator_has_not_is_refused_by_name(specify, files, message):
    """A file of another form, a model or an option that would silently be simulated as something else."""
    refusal = specify(files, "--ranks", "64")
    assert isinstance(refusal, str)
    assert any(each in refusal for each in message.split("|")), refusal
