"""Operators that transformers are made of: norms, linear layers, element-wise operators, residual additions."""

from lockstep.simulator.models.model import Operator, Product, Read

TOKENS = ("b", "s", "h")
KEPT_WHOLE, KEPT_EVERY_SECOND = 1.0, 0.5
"""What recomputation per operator keeps: the stream that enters a layer, every second product's output, attention's."""
_MASK_BYTES = 1.0
_NORM_BACKWARD_MOVES = 5 / 2
"""Backward reads gradient and input twice, for the weights and for the input, and writes one: 5 elements to 2."""
_RESIDUAL_MOVES, _DROPPED_RESIDUAL_MOVES, _DROPPED_RESIDUAL_BACKWARD_MOVES = 3.0, 3.5, 5.5
"""With dropout backward reads gradient and mask and writes one, then adds the gradients of both branches."""


def norm(name: str, s: float, h: float, *, weights: float, width: float) -> Operator:
    """Return a normalisation of `weights` parameters over tokens of `h` elements; it cannot be split by features."""
    return Operator(
        name=name,
        dims={"s": s},
        reads=(Read(("b", "s", "_")),),
        writes=("b", "s", "_"),
        output_elements=s * h,
        moved_elements=2 * s * h,
        backward_moves_ratio=_NORM_BACKWARD_MOVES,
        weights=weights,
        stored_input_bytes=width * s * h,
        kept_input_share=KEPT_WHOLE,
    )


def linear(
    name: str, s: float, h: float, o: float, *, width: float, bias: bool = True, shared: bool = False
) -> Operator:
    """Return output(b, s, o) = sum over h of input(b, s, h) weight(o, h).

    The gradient of a bias is a sum over the tokens, for which a kernel reads the output's gradient once more.
    """
    backward_moves = 2 * (h + o) + o * bias
    return Operator(
        name=name,
        dims={"s": s, "h": h, "o": o},
        reads=(Read(TOKENS),),
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
        products=(Product(rows=("b", "s"), columns=("o",), inner=("h",)),),
        narrow=name != "logits",
    )


def pointwise(
    name: str, s: float, f: float, *, inputs: float = 1.0, stored: float, moved: float, backward_moves: float = 1.0
) -> Operator:
    """Return an operator on each of s x f elements that reads `inputs` as many; `moved` counts all it touches.

    Backward touches `backward_moves` times as many.
    """
    return Operator(
        name=name,
        dims={"s": s, "f": f},
        reads=(Read(("b", "s", "f")),),
        writes=("b", "s", "f"),
        output_elements=s * f,
        moved_elements=moved * s * f,
        backward_ratio=1.0,
        backward_moves_ratio=backward_moves,
        stored_input_bytes=stored * inputs * s * f,
        kept_input_share=KEPT_EVERY_SECOND,
    )


def residual(name: str, s: float, h: float, *, dropout: bool) -> Operator:
    """Return dropout and the addition to the residual stream; its mask is kept."""
    return Operator(
        name=name,
        dims={"s": s},
        reads=(Read(("b", "s", "_")),),
        writes=("b", "s", "_"),
        output_elements=s * h,
        moved_elements=(_DROPPED_RESIDUAL_MOVES if dropout else _RESIDUAL_MOVES) * s * h,
        backward_ratio=1.0,
        backward_moves_ratio=_DROPPED_RESIDUAL_BACKWARD_MOVES / _DROPPED_RESIDUAL_MOVES if dropout else 1.0,
        stored_own_bytes=_MASK_BYTES * s * h * dropout,
    )
