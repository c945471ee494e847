"""Parses what `faulthandler` writes about a process's threads. The input is untrusted: the training process writes it.

Format (Python/traceback.c of 3.10 to 3.14): a line for each thread, "Current thread 0x... (most recent call first):" or
"Thread 0x... [name] (...):", then a line for each frame, '  File "train.py", line 88 in load', innermost first, and an
empty line. It is pure ASCII; other characters are escaped.
"""

import re
from dataclasses import dataclass

from lockstep.contracts.errors import MalformedError
from lockstep.contracts.limits import (
    STACK_FILE_MAX_CHARS,
    STACK_FRAMES_MAX,
    STACK_FUNCTION_MAX_CHARS,
    STACK_THREADS_MAX,
    STACKS_MAX_BYTES,
)
from lockstep.contracts.messages import StackFrame, ThreadStack

_THREAD = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]{1,16})(?: \[.{0,64}\])? \(most recent call first\):\Z")
_FRAME = re.compile(r'  File (?:"(.*)"|\?\?\?), line ([0-9]{1,10}|\?\?\?) in (.+)\Z')
_WITHOUT_FRAMES = frozenset(("", "  ...", "...", "  <no Python frame>", "  <invalid frame>", "  Garbage-collecting"))
_LINE_MAX = 1 << 31
_FRAME_SPARE_BYTES = 12  # size of a frame on the wire, without its texts
_THREAD_BYTES = 32
_MESSAGE_SPARE_BYTES = 1024  # names of run and node, and the message's own fields


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread: its id (`threading.get_ident`) and its frames, innermost first."""

    ident: int
    frames: tuple[StackFrame, ...]


def parse_stacks(data: bytes, *, where: str) -> list[Thread]:
    """Return the threads of one dump, in its order; a truncated last line is dropped.

    Raises
    ------
    MalformedError
        It is not a dump, or has more threads or frames than faulthandler writes.
    """
    try:
        *lines, _ = data.decode("ascii").split("\n")
    except UnicodeDecodeError as error:
        raise MalformedError("stacks", where=where, got=str(error), expected="ASCII") from None
    threads: list[tuple[int, list[StackFrame]]] = []
    for line in lines:
        if not line.isprintable():
            raise MalformedError("stacks", where=where, got=repr(line)[:200], expected="printable text")
        if (found := _THREAD.match(line)) is not None:
            threads.append((int(found[1], 16), []))
            _at_most("threads", len(threads), STACK_THREADS_MAX, where)
        elif (found := _FRAME.match(line)) is not None and threads:
            threads[-1][1].append(_frame(found))
            _at_most("frames", len(threads[-1][1]), STACK_FRAMES_MAX, where)
        elif line not in _WITHOUT_FRAMES:
            raise MalformedError("stacks", where=where, got=line[:200], expected="a line of faulthandler")
    return [Thread(ident, tuple(frames)) for ident, frames in threads]


def thread_stacks(threads: list[Thread], training_thread: int, taken_bytes: int = 0) -> tuple[list[ThreadStack], int]:
    """Return the stacks as they are sent, the training thread's first, and how many frames did not fit.

    `taken_bytes` of the message are used by something else. If the training thread is unknown, the oldest thread is
    assumed, which faulthandler writes last.
    """
    known = [thread for thread in threads if thread.ident == training_thread]
    training = known[0] if known else threads[-1] if threads else None
    order = [] if training is None else [training, *(thread for thread in threads if thread is not training)]
    bytes_left = STACKS_MAX_BYTES - _MESSAGE_SPARE_BYTES - taken_bytes
    stacks, omitted = [], 0
    for thread in order:
        bytes_left -= _THREAD_BYTES
        kept = []
        for file, line, function in thread.frames:
            bytes_left -= len(file) + len(function) + _FRAME_SPARE_BYTES
            if bytes_left < 0:
                break
            kept.append((file, line, function))
        omitted += len(thread.frames) - len(kept)
        if kept or thread is training:
            stacks.append(ThreadStack(is_training=thread is training, frames=kept))
    return stacks, omitted


def _frame(found: "re.Match[str]") -> StackFrame:
    file, line, function = found.groups()
    number = int(line) if line.isdecimal() else 0
    return (file or "")[-STACK_FILE_MAX_CHARS:], min(number, _LINE_MAX - 1), function[:STACK_FUNCTION_MAX_CHARS]


def _at_most(what: str, got: int, limit: int, where: str) -> None:
    if got > limit:
        raise MalformedError(what, where=where, got=got, expected=f"at most {limit}")
