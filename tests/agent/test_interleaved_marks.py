"""Threads that take turns in the writer of marks in Python: the interpreter may change threads behind every call."""

import dis
import itertools
from inspect import getmembers, isfunction
from types import CodeType

import pytest

from lockstep.agent import call_marks, collective_marks, mark_block, mark_buffer
from lockstep.contracts import marks
from lockstep.contracts.marks import BLOCK_MARKS, FLUSH_EVENT_NS, MarkKind
from tests.agent.kernels import GROUP, SYNCHRONOUSLY, Kernel, tensor
from tests.agent.mark_buffers import Ring

SITE = marks.pack_call_site("allreduce_", synchronous=True, domain=3, slot=5, group_size=64)
CALLED = {
    mark_block: ("pack_mark", "pack_plain", "_pack_header", "_crc32", "_pack_checksum", "pwrite"),
    collective_marks: ("pack_mark", "pwrite"),
    call_marks: ("pack_headed", "pack_plain", "pwrite"),
    mark_buffer: ("pack_mark", "pack_plain"),
}
STEPS = 3
FILLS = ("pack_headed", "pack_mark", "pack_plain")
FUSES, TRAINS = 2, 1
OPTIMIZER = object()


class Turns:
    """Lets another thread make marks behind one of the calls that the writer makes, number `at` of them."""

    def __init__(self, monkeypatch, ring, at, *, marks_of_turn):
        self._ring, self._at, self._count = ring, at, itertools.count()
        self._marks_of_turn = marks_of_turn
        self._ordinals = itertools.count(1_000_000)
        self.made = []
        self.is_past = False
        for module, names in CALLED.items():
            for name in names:
                monkeypatch.setattr(module, name, self._before(getattr(module, name)), raising=False)
        ring.buffer._clock = self._before(ring.buffer._clock)
        ring.buffer._cpu_clock = self._before(ring.buffer._cpu_clock)

    def _before(self, called):
        def call(*arguments):
            result = called(*arguments)
            number = next(self._count)
            self.is_past = number > self._at
            if number == self._at:
                self._take_turn()
            return result

        return call

    def _take_turn(self):
        if not self._ring.buffer.thread:  # inert: it makes none
            return
        for _ in range(self._marks_of_turn):
            ordinal = next(self._ordinals)
            self._ring.call("elsewhere", "done", ordinal)
            self.made.append((MarkKind.DONE | marks.OTHER_THREAD, ordinal))
        issued = self._ring.call("elsewhere", "issue", SITE, 8)
        self.made.append((MarkKind.ISSUE | marks.OTHER_THREAD, issued))
        self._ring.call("elsewhere", "optimizer_begin", OPTIMIZER)
        self.made.append((MarkKind.FUSED_STEP | marks.OTHER_THREAD, 0))


