"""The step log: what is written comes back, and what cannot be true is refused by name."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coordinator import steplog
from coordinator.steplog import StepLog, StepLogRecorder
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.records import MISSING
from tests.coordinator.scenarios import START_UNIX_S, Scenario, generate

STEPS, RANKS = 5, 3
START_NS = int(START_UNIX_S * 1e9)


def columns(**changed):
    """Return a valid log of 3 ranks and 5 steps as columns, in order of arrival."""
    step, rank = (each.ravel() for each in np.mgrid[0:STEPS, 0:RANKS])
    made = {
        "rank": rank,
        "step": step,
        "start_ns": START_NS + step * 10**8,
        "duration_ns": np.full(len(rank), 10**8),
        "compute_ns": np.full(len(rank), 7 * 10**7),
        "host_ns": np.full(len(rank), 10**7),
        "data_ns": np.full(len(rank), 10**7),
        "gc_ns": np.zeros(len(rank), dtype=np.int64),
        "dp_wait_ns": np.full(len(rank), 10**7),
    }
    return made | changed


def foreign(path, **changed):
    """Write a log as anybody's Parquet library would, without our metadata; a column None is left out."""
    made = {name: values for name, values in columns(**changed).items() if values is not None}
    pq.write_table(pa.table(made), path)
    return path


def with_value(name, value, dtype=np.int64):
    """Return one column with a value changed in its row 4."""
    values = columns()[name].astype(dtype)
    values[4] = value
    return {name: values}


def test_what_is_written_comes_back(tmp_path):
    """Every value, MISSING included, and the name of the run survive the file."""
    log = StepLog("job", columns(**with_value("dp_wait_ns", MISSING)))
    steplog.write(log, tmp_path / "log.parquet")
    (back,) = steplog.read(tmp_path / "log.parquet")
    assert back.run == "job"
    assert back.columns.keys() == log.columns.keys()
    for name, values in log.columns.items():
        assert back.columns[name].tolist() == values.tolist(), name
    assert not list(tmp_path.glob("*.partial"))


def test_rows_come_in_order_of_arrival(tmp_path):
    """Rows may stand in any order; reading sorts them by receipt, or by their end where no receipt was noted."""
    shuffled = np.random.default_rng(1).permutation(STEPS * RANKS)
    path = foreign(tmp_path / "log.parquet", **{name: values[shuffled] for name, values in columns().items()})
    (log,) = steplog.read(path)
    for name, values in columns().items():
        assert log.columns[name].tolist() == values.tolist(), name
    received = START_NS + np.arange(STEPS * RANKS)[::-1]
    (log,) = steplog.read(foreign(path, received_ns=received))
    assert log.columns["rank"].tolist() == columns()["rank"][::-1].tolist()
    assert (np.diff(log.arrival_ns) > 0).all()


def test_runs_are_told_apart(tmp_path):
    """One file may hold several runs; each is a log of its own, by name."""
    names = np.where(columns()["rank"] == 2, "b", "a")
    logs = steplog.read(foreign(tmp_path / "log.parquet", run=names))
    assert [(log.run, log.count) for log in logs] == [("a", 2 * STEPS), ("b", STEPS)]


def test_whole_numbers_may_be_floats(tmp_path):
    """What a data frame has turned into floats is taken when each is a whole number."""
    path = foreign(tmp_path / "log.parquet", duration_ns=columns()["duration_ns"].astype(float))
    (log,) = steplog.read(path)
    assert log.columns["duration_ns"].dtype == np.int64


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"compute_ns": None}, "column in .* got no compute_ns"),
        ({"rank": None, "gc_ns": None}, "got no rank, gc_ns"),
        (with_value("duration_ns", -5), "duration_ns of row 4 .* got -5"),
        (with_value("duration_ns", 0), "duration_ns of row 4 .* got 0, expected 1 to"),
        (with_value("dp_wait_ns", -1), "dp_wait_ns of row 4 .* got -1"),
        (with_value("rank", 1 << 21), "rank of row 4 .* got 2097152"),
        (with_value("compute_ns", np.nan, float), "compute_ns of row 4 .* got nan, expected whole numbers"),
        (with_value("compute_ns", np.inf, float), "compute_ns of row 4 .* got inf"),
        (with_value("start_ns", 0.5, float), "start_ns of row 4 .* got 0.5"),
        ({"host_ns": pa.array([1, None] + [1] * 13)}, "host_ns of row 1 .* got null"),
        ({"step": ["one"] * 15}, "step in .* got string, expected whole numbers"),
        ({"gc_ns": np.full(15, 1 << 63, dtype=np.uint64)}, "gc_ns in .* expected whole numbers of 64 bits"),
        ({"run": [None] * 15}, "run in .* got null, expected a name"),
        ({"step": np.repeat([0, 0, 2, 3, 4], 3), "start_ns": START_NS + columns()["step"] * 10**7}, "step 0 again"),
    ],
)
def test_what_cannot_be_true_is_refused_by_name(tmp_path, changed, words):
    """A log with a lie in it is refused, naming file, column, row, what it holds and what was expected."""
    path = foreign(tmp_path / "log.parquet", **changed)
    with pytest.raises(MalformedError, match=words) as error:
        steplog.read(path)
    assert str(path) in str(error.value)


