"""Number formats by the names of profilers and collective libraries: torch, Kineto, NCCL, HCCL and CANN."""

_FORMATS: dict[str, tuple[int, tuple[str, ...]]] = {
    "fp64": (8, ("double", "float64")),
    "fp32": (4, ("float", "float32", "fp32", "hf32")),
    "fp16": (2, ("half", "float16", "fp16")),
    "bf16": (2, ("bfloat16", "bf16", "bfp16")),
    "fp8": (
        1,
        (
            "fp8",
            "hif8",
            "fp8e4m3",
            "fp8e5m2",
            "fp8e8m0",
            "hifloat8",
            "float8_e4m3fn",
            "float8_e5m2",
            "float8_e4m3fnuz",
            "float8_e5m2fnuz",
        ),
    ),
    "int64": (8, ("long int", "long", "int64", "uint64", "unsigned long", "long long")),
    "int32": (4, ("int", "int32", "uint32", "unsigned int")),
    "int16": (2, ("short int", "short", "int16", "uint16", "unsigned short")),
    "int8": (1, ("signed char", "unsigned char", "char", "byte", "int8", "uint8")),
    "bool": (1, ("bool",)),
    "complex64": (8, ("complex<float>", "complexfloat", "complex64")),
    "complex128": (16, ("complex<double>", "complexdouble", "complex128")),
}
_BY_NAME = {name: number for number, (_, names) in _FORMATS.items() for name in (number, *names)}
_PREFIXES = ("c10::", "at::", "dt_", "hccl_data_type_", "nccl")


def number_format(text: str) -> str:
    """Return Lockstep's name of the format that a profiler calls `text`, empty if unknown."""
    name = text.strip().lower()
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return _BY_NAME.get(name, "")


def item_bytes(text: str) -> int | None:
    """Return the bytes of one element of the format that a profiler calls `text`, None if unknown."""
    number = number_format(text)
    return _FORMATS[number][0] if number else None
