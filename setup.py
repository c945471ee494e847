"""The C extension of the agent; everything else about the package is in pyproject.toml.

It is optional: where it cannot be built, the agent writes its marks in Python (lockstep/agent/mark_buffer.py). One
build serves Python 3.11 and newer.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "lockstep.agent._marks",
            ["lockstep/agent/_marks.c"],
            depends=["lockstep/agent/_mark_queue.h", "lockstep/agent/_channel.h", "lockstep/agent/_waiting.h"],
            extra_compile_args=["-O2"],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
