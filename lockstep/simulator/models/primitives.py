"""Operators of transformers: norms, linear layers, element-wise operators, residual additions."""

from lockstep.simulator.models.model import MatrixProduct, Operator, OperatorInput

TOKENS = ("b", "s", "h")
KEPT_WHOLE, KEPT_EVERY_SECOND = 1.0, 0.5
"""Kept by recomputation per operator: the residual stream that enters a layer, the outputs of every second product and
of attention."""
ACTIVATION_BACKWARD_MOVES = 1.5
"""Backward of an activation reads input and gradient and writes one element: 3 elements, forward 2."""
_MASK_BYTES = 1.0
NORM_MOVES, NORM_BACKWARD_MOVES = 2.0, 7.0
"""Backward reads gradient and input once for the weights, twice for the input's gradient (a pass for the sums of a row,
one with them), and writes one. PyTorch's kernels take 509 us for 8,192 x 4,096 elements at half precision on A100
(pytorch/pytorch, pull request 87445): 9 elements at 1.19 TB/s, 76 % of what an A100 of 40 GB has, if it was one."""
_EAGER_NORM_MOVES, _EAGER_NORM_BACKWARD_MOVES = 18.0, 42.0
"""An RMS norm in PyTorch's eager mode (`at::rms_norm`) computes in single precision, with a kernel for each step: cast,
square, mean, product, cast, product with the weights read and write 36 bytes per element; their gradients 84."""
_RESIDUAL_MOVES, _DROPPED_RESIDUAL_MOVES, _DROPPED_RESIDUAL_BACKWARD_MOVES = 3.0, 3.5, 5.5
"""With dropout, backward reads gradient and mask and writes one element, then adds the gradients of both branches."""


def norm(name: str, s: float, h: float, *, weights: float, width: float, eager: bool = False) -> Operator:
    """Return a norm with `weights` parameters over tokens of `h` elements; it cannot be split by features.

    It is one kernel; with `eager`, it has the kernels of an RMS norm in PyTorch's eager mode.
    """
    moves, backward_moves = (
        (_EAGER_NORM_MOVES, _EAGER_NORM_BACKWARD_MOVES) if eager else (NORM_MOVES, NORM_BACKWARD_MOVES)
    )
    return Operator(
        name=name,
        dims={"s": s},
        reads=(OperatorInput(("b", "s", "_")),),
        writes=("b", "s", "_"),
        output_elements=s * h,
        moved_elements=moves * s * h,
        backward_moves_ratio=backward_moves / moves,
        weights=weights,
        stored_input_bytes=width * s * h,
        kept_input_share=KEPT_WHOLE,
    )


def linear(
    name: str, s: float, h: float, o: float, *, width: float, bias: bool = True, shared: bool = False
) -> Operator:
    """Return output(b, s, o) = sum over h of input(b, s, h) weight(o, h).

    The gradient of a bias is a sum over the tokens; its kernel reads the output's gradient once more.
    """
    backward_moves = 2 * (h + o) + o * bias
    return Operator(
        name=name,
        dims={"s": s, "h": h, "o": o},
        reads=(OperatorInput(TOKENS),),
        writes=("b", "s", "o"),
        output_elements=s * o,
        flops=2 * s * h * o,
        moved_elements=s * (h + o),
        backward_moves_ratio=backward_moves / (h + o),
        separate_backward_share=o * bias / backward_moves,
        weights=h * o + o * bias,
        weight_dims=("h", "o"),
        shared_weights=shared,
        stored_input_bytes=width * s * h,
        kept_input_share=KEPT_WHOLE if name == "proj" else 0.0,  # what attention leaves
        products=(MatrixProduct(rows=("b", "s"), columns=("o",), inner=("h",)),),
        narrow=name != "logits",
    )


def pointwise(
    name: str, s: float, f: float, *, inputs: float = 1.0, stored: float, moved: float, backward_moves: float = 1.0
) -> Operator:
    """Return an element-wise operator with s x f results and `inputs` inputs for each; it moves `moved` elements each.

    Backward moves `backward_moves` times as many.
    """
    return Operator(
        name=name,
        dims={"s": s, "f": f},
        reads=(OperatorInput(("b", "s", "f")),),
        writes=("b", "s", "f"),
        output_elements=s * f,
        moved_elements=moved * s * f,
        backward_ratio=1.0,
        backward_moves_ratio=backward_moves,
        stored_input_bytes=stored * inputs * s * f,
        kept_input_share=KEPT_EVERY_SECOND,
    )


def residual(name: str, s: float, h: float, *, dropout: bool) -> Operator:
    """Return dropout and the addition to the residual stream; the mask is kept for backward."""
    return Operator(
        name=name,
        dims={"s": s},
        reads=(OperatorInput(("b", "s", "_")),),
        writes=("b", "s", "_"),
        output_elements=s * h,
        moved_elements=(_DROPPED_RESIDUAL_MOVES if dropout else _RESIDUAL_MOVES) * s * h,
        backward_ratio=1.0,
        backward_moves_ratio=_DROPPED_RESIDUAL_BACKWARD_MOVES / _DROPPED_RESIDUAL_MOVES if dropout else 1.0,
        stored_own_bytes=_MASK_BYTES * s * h * dropout,
    )
