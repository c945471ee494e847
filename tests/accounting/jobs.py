"""Training jobs of many kinds as random but legal events, exceptions of the training included."""

from contextlib import contextmanager

from lockstep.contracts.marks import OPERATORS
from lockstep.contracts.records import MISSING


class TrainingError(Exception):
    """What a training raises and catches itself, in the midst of whatever it does."""


class Job:
    """A training over a twin; `random` is seeded. Hooks end spans as those of the agent do."""

    def __init__(self, twin, random):
        self.twin = twin
        self.random = random
        self.raises = random.random() < 0.3
        self.communicates = random.random() < 0.8
        self.domains = random.sample(range(6), random.randint(1, 3))
        self.counts = (random.randint(1, 9), *random.choices((MISSING, 64, 128), k=2))
        kinds = ("plain", "gan", "groups", "fused", "closure", "scaler", "explicit", "phases", "bare", "nested")
        self.kind = random.choice(kinds)
        self.accumulation = random.choice((1, 1, 2, 4))
        self.is_steady = False
        self.has_graphs = random.random() < 0.2

    def steady(self, kind):
        """Make it a job whose iterations all consist of the same spans."""
        self.kind = kind
        self.is_steady = True
        self.raises = False
        return self

    def sometimes(self, probability):
        """Whether to do what makes an iteration unlike the others."""
        return not self.is_steady and self.random.random() < probability

    def run(self, iterations):
        for index in range(iterations):
            try:
                if self.sometimes(0.03):
                    self.evaluate()
                getattr(self, self.kind)(index)
            except TrainingError:
                pass
            self.between()

    def work(self):
        """Compute a while; anything that can happen anywhere may happen."""
        twin, random = self.twin, self.random
        twin.sleep(random.choice((0, 1, 500, 40_000, 9_000_000, 120_000_000)))
        if random.random() < 0.1:
            twin.collect(random.randint(0, 2), random.randint(1, 5000))
        if self.communicates and random.random() < 0.4:
            self.communicate()
        if random.random() < 0.1:
            twin.spend(random.randint(1, 50_000))
        if self.raises and random.random() < 0.02:
            raise TrainingError

    def communicate(self):
        twin, random = self.twin, self.random
        for _ in range(random.randint(1, 3)):
            twin.issue(
                random.randrange(len(OPERATORS)),
                random.choice(self.domains),
                random.choice((1, 2, 8)),
                random.randint(0, 1 << 30),
                synchronous=random.random() < 0.4,
                ending=random.choice(
                    ("later", "later", "expect", "unknown") if random.random() < 0.2 else ("later", "expect")
                ),
            )
            twin.sleep(random.randint(0, 3000))
            if random.random() < 0.5:
                inside = [("sleep", random.randint(0, 90_000)), ("done", random.randint(0, 5))]
                twin.wait(*inside, *([("wait", ("sleep", 7))] if random.random() < 0.1 else []))
            if random.random() < 0.5:
                twin.done(random.randint(0, 5))
            if self.has_graphs and random.random() < 0.1:
                traffic = {domain: (random.randint(0, 9), random.randint(0, 99), 7) for domain in self.domains}
                twin.unmeasured(random.choice((None, traffic)))

    def between(self):
        """Do what happens between two iterations."""
        twin, random = self.twin, self.random
        twin.sleep(random.randint(0, 1000))
        if random.random() < 0.05:
            twin.flag(2)
        if self.sometimes(0.05):
            twin.compile(random.randint(1, 3))
        if self.sometimes(0.05):
            twin.annotate(random.randint(0, 3), random.randint(0, 1000))
        if self.sometimes(0.03):
            twin.change_thread()
        if random.random() < 0.1:
            twin.capture(*random.choice(((0, 0), (8, 0), (8, 700_001))))

    @contextmanager
    def span(self, begin, end):
        begin()
        try:
            yield
        finally:
            end()

    def batch(self, *, evaluated=False):
        twin = self.twin
        twin.data_begin()
        if self.sometimes(0.05):  # an iterator over another loader
            with self.span(twin.data_begin, lambda: twin.data_end(self.counts)):
                self.work()
        twin.sleep(self.random.randint(0, 30_000))
        twin.data_end(None if evaluated else self.counts)

    def evaluate(self):
        for _ in range(self.random.randint(1, 5)):
            self.batch(evaluated=self.random.random() < 0.5)
            self.work()

    def backward(self):
        with self.span(self.twin.backward_begin, self.twin.backward_end):
            self.work()
            if self.sometimes(0.1):  # checkpointed activations are computed again
                with self.span(self.twin.backward_begin, self.twin.backward_end):
                    self.work()

    def forward_backward(self):
        for _ in range(self.accumulation):
            self.batch()
            self.work()
            self.backward()

    def optimize(self, index=0):
        """Step an optimizer; one that raises does not reach its hook after the step."""
        self.twin.optimizer_begin(index)
        self.work()
        self.twin.optimizer_end()

    def plain(self, _index):
        self.forward_backward()
        self.work()
        self.optimize()

    def gan(self, _index):
        self.forward_backward()
        self.optimize(0)
        self.backward()
        self.optimize(1)

    def groups(self, _index):
        self.forward_backward()
        for index in (0, 1, 0):
            self.optimize(index)

    def fused(self, _index):
        self.batch()
        with self.span(self.twin.backward_begin, self.twin.backward_end):
            for index in (0, 1):
                self.work()
                self.optimize(index)
            if self.sometimes(0.2):
                self.backward()

    def closure(self, _index):
        self.batch()
        self.twin.optimizer_begin(0)
        for _ in range(self.random.randint(1, 3)):
            with self.span(self.twin.closure_begin, self.twin.closure_end):
                self.work()
                self.backward()
                self.work()
        self.twin.optimizer_end()

    def scaler(self, _index):
        self.forward_backward()
        with self.span(lambda: self.twin.scaler_begin(3, 0), lambda: self.twin.scaler_end(3)):
            if not self.sometimes(0.1):
                self.optimize()

    def explicit(self, index):
        if index == 2:
            self.twin.explicit()
        self.forward_backward()
        self.optimize()
        if index > 1 and index % 2:
            self.twin.step_end()

    def phases(self, _index):
        for phase in (0, 1, 2, 3):
            with self.span(lambda at=phase: self.twin.phase_begin(at), lambda at=phase: self.twin.phase_end(at)):
                self.work()
                if self.sometimes(0.1):
                    self.backward()
        self.twin.step_end()

    def bare(self, _index):
        """Neither a loader nor a backward that is seen."""
        self.work()
        self.optimize()

    def nested(self, _index):
        """Step a container around optimizers."""
        self.forward_backward()
        self.twin.optimizer_begin(2)
        self.optimize(0)
        self.optimize(1)
        self.twin.optimizer_end()
