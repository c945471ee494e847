"""A MutatingAdmissionPolicy evaluated as the API server does, by Google's implementation of CEL with its type checker.

What differs from the API server's: mixed types in a literal, which it refuses and which this environment takes, and
costs, which it limits. `Object` types are not declared here; the chart's policy has none.
"""

from cel_expr_python import cel
from cel_expr_python.ext import ext_strings
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, struct_pb2

_TEXT = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
_MESSAGE = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE


def _pool():
    """Return the types of an expression: JSONPatch, whose value is any of JSON."""
    file = descriptor_pb2.FileDescriptorProto(
        name="tests/injection/json_patch.proto", syntax="proto3", dependency=[struct_pb2.DESCRIPTOR.name]
    )
    message = file.message_type.add(name="JSONPatch")
    for number, name in enumerate(("op", "path", "from"), 1):
        message.field.add(name=name, number=number, type=_TEXT)
    message.field.add(name="value", number=4, type=_MESSAGE, type_name=".google.protobuf.Value")
    pool = descriptor_pool.Default()
    pool.Add(file)
    return pool


_ENVIRONMENT = cel.NewEnv(
    _pool(), variables={"object": cel.Type.DYN, "variables": cel.Type.DYN}, extensions=[ext_strings.ExtStrings()]
)


class AdmissionPolicy:
    """A policy whose expressions are parsed and type-checked once.

    Raises
    ------
    ValueError
        An expression does not parse, or its types do not match.
    """

    def __init__(self, policy):
        spec = policy["spec"]
        self._variables = [(one["name"], _ENVIRONMENT.compile(one["expression"])) for one in spec["variables"]]
        (mutation,) = spec["mutations"]
        assert mutation["patchType"] == "JSONPatch"
        self._operations = _ENVIRONMENT.compile(mutation["jsonPatch"]["expression"])

    def operations(self, pod):
        """Return the JSON Patch of a pod; each variable may use those before it."""
        data = {"object": pod, "variables": {}}
        for name, expression in self._variables:
            data["variables"][name] = _plain(expression.eval(data=data))
        return [json_format.MessageToDict(one.value()) for one in self._operations.eval(data=data).value()]


def _plain(value):
    assert value.type() != cel.Type.ERROR, value
    return value.plain_value()
