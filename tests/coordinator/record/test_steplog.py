"""The step log: what is written comes back, and what cannot be true is refused by name."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coordinator.record import steplog
from coordinator.record.steplog import StepLog
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.records import MISSING
from tests.coordinator.scenarios import START_UNIX_S, Scenario, generate
from tests.support.batches import columns_of, with_columns

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


def test_runs_are_distinguished(tmp_path):
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


LENIENT = [
    (with_value("compute_ns", np.nan, float), {"compute_ns": 1}),
    (with_value("start_ns", 0.5, float), {"start_ns": 1}),
    (with_value("start_ns", -1), {"start_ns": 1}),
    (with_value("start_ns", 1 << 63, np.uint64), None),
    (with_value("rank", 1 << 21), {"rank": 1}),
    (with_value("rank", -1), {"rank": 1}),
    ({"step": pa.array([None] + [1] * 14)}, {"step": 1}),
    (with_value("dp_wait_ns", -1), {}),
    (with_value("duration_ns", 0), {}),
    ({"host_ns": pa.array([1, None] + [1] * 13)}, {}),
    ({"compute_ns": None}, {}),
    ({"rank": None}, None),
    ({"step": ["one"] * 15}, None),
]


@pytest.mark.parametrize(("changed", "counted"), LENIENT)
def test_leniently_what_cannot_be_read_is_counted_and_skipped(tmp_path, changed, counted):
    """Rows without a value that the timeline could be given go, by column; columns of another kind are still refused."""
    path = foreign(tmp_path / "log.parquet", **changed)
    skipped = Counter()
    if counted is None:
        with pytest.raises(MalformedError):
            steplog.read(path, skipped)
        return
    (log,) = steplog.read(path, skipped)
    assert {name: count for name, count in skipped.items() if count} == counted
    assert log.count == STEPS * RANKS - sum(counted.values())


def test_leniently_a_repeated_row_is_left_to_the_timeline(tmp_path):
    """It counts duplicates itself."""
    again = {name: np.append(values, values[-1]) for name, values in columns().items()}
    (log,) = steplog.read(foreign(tmp_path / "log.parquet", **again), Counter())
    assert log.count == STEPS * RANKS + 1


@pytest.mark.parametrize("name", ["duration_ns", "compute_ns", "dp_wait_ns"])
def test_a_step_of_more_than_a_day_is_refused(tmp_path, name):
    """No part of a step lasts so long."""
    day_ns = 86_400 * 10**9
    assert steplog.read(foreign(tmp_path / "log.parquet", **with_value(name, day_ns)))
    with pytest.raises(MalformedError, match=f"{name} of row 4 .* got {day_ns + 1}, expected . to {day_ns}"):
        steplog.read(foreign(tmp_path / "log.parquet", **with_value(name, day_ns + 1)))


def test_the_columns_of_a_batch():
    """Duration from begin and end; the bound of transfers is count times shortest, null where either is not known."""
    batch = generate(Scenario(degrees="dp=2,pp=2", steps=1)).batch(0, 1)
    more = {"pp_shortest_ns": [5, 6, 7, MISSING], "pp_count": [2, -2, MISSING, 2]}
    batch = with_columns(batch, columns_of(batch) | more)
    made = steplog.columns_of([batch], [START_NS])
    assert made["pp_transfer_ns"].tolist() == [10, MISSING, MISSING, MISSING]
    assert made["rank"].tolist() == [0, 1, 2, 3]
    assert set(made["received_ns"].tolist()) == {START_NS}
    parts = [values for name, values in made.items() if name in steplog.PART_COLUMNS or name.endswith("_wait_ns")]
    assert sum(parts).tolist() == made["duration_ns"].tolist()


def test_a_batch_without_times_has_columns_too():
    """Whatever a sender left out, nothing raises: null is its time."""
    batch = generate(Scenario(degrees="dp=4", steps=1)).batch(0, 1)
    made = steplog.columns_of([with_columns(batch, {})], [START_NS])
    assert {made[name][0] for name in ("step", "start_ns")} == {MISSING}


def test_a_log_that_lacks_the_waits_of_a_kind_is_refused(tmp_path):
    """Steps that nothing accounts for would be refused one by one, and the answer be that all is well."""
    path = foreign(tmp_path / "log.parquet", dp_wait_ns=None)
    with pytest.raises(MalformedError, match=r"no column tp_wait_ns.*dp_wait_ns.*15 of 15 rows"):
        steplog.read(path)
    assert steplog.read(path, Counter())[0].count == STEPS * RANKS


def test_a_row_received_long_before_its_step_is_refused(tmp_path):
    """Strictly it is named; leniently its end shows when it came, for from such a receipt ages would be waited through."""
    received = columns()["start_ns"] + 2 * 10**8
    received[4] = 5
    path = foreign(tmp_path / "log.parquet", received_ns=received)
    with pytest.raises(MalformedError, match=r"received_ns of rank 1 step 1.*got 5, expected no time before"):
        steplog.read(path)
    skipped = Counter()
    (log,) = steplog.read(path, skipped)
    assert skipped["received_ns"] == 1
    assert log.count == STEPS * RANKS
    assert np.ptp(log.arrival_ns) < 10**9


@pytest.mark.parametrize("hours", [-5, 5])
def test_a_clock_that_is_hours_off_does_not_move_its_rows(tmp_path, hours):
    """Without receipts a rank's rows come when the others' do, whatever its clock shows."""
    start = columns()["start_ns"].copy()
    start[columns()["rank"] == 1] += hours * 3600 * 10**9
    (log,) = steplog.read(foreign(tmp_path / "log.parquet", start_ns=start))
    assert log.columns["step"].tolist() == columns()["step"].tolist()
    assert np.ptp(log.arrival_ns) == 4 * 10**8


def test_what_a_foreign_log_does_not_account_for_is_host_time(tmp_path):
    """Two percent of a step that no part accounts for belong to the host; ours are exact and stay as they are."""
    made = columns(host_ns=np.full(STEPS * RANKS, 8 * 10**6))
    (foreign_log,) = steplog.read(foreign(tmp_path / "foreign.parquet", **made))
    assert set(foreign_log.columns["host_ns"].tolist()) == {10**7}
    steplog.write(StepLog("job", made), tmp_path / "ours.parquet")
    with pytest.raises(MalformedError, match="98000000 ns"):
        steplog.read(tmp_path / "ours.parquet")


def test_coarse_clocks_of_a_foreign_log_are_evened_out(tmp_path):
    """Parts that sum to a little more than the step are too long by that."""
    (log,) = steplog.read(foreign(tmp_path / "log.parquet", gc_ns=np.full(STEPS * RANKS, 10**6)))
    assert set(log.columns["compute_ns"].tolist()) == {69 * 10**6}
