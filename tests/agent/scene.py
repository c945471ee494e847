"""A recorder under a clock of the test's own, and the marks of a plain step."""

from threading import get_ident

from lockstep.agent import recorder, running_step
from lockstep.agent.recorder import Recorder
from lockstep.contracts.records import MISSING, RECORD_FIELDS, RECORD_STRUCT
from tests.agent.rings import unaccounted_ns

OPTIMIZER = object()
DATA = (("enter_data", 1), ("leave_data", 10))
BATCH = (*DATA, ("add_batch", 0, 4, 32, MISSING))
BACKWARD = (("enter_backward", 20), ("leave_backward", 40))
STEP = (("enter_optimizer", 2, OPTIMIZER), ("leave_optimizer", 5))


class Scene:
    """A recorder, its clock, and the records that came out."""

    def __init__(self, monkeypatch):
        self.now = 100
        self.records = []
        self.next_flags = 0
        self.beats = []
        for module in (recorder, running_step):
            monkeypatch.setattr(module, "monotonic_ns", lambda: self.now)
        monkeypatch.setattr(running_step, "thread_time_ns", lambda: self.now // 2)
        self.adoptions = 0
        self.recorder = Recorder(self._store, self._at_boundary, self._adopt)
        self.recorder.begin_attempt(self.now, self.beats.append)
        self.recorder.thread = get_ident()

    def _store(self, record):
        self.records.append(dict(zip(RECORD_FIELDS, RECORD_STRUCT.unpack(record), strict=True)))

    def _at_boundary(self, next_step):
        assert next_step == len(self.records)
        return self.next_flags

    def _adopt(self):
        self.adoptions += 1
        return False

    def run(self, *what):
        """Play (method, time it takes) pairs: the time passes before the method is called."""
        for name, took, *arguments in what:
            self.now += took
            owner = self.recorder if hasattr(self.recorder, name) else self.recorder.quantities
            getattr(owner, name)(*arguments)

    def check(self):
        """Every record's parts are its whole, and each step begins where the one before ended."""
        for record in self.records:
            assert unaccounted_ns(record) == 0
        for former, latter in zip(self.records, self.records[1:], strict=False):
            assert latter["start_ns"] == former["end_ns"]