def test_a_repeated_row_is_refused_and_a_repeated_step_after_a_restart_is_not(tmp_path):
    """Twice is half a step apart at most: a rollback reports the same step again, later."""
    good = columns()
    again = {name: np.append(values, values[-1]) for name, values in good.items()}
    with pytest.raises(MalformedError, match="rank 2 step 4 again"):
        steplog.read(foreign(tmp_path / "log.parquet", **again))
    again["start_ns"][-1] += 10**9
    (log,) = steplog.read(foreign(tmp_path / "log.parquet", **again))
    assert log.count == STEPS * RANKS + 1


@pytest.mark.parametrize("damage", ["absent", "truncated", "text", "empty directory"])
def test_files_that_are_no_log_are_refused(tmp_path, damage):
    """A file that is missing, cut short or something else is named."""
    path = tmp_path / "log.parquet"
    if damage == "truncated":
        whole = foreign(path).read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "text":
        path.write_text("rank,step\n")
    elif damage == "empty directory":
        path.mkdir()
    with pytest.raises(MalformedError, match="step log"):
        steplog.read(path)


@pytest.mark.parametrize("nothing", [pa.nulls(15), np.full(15, np.nan)], ids=["null", "nan"])
def test_a_kind_that_the_job_does_not_have_may_be_empty(tmp_path, nothing):
    """An optional column or a wait without any value is as good as absent; NaN among values is refused."""
    path = tmp_path / "log.parquet"
    pq.write_table(pa.Table.from_pydict(columns() | {"cp_wait_ns": pa.array(nothing, from_pandas=True)}), path)
    assert "cp_wait_ns" not in steplog.read(path)[0].columns


def test_recorded_batches_come_back(tmp_path):
    """What the coordinator received is what a replay reads, whichever parts it was written in."""
    recording = generate(Scenario(degrees="dp=4", steps=12))
    recorder = StepLogRecorder(tmp_path, quota_bytes=1 << 30, part_rows=20)
    for step in range(12):
        recorder.add(recording.batch(step, step + 1), START_NS + step)
    assert len(list(tmp_path.iterdir())) == 2
    recorder.flush()
    recorder.flush()  # nothing is left to write
    assert len(list(tmp_path.iterdir())) == 3
    (log,) = steplog.read(tmp_path)
    assert (log.run, log.count) == ("job", 48)
    assert log.columns["rank"].tolist() == [0, 1, 2, 3] * 12
    assert log.columns["duration_ns"][:4] == pytest.approx(recording.duration[0] * 1e9, abs=1)
    assert log.columns["dp_wait_ns"][:4] == pytest.approx(recording.waits["dp"][0] * 1e9, abs=1)
    assert log.arrival_ns.tolist() == sorted(START_NS + step for step in range(12) for _ in range(4))


def test_the_oldest_parts_go_when_the_quota_is_reached(tmp_path):
    """A recording never takes more than its quota and the part just written; the youngest rows stay."""
    recording = generate(Scenario(degrees="dp=4", steps=30))
    recorder = StepLogRecorder(tmp_path, quota_bytes=1, part_rows=4)
    for step in range(30):
        recorder.add(recording.batch(step, step + 1), START_NS + step)
    assert len(list(tmp_path.iterdir())) == 1
    (log,) = steplog.read(tmp_path)
    assert set(log.columns["step"].tolist()) == {29}


def test_rows_that_could_not_be_written_are_kept(tmp_path):
    """A disk that fails costs nothing while memory lasts: the next flush writes what is pending."""
    recording = generate(Scenario(degrees="dp=4", steps=2))
    directory = tmp_path / "log"
    directory.write_text("in the way")
    recorder = StepLogRecorder(directory, quota_bytes=1 << 30)
    recorder.add(recording.batch(0, 2), START_NS)
    with pytest.raises(OSError, match="log"):
        recorder.flush()
    directory.unlink()
    recorder.flush()
    assert steplog.read(directory)[0].count == 8


def test_a_pipelines_bound_is_count_times_shortest(tmp_path):
    """The recorded transfer of a pipeline is what the timeline makes of the record, null where it was not measured."""
    recording = generate(Scenario(degrees="dp=2,pp=2", steps=1))
    batch = recording.batch(0, 1)
    more = {"pp_shortest_ns": [5, 6, 7, MISSING], "pp_count": [2, 2, MISSING, 2]}
    batch.columns.update({name: np.array(values, dtype="<i8").tobytes() for name, values in more.items()})
    recorder = StepLogRecorder(tmp_path, quota_bytes=1 << 30)
    recorder.add(batch, START_NS)
    recorder.flush()
    assert steplog.read(tmp_path)[0].columns["pp_transfer_ns"].tolist() == [10, 12, MISSING, MISSING]
