import pytest

from lockstep.contracts.finding import HIGH, MEDIUM, NotEvaluated
from lockstep.diagnosis.host_causes.compilation import (
    COMPILATION,
    DYNAMIC_SHAPES,
    changing_shapes,
    evaluate_compilation,
)
from lockstep.trace.intervals import merged
from tests.diagnosis.host_causes.scenes import call, frame, kernel, span, steps, view
from tests.trace.made import columns_of

NOTHING = merged(*[columns_of([span("a", 0, 0)]).start_ns[:0]] * 2)


def _linear(step, shape, name="aten::linear"):
    return span(name, step * 100 + 60, 10, shapes=f"[[[{shape},64]],[]]")


def _steps_with(shapes, compiling=(), **more):
    events = [*steps(len(shapes), 100), *(_linear(step, shape, **more) for step, shape in enumerate(shapes))]
    events += [span("entire_frame_compile", step * 100 + 10, 40) for step in compiling]
    return view(events, 100 * len(shapes))


@pytest.mark.parametrize(
    "name",
    [
        "_compile.compile_inner (dynamo_timed)",
        "entire_frame_compile",
        "dynamo",
        "cuModuleLoadDataEx",
        "cudaLibraryLoadData",
        "hipModuleLoadData",
        "AscendCL@aclopCompileAndExecute",
        "AscendCL@opCompile",
    ],
)
def test_what_compiles_is_recognised(name):
    """Torch's spans, the loading of code into the device, CANN's compiler."""
    events = [call(name, 0, 10), span("aten::mm", 20, 5)]
    (finding,) = evaluate_compilation(view(events, 100))
    assert (finding.cause, finding.subject, finding.lost_ns) == (COMPILATION, name, 10_000)


@pytest.mark.parametrize(
    "name", ["Torch-Compiled Region: 0/0", "TorchDynamo Cache Lookup", "CompiledFunction", "cudaLaunchKernel"]
)
def test_what_runs_compiled_code_compiles_nothing(name):
    """A compiled region is a gain, no cost."""
    assert evaluate_compilation(view([call(name, 0, 50)], 100)) == []


def test_frames_of_the_compilers_are_recognised():
    """With stacks and without annotations dynamo, inductor and triton are seen by their frames."""
    for name in (
        "torch/_dynamo/convert_frame.py(1633): _compile",
        "torch/_inductor/compile_fx.py(700): compile_fx_inner",
        "triton/compiler/compiler.py(200): compile",
    ):
        (finding,) = evaluate_compilation(view([frame(name, 0, 50)], 100))
        assert finding.lost_ns == 50_000


def test_compiling_behind_the_devices_work_costs_nothing():
    """Only exposed time counts, and a hundredth of the window is not reported."""
    assert evaluate_compilation(view([span("dynamo", 0, 50), kernel("gemm", 0, 50)], 100)) == []
    assert evaluate_compilation(view([span("dynamo", 0, 0.9)], 100)) == []
    assert evaluate_compilation(view([span("dynamo", 0, 1)], 100)) != []


def test_nested_spans_are_counted_once():
    """Dynamo's spans lie inside each other; the longest own time is named."""
    events = [span("dynamo", 0, 50), span("bytecode_tracing (dynamo_timed)", 10, 30), span("aten::mm", 60, 1)]
    (finding,) = evaluate_compilation(view(events, 100))
    assert finding.lost_ns == 50_000
    assert finding.subject == "bytecode_tracing (dynamo_timed)"


def test_many_calls_of_canns_compiler_are_reported_however_short():
    """The vendor's own limit is a count."""
    events = [call("AscendCL@aclopCompileAndExecute", at, 0.001) for at in range(20)]
    assert evaluate_compilation(view(events, 100)) != []
    assert evaluate_compilation(view(events[1:], 100)) == []


def test_shapes_that_change_while_something_is_compiled_are_the_cause():
    """The operator that sees them first is named, with the shapes."""
    (finding,) = evaluate_compilation(_steps_with([4, 5, 6, 7], compiling=(1, 2, 3)))
    assert (finding.cause, finding.subject, finding.confidence) == (DYNAMIC_SHAPES, "aten::linear", HIGH)
    assert finding.lost_ns == 120_000
    assert any("in 3 of 4 steps" in each and "[[[7,64]],[]]" in each for each in finding.evidence)


def test_shapes_that_change_without_compiling_are_no_finding():
    """Eager operators do not mind sequences of different length."""
    assert evaluate_compilation(_steps_with([4, 5, 6, 7])) == []


def test_compiling_with_equal_shapes_is_first_use():
    """The answer states that shapes were looked at."""
    (finding,) = evaluate_compilation(_steps_with([4, 4, 4, 4], compiling=(0,)))
    assert (finding.cause, finding.confidence) == (COMPILATION, HIGH)
    assert any("no operator's shapes keep changing" in each for each in finding.evidence)


def test_compiling_without_shapes_is_of_medium_confidence():
    """Whether shapes change is unknown."""
    (finding,) = evaluate_compilation(view([span("dynamo", 0, 50), span("aten::mm", 60, 1)], 100))
    assert finding.confidence == MEDIUM
    assert any("is unknown" in each for each in finding.evidence)


@pytest.mark.parametrize(
    ("shapes", "changes"),
    [
        ([4, 5, 6], True),
        ([4, 5, 4, 5, 4], False),
        ([4, 4, 5, 5, 6], True),
        ([4, 4, 4, 5, 6, 6, 6], False),
        ([4, 5], False),
    ],
)
def test_shapes_change_where_every_other_step_brings_new_ones(shapes, changes):
    """Two shapes in turn are compiled once each; two steps differ by chance."""
    assert bool(changing_shapes(_steps_with(shapes), NOTHING)) is changes


def test_of_operators_that_change_alike_the_first_is_where_the_change_comes_from():
    """An operator that runs early with shapes that stay counts from its first new shape on."""
    events = [*steps(4, 100)]
    for step in range(4):
        events += [_linear(0, 64, "aten::view")._replace(start_ns=step * 100_000)]
        events += [
            _linear(step, 4 + step),
            _linear(step, 4 + step, "aten::view")._replace(start_ns=step * 100_000 + 61_000),
        ]
    assert [each.operator for each in changing_shapes(view(events, 400), NOTHING)] == ["aten::linear", "aten::view"]


def test_the_shapes_of_a_step_are_a_set():
    """Layers of different width, in any order, are no change."""
    events = [*steps(4, 100)]
    for step in range(4):
        events += [_linear(step, 4 + (step + turn) % 2) for turn in range(2)]
    assert changing_shapes(view(events, 400), NOTHING) == []


def test_the_compilers_own_operators_do_not_count():
    """Tracing runs operators on fake tensors of many shapes."""
    seen = _steps_with([4, 5, 6, 7])
    assert changing_shapes(seen, merged(seen.columns.start_ns[:1], seen.columns.start_ns[:1] + 400_000)) == []


def test_a_trace_without_operators_is_not_evaluated():
    """There is nothing that could have compiled."""
    assert isinstance(evaluate_compilation(view([kernel("gemm", 0, 5)], 10)), NotEvaluated)
