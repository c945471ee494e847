"""A channel as C++ uses it: the functions behind the capsule of a buffer, called without the interpreter lock."""

import ctypes

_NAME = b"lockstep.agent._marks.channel"
INERT, TRAINING_THREAD, OTHER_THREAD = range(3)
_POINTER = ctypes.c_void_p
_OF_CHANNEL = ctypes.CFUNCTYPE(None, _POINTER)


class _Functions(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32),
        ("retain", _OF_CHANNEL),
        ("release", _OF_CHANNEL),
        ("role", ctypes.CFUNCTYPE(ctypes.c_int, _POINTER)),
        ("issue", ctypes.CFUNCTYPE(ctypes.c_int64, _POINTER, ctypes.c_uint64, ctypes.c_uint64)),
        ("note", ctypes.CFUNCTYPE(None, _POINTER, ctypes.c_uint16, ctypes.c_uint32)),
    )


class Channel:
    """Of a buffer of the C extension; holds a reference until `release`."""

    def __init__(self, buffer):
        pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
        pointer_of.restype, pointer_of.argtypes = _POINTER, (ctypes.py_object, ctypes.c_char_p)
        self._address = pointer_of(buffer.channel(), _NAME)
        self._functions = _Functions.from_address(self._address)
        self._functions.retain(self._address)

    def role(self):
        return self._functions.role(self._address)

    def issue(self, call_site, payload_bytes):
        return self._functions.issue(self._address, call_site, payload_bytes)

    def note(self, kind, ordinal):
        self._functions.note(self._address, kind, ordinal)

    def release(self):
        self._functions.release(self._address)
