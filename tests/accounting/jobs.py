"""Training jobs of many kinds as random but legal events, exceptions of the training included."""

from contextlib import contextmanager

from lockstep.contracts.marks import OPERATORS
from lockstep.contracts.records import MISSING

KINDS = ("plain", "gan", "groups", "fused", "closure", "scaler", "explicit", "phases", "bare", "nested")
"""Methods of Job that are an iteration each."""


class TrainingError(Exception):
    """What a training raises and catches itself, in the midst of whatever it does."""


class Job:
    """What a training does, over what records it; `random` is seeded. Hooks end spans as those of the agent do."""

    def __init__(self, training, random):
        self.training = training
        self.random = random
        self.raises = random.random() < 0.3
        self.communicates = random.random() < 0.8
        self.domains = random.sample(range(6), random.randint(1, 3))
        self.counts = (random.randint(1, 9), *random.choices((MISSING, 64, 128), k=2))
        self.kind = random.choice(KINDS)
        self.accumulation = random.choice((1, 1, 2, 4))
        self.is_steady = False
        self.has_graphs = random.random() < 0.2
        self.iteration_ends_ns = []

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
            self.iteration_ends_ns.append(self.training.now_ns)
            self.between()

    def work(self):
        """Compute a while; anything that can happen anywhere may happen."""
        training, random = self.training, self.random
        training.sleep(random.choice((0, 1, 500, 40_000, 9_000_000, 120_000_000)))
        if random.random() < 0.1:
            training.collect(random.randint(0, 2), random.randint(1, 5000))
        if self.communicates and random.random() < 0.4:
            self.communicate()
        if random.random() < 0.1:
            training.spend(random.randint(1, 50_000))
        if self.raises and random.random() < 0.02:
            raise TrainingError

    def communicate(self):
        training, random = self.training, self.random
        for _ in range(random.randint(1, 3)):
            training.issue(
                random.randrange(len(OPERATORS)),
                random.choice(self.domains),
                random.choice((1, 2, 8)),
                random.randint(0, 1 << 30),
                synchronous=random.random() < 0.4,
                ending=random.choice(
                    ("later", "later", "expect", "unknown") if random.random() < 0.2 else ("later", "expect")
                ),
            )
            training.sleep(random.randint(0, 3000))
            if random.random() < 0.5:
                inside = [("sleep", random.randint(0, 90_000)), ("done", random.randint(0, 5))]
                training.wait(*inside, *([("wait", ("sleep", 7))] if random.random() < 0.1 else []))
            if random.random() < 0.5:
                training.done(random.randint(0, 5))
            if self.has_graphs and random.random() < 0.1:
                traffic = {domain: (random.randint(0, 9), random.randint(0, 99), 7) for domain in self.domains}
                training.unmeasured(random.choice((None, traffic)))

    def between(self):
        """Do what happens between two iterations."""
        training, random = self.training, self.random
        training.sleep(random.randint(0, 1000))
        if random.random() < 0.05:
            training.flag(2)
        if self.sometimes(0.05):
            training.compile(random.randint(1, 3))
        if self.sometimes(0.05):
            training.annotate(random.randint(0, 3), random.randint(0, 1000))
        if self.sometimes(0.03):
            training.change_thread()
        if random.random() < 0.1:
            training.flag(8)
            training.spend(random.choice((1, 700_001)))

    @contextmanager
    def span(self, begin, end):
        begin()
        try:
            yield
        finally:
            end()

    def batch(self, *, evaluated=False):
        training = self.training
        training.data_begin()
        if self.sometimes(0.05):  # an iterator over another loader
            with self.span(training.data_begin, lambda: training.data_end(self.counts)):
                self.work()
        training.sleep(self.random.randint(0, 30_000))
        training.data_end(None if evaluated else self.counts)

    def evaluate(self):
        for _ in range(self.random.randint(1, 5)):
            self.batch(evaluated=self.random.random() < 0.5)
            self.work()

    def backward(self):
        with self.span(self.training.backward_begin, self.training.backward_end):
            self.work()
            if self.sometimes(0.1):  # checkpointed activations are computed again
                with self.span(self.training.backward_begin, self.training.backward_end):
                    self.work()

    def forward_backward(self):
        for _ in range(self.accumulation):
            self.batch()
            self.work()
            self.backward()

    def optimize(self, index=0):
        """Step an optimizer; one that raises does not reach its hook after the step."""
        self.training.optimizer_begin(index)
        self.work()
        self.training.optimizer_end()

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
        with self.span(self.training.backward_begin, self.training.backward_end):
            for index in (0, 1):
                self.work()
                self.optimize(index)
            if self.sometimes(0.2):
                self.backward()

    def closure(self, _index):
        self.batch()
        self.training.optimizer_begin(0)
        for _ in range(self.random.randint(1, 3)):
            with self.span(self.training.closure_begin, self.training.closure_end):
                self.work()
                self.backward()
                self.work()
        self.training.optimizer_end()

    def scaler(self, _index):
        self.forward_backward()
        with self.span(lambda: self.training.scaler_begin(3, 0), lambda: self.training.scaler_end(3)):
            if not self.sometimes(0.1):
                self.optimize()

    def explicit(self, index):
        if index == 2:
            self.training.explicit()
        self.forward_backward()
        self.optimize()
        if index > 1 and index % 2:
            self.training.step_end()

    def phases(self, _index):
        for phase in (0, 1, 2, 3):
            with self.span(
                lambda at=phase: self.training.phase_begin(at), lambda at=phase: self.training.phase_end(at)
            ):
                self.work()
                if self.sometimes(0.1):
                    self.backward()
        self.training.step_end()

    def bare(self, _index):
        """Neither a loader nor a backward that is seen."""
        self.work()
        self.optimize()

    def nested(self, _index):
        """Step a container around optimizers."""
        self.forward_backward()
        self.training.optimizer_begin(2)
        self.optimize(0)
        self.optimize(1)
        self.training.optimizer_end()
