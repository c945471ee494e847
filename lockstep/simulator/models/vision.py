"""Convolutional networks as modules: vgg19 and resnet50; and chains of operators from a profile.

A tensor's dimensions are batch, pixels, channels. Pixels are not split, since that would require halo exchanges.
"""

from collections.abc import Iterable
from itertools import pairwise

from lockstep.simulator.models.model import FULL, ModelSpec, Module, Operator, OperatorInput, Precision

_VGG19 = ((64, 64), (128, 128), (256, 256, 256, 256), (512, 512, 512, 512), (512, 512, 512, 512))
_RESNET50 = ((64, 3, 56), (128, 4, 28), (256, 6, 14), (512, 3, 7))
"""Width, number of blocks and side of the image, in pixels, of each stage (He et al. 2016, table 1)."""
_PICTURE = 224


def convolution(
    name: str, pixels: float, c: int, o: int, kernel: int, *, read_pixels: float, width: float, bias: bool
) -> Operator:
    """Return a convolution from `c` to `o` channels that writes `pixels` pixels."""
    return Operator(
        name=name,
        dims={"c": c, "o": o},
        reads=(OperatorInput(("b", "_", "c")),),
        writes=("b", "_", "o"),
        output_elements=pixels * o,
        flops=2.0 * kernel * kernel * c * o * pixels,
        moved_elements=read_pixels * c + pixels * o,
        weights=float(kernel * kernel * c * o + o * bias),
        weight_dims=("c", "o"),
        stored_input_bytes=width * read_pixels * c,
    )


def channelwise(name: str, pixels: float, o: int, *, weights: float, width: float, moved: float = 2.0) -> Operator:
    """Return an operator that treats each channel separately: normalisation, activation, pooling, addition."""
    return Operator(
        name=name,
        dims={"o": o},
        reads=(OperatorInput(("b", "_", "o")),),
        writes=("b", "_", "o"),
        output_elements=pixels * o,
        moved_elements=moved * pixels * o,
        weights=weights,
        weight_dims=("o",),
        stored_input_bytes=width * pixels * o,
    )


def dense(name: str, h: int, o: int, *, width: float) -> Operator:
    """Return a fully connected layer."""
    return convolution(name, 1, h, o, 1, read_pixels=1, width=width, bias=True)


def vgg19(*, classes: int = 1000, precision: Precision = FULL) -> ModelSpec:
    """Return VGG19 for images of 224 x 224: 143,667,240 parameters (Simonyan and Zisserman 2014)."""
    width, side, channels = precision.activation, _PICTURE, 3
    blocks: list[tuple[str, Module]] = []
    for stage, outputs in enumerate(_VGG19):
        layers: list[Operator] = []
        for index, o in enumerate(outputs):
            pixels = float(side * side)
            layers.append(
                convolution(f"conv{index}", pixels, channels, o, 3, read_pixels=pixels, width=width, bias=True)
            )
            layers.append(channelwise(f"relu{index}", pixels, o, weights=0.0, width=width))
            channels = o
        side //= 2
        layers.append(channelwise("pool", float(side * side), channels, weights=0.0, width=4 * width, moved=5))
        blocks.append((f"stage{stage}", Module(name="stage", children=tuple(layers))))
    widths = (side * side * channels, 4096, 4096, classes)
    classifier = tuple(dense(f"fc{index}", h, o, width=width) for index, (h, o) in enumerate(pairwise(widths)))
    blocks.append(("classifier", Module(name="classifier", children=classifier)))
    return ModelSpec(name="vgg19", blocks=tuple(blocks), precision=precision)


def _bottleneck(c: int, inner: int, side: int, stride: int, width: float) -> Module:
    """Return 1 x 1, 3 x 3 and 1 x 1 convolutions with norms, and a projection if the number of channels changes."""
    pixels, before = float(side * side), float(side * side * stride * stride)
    outer = 4 * inner
    shapes = [("conv1", c, inner, 1, before, before), ("conv2", inner, inner, 3, pixels, before)]
    shapes.append(("conv3", inner, outer, 1, pixels, pixels))
    layers: list[Operator] = []
    if c != outer:
        shapes.append(("projection", c, outer, 1, pixels, before))
    for name, read, o, kernel, wrote, taken in shapes:
        layers.append(convolution(name, wrote, read, o, kernel, read_pixels=taken, width=width, bias=False))
        layers.append(channelwise(f"{name}_norm", wrote, o, weights=2.0 * o, width=width, moved=4))
    layers.append(channelwise("sum", pixels, outer, weights=0.0, width=width, moved=3))
    return Module(name="bottleneck", children=tuple(layers))


def resnet50(*, classes: int = 1000, precision: Precision = FULL) -> ModelSpec:
    """Return ResNet-50 for images of 224 x 224: 25,557,032 parameters."""
    width = precision.activation
    half, quarter = _PICTURE // 2, _PICTURE // 4
    stem = (
        convolution("conv", half * half, 3, 64, 7, read_pixels=_PICTURE * _PICTURE, width=width, bias=False),
        channelwise("norm", half * half, 64, weights=128.0, width=width, moved=4),
        channelwise("pool", quarter * quarter, 64, weights=0.0, width=4 * width, moved=5),
    )
    blocks: list[tuple[str, Module]] = [("stem", Module(name="stem", children=stem))]
    channels = 64
    for stage, (inner, repeats, side) in enumerate(_RESNET50):
        for index in range(repeats):
            stride = 2 if index == 0 and stage > 0 else 1
            blocks.append((f"stage{stage}_{index}", _bottleneck(channels, inner, side, stride, width)))
            channels = 4 * inner
    head = (
        channelwise("pool", 1, channels, weights=0.0, width=49 * width, moved=50),
        dense("fc", channels, classes, width=width),
    )
    blocks.append(("head", Module(name="head", children=head)))
    return ModelSpec(name="resnet50", blocks=tuple(blocks), precision=precision)


def from_profile(
    rows: Iterable[tuple[str, float, float, float, float]], *, name: str, precision: Precision = FULL
) -> ModelSpec:
    """Return the chain of operators of a profile, for data parallelism.

    A row has name, forward FLOPs per sample, activation elements moved per sample, parameters, and bytes per sample
    that are stored for backward.
    """
    operators = tuple(
        Operator(
            name=row_name,
            dims={},
            reads=(OperatorInput(("b",)),),
            writes=("b",),
            output_elements=0.0,
            flops=flops,
            moved_elements=moved,
            weights=weights,
            stored_input_bytes=stored,
        )
        for row_name, flops, moved, weights, stored in rows
    )
    return ModelSpec(
        name=name, blocks=(("operators", Module(name="operators", children=operators)),), precision=precision
    )