def train(ring, monkeypatch):
    """Make the marks of some steps; return them as (kind, ordinal of a collective)."""
    made = []
    expected, pack_headed = [], call_marks.pack_headed

    def pack(*arguments):
        *_, head, ordinal, _ = arguments
        if head == MarkKind.EXPECT:
            expected.append(ordinal)
        pack_headed(*arguments)

    monkeypatch.setattr(call_marks, "pack_headed", pack)
    kernel, wait = Kernel(ring), ring.buffer.waiting(lambda: None, bool, lambda *_: False)
    for _ in range(STEPS):
        for name in ("data_begin", "data_end", "wait_begin", "wait_end", "backward_begin"):
            ring.now += 1000
            ring.call(name)
            made.append((MarkKind[name.upper()], 0))
        for _ in range(BLOCK_MARKS // 4):
            ring.now += 1000
            made.append((MarkKind.ISSUE, ring.call("issue", SITE, 8)))
        for _ in range(BLOCK_MARKS // 8):
            ring.now += 1000
            kernel(tensor(8), GROUP, SYNCHRONOUSLY)
            wait()
            made += [(kind, expected[-1]) for kind in (MarkKind.ISSUE, MarkKind.EXPECT)]
            made += [(kind, 0) for kind in (MarkKind.WAIT_BEGIN, MarkKind.WAIT_END)]
        ring.call("backward_end")
        ring.call("optimizer_begin", OPTIMIZER)
        ring.now += FLUSH_EVENT_NS
        ring.call("optimizer_end")
        ring.call("step_end")
        made += [(kind, 0) for kind in (MarkKind.BACKWARD_END, MarkKind.OPTIMIZER_END, MarkKind.STEP_END)]
    return made


def check(ring, made):
    """Fail unless every mark lies in the ring once, in blocks whose headers are right."""
    position = 0
    ends = [0, 0, 0]
    found = []
    for sequence, block in enumerate(ring.blocks()):
        assert (block.sequence, block.position) == (sequence, position)
        assert [block.backward_ends, block.optimizer_ends, block.step_ends] == ends
        position += block.count
        for _, kind, _, subject, _ in marks.MARK_STRUCT.iter_unpack(block.marks):
            plain = kind & marks.KIND_MASK
            ends[0] += plain == MarkKind.BACKWARD_END
            ends[1] += plain in (MarkKind.OPTIMIZER_END, MarkKind.FUSED_STEP)
            ends[2] += plain == MarkKind.STEP_END
            found.append((kind, subject))
    ignored = (MarkKind.BEGIN, MarkKind.FINISH, MarkKind.OPTIMIZER_BEGIN)
    assert sorted(each for each in found if each[0] not in ignored) == sorted(made)


@pytest.mark.parametrize("marks_of_turn", [1, BLOCK_MARKS - 2, 2 * BLOCK_MARKS])
def test_another_thread_may_come_behind_any_call(tmp_path, monkeypatch, marks_of_turn):
    """Whatever call of the training thread's it comes behind, no mark is lost or written twice, and none miscounted."""
    for at in itertools.count():
        with monkeypatch.context() as patched:
            ring = Ring(tmp_path, "Python", block_count=64, claim_thread=lambda steps: FUSES if steps else TRAINS)
            ring.call("begin")
            turns = Turns(patched, ring, at, marks_of_turn=marks_of_turn)
            made = train(ring, patched)
            ring.call("finish")
            if not turns.is_past:
                break
            check(ring, made + turns.made)
            ring.close()
    assert at > STEPS * BLOCK_MARKS  # it came behind all of them


def _code_of(module):
    """Return the code of the functions and methods that `module` defines, and of those that they define."""
    classes = [member for _, member in getmembers(module) if isinstance(member, type)]
    functions = [each for owner in (module, *classes) for _, each in getmembers(owner, isfunction)]
    found = [each.__code__ for each in functions if each.__module__ == module.__name__]
    for code in found:
        found += [each for each in code.co_consts if isinstance(each, CodeType)]
    return set(found)


def _calls_in_turns(code, module):
    """Return the lines of `code` with calls in a turn: from where the place is read until it is taken, and filled."""
    lines, begun_line, is_taken, called = [], None, False, []
    for instruction in dis.get_instructions(code):
        line, name = instruction.positions.lineno, instruction.argval
        if instruction.opname == "LOAD_ATTR" and name == "_at":
            begun_line, is_taken = line, False
        elif instruction.opname == "STORE_ATTR" and name == "_at":
            is_taken, called = code.co_name != "_store", []  # a store fills no place
            begun_line = line if is_taken else None
        elif instruction.opname == "LOAD_METHOD" or (
            instruction.opname == "LOAD_GLOBAL" and callable(getattr(module, name, None))
        ):
            called.append(name)
        elif begun_line is not None and instruction.opname.startswith(("CALL", "JUMP_BACKWARD")):
            if not is_taken or len(called) != 1 or called[0] not in FILLS:
                lines.append((code.co_qualname, begun_line, line, called))
            begun_line = None
    return lines


@pytest.mark.parametrize("module", [mark_block, collective_marks, call_marks, mark_buffer])
def test_a_place_is_taken_and_filled_in_one_turn(module):
    """Between taking a place in the block and packing the mark nothing is called, not even what looks like nothing."""
    codes = [code for code in _code_of(module) if code.co_name not in ("open", "__init__", "_last_time")]
    assert [line for code in codes for line in _calls_in_turns(code, module)] == []
    assert any(instruction.argval == "_at" for code in codes for instruction in dis.get_instructions(code))
