"""The control block's header, orders and answers."""

from dataclasses import replace

import pytest

from lockstep.contracts import capture, control_block
from lockstep.contracts.blob import write_blob
from lockstep.contracts.bounds import INT63_MAX, STEP_MAX
from lockstep.contracts.errors import ContractVersionError, MalformedError
from lockstep.contracts.limits import PROFILE_RANKS_MAX, WORLD_SIZE_MAX

ORDER = capture.CaptureRequest(
    request_id=4, ranks=[1, 2], first_step=70, steps=3, stacks=True, shapes=False, memory=False, trace_max_bytes=1 << 20,
    boundaries=[capture.StepBoundary(capture.OPTIMIZER, 2, 140, 70), capture.StepBoundary(capture.STEP, 1, 70, 70)],
)  # fmt: skip
BLOCK = control_block.pack_control_header().ljust(control_block.CONTROL_BYTES, b"\0")


def test_round_trips():
    """Header, order and answer come back as they were."""
    control_block.check_control_header(BLOCK, where="control")
    assert capture.request_from_json(capture.request_to_json(ORDER), where="control") == ORDER
    answer = capture.CaptureResult(request_id=4, state="done", trace_bytes=9)
    assert capture.result_from_json(capture.result_to_json(answer), where="ring") == answer


def test_what_has_its_default_is_left_out_and_filled_in():
    """An order of the usual kind is one that a rank of an older version knows, and the other way round."""
    value = capture.request_to_json(ORDER)
    assert "device" not in value
    assert capture.request_from_json(value, where="control").device
    host_only = replace(ORDER, device=False)
    assert capture.request_from_json(capture.request_to_json(host_only), where="control") == host_only


def test_other_versions_are_refused_by_name():
    """A block of another version, a foreign one and a short one are each named."""
    with pytest.raises(ContractVersionError, match="control version"):
        control_block.check_control_header(BLOCK[:8] + b"\x09" + BLOCK[9:], where="control")
    with pytest.raises(MalformedError, match="magic"):
        control_block.check_control_header(b"x" * control_block.CONTROL_BYTES, where="control")
    with pytest.raises(MalformedError, match="size"):
        control_block.check_control_header(BLOCK[:10], where="control")


@pytest.mark.parametrize(
    ("field", "value"),
    [("steps", 0), ("steps", 10**9), ("steps", "3"), ("steps", True), ("ranks", [-1]), ("ranks", ["1"]),
     ("ranks", list(range(1000))), ("stacks", 1), ("request_id", None), ("boundaries", {}),
     ("boundaries", [["step", 1, 0, 0]]), ("boundaries", [["step", 1, 0, 0]] * 65), ("boundaries", [[1], [2]]),
     ("boundaries", [{}, {}])],
)  # fmt: skip
def test_a_bad_field_is_named(field, value):
    """Each field of an order is checked for type and limit."""
    with pytest.raises(MalformedError) as caught:
        capture.request_from_json(capture.request_to_json(ORDER) | {field: value}, where="control")
    assert caught.value.what == field


@pytest.mark.parametrize(
    ("row", "what"),
    [(["gc", 1, 0, 0], "end_kind"), (["step", 0, 0, 0], "ends_per_step"), (["step", 1, -1, 0], "first_end"),
     (["step", 1, 0, -1], "first_step"), (["step", 1, True, 0], "first_end")],
)  # fmt: skip
def test_a_bad_boundary_is_named(row, what):
    """So is each field of a boundary."""
    with pytest.raises(MalformedError) as caught:
        capture.request_from_json(capture.request_to_json(ORDER) | {"boundaries": [row, row]}, where="control")
    assert caught.value.what == what


def test_a_rank_finds_its_boundary():
    """Boundaries stand in the order of the ranks."""
    assert ORDER.boundary_of(2) == capture.StepBoundary(capture.STEP, 1, 70, 70)
    assert ORDER.boundary_of(3) is None


@pytest.mark.parametrize(
    ("ends", "step", "following"),
    [(0, None, 12), (11, None, 12), (12, 5, 15), (13, None, 15), (15, 6, 18), (312, 105, 315)],
)
def test_steps_follow_from_a_count_of_ends(ends, step, following):
    """Step 5 begins at the end number 12, and three ends make a step."""
    boundary = capture.StepBoundary(capture.BACKWARD, 3, 12, 5)
    assert (boundary.step_after(ends), boundary.next_end(ends)) == (step, following)


def test_the_largest_order_fits_its_region():
    """Every number at its bound, for as many ranks as a request may name."""
    ranks = list(range(WORLD_SIZE_MAX - PROFILE_RANKS_MAX, WORLD_SIZE_MAX))
    boundary = capture.StepBoundary(capture.OPTIMIZER, capture.ENDS_PER_STEP_MAX, INT63_MAX, STEP_MAX)
    order = replace(ORDER, request_id=INT63_MAX, ranks=ranks, first_step=STEP_MAX, boundaries=[boundary] * len(ranks))
    write_blob(
        memoryview(bytearray(control_block.ORDER_BYTES)),
        0,
        control_block.ORDER_BYTES,
        1,
        capture.request_to_json(order),
    )


@pytest.mark.parametrize("value", [None, [], "order", {}, {"request_id": 1}])
def test_what_is_no_order_is_refused(value):
    """JSON of another shape is refused."""
    with pytest.raises(MalformedError):
        capture.request_from_json(value, where="control")


def test_an_unknown_answer_state_is_refused():
    """An answer can only be in a known state."""
    answer = capture.result_to_json(replace(capture.CaptureResult(request_id=1, state="done"), state="maybe"))
    with pytest.raises(MalformedError, match="state"):
        capture.result_from_json(answer, where="ring")


@pytest.mark.parametrize(
    ("field", "value"),
    [("request_id", -1), ("request_id", 1 << 63), ("first_step", -2), ("steps", 101), ("start_ns", -1),
     ("end_ns", (1 << 64) - 1), ("trace_bytes", 1 << 63), ("cost_ns", -1), ("reason", "x" * 4097)],
)  # fmt: skip
def test_an_answer_that_no_rank_can_mean_is_refused(field, value):
    """They end up in counters, in a file name and in a message."""
    answer = capture.result_to_json(capture.CaptureResult(request_id=1, state="done"))
    with pytest.raises(MalformedError) as caught:
        capture.result_from_json(answer | {field: value}, where="ring")
    assert caught.value.what == field
