"""A drop of the AI cores' clock, from the files that a device's profiler writes to the finding."""

import gzip
import json
from functools import partial

import pytest

from lockstep.analysis.analyse import analyse_paths
from lockstep.analysis.workers import run_here
from tests.trace.ascend.databases import T, make
from tests.trace.ascend.recordings import OUTPUT
from tests.trace.ascend.test_clocks import with_clock

FIRST_NS = 1_736_405_443_861_785_630
"""Start of the recording's first row."""


def analysed(folder):
    return analyse_paths([folder], partial(run_here, processes=1)).as_json()


def drops(found):
    return [(each["ranks"], each["evidence"][0]) for each in found["findings"] if each["cause"] == "frequency_drop"]


def refused(found):
    return [each["rule"] for each in found["not_evaluated"] if each["rule"] == "frequency_drop"]


def recording(folder, mhz=None):
    """Write the recording as a rank's, its clock falling to `mhz` as its work begins."""
    events = json.loads(gzip.decompress((OUTPUT / "trace_view.json.gz").read_bytes()))
    clock = next(each for each in events if each["name"] == "AI Core Freq")
    if mhz is not None:
        stamp = f"{FIRST_NS // 1000}.{FIRST_NS % 1000:03d}"
        events = [each for each in events if each["name"] != "AI Core Freq"]
        events += [clock, {**clock, "ts": stamp, "args": {"MHz": mhz}}]
    folder.mkdir(parents=True)
    (folder / "trace_view.json").write_text(json.dumps(events))


@pytest.mark.parametrize(("mhz", "found"), [(None, False), (1800, False), (1750, False), (1440, True)])
def test_from_trace_view(tmp_path, mhz, found):
    """The healthy recording and one within 5 % have none; one that falls by 20 % is reported with its clock."""
    recording(tmp_path / "rank_0" / "ASCEND_PROFILER_OUTPUT")
    recording(tmp_path / "rank_1" / "ASCEND_PROFILER_OUTPUT", mhz)
    summary = analysed(tmp_path)
    assert [ranks for ranks, _ in drops(summary)] == ([[1]] if found else [])
    assert all("1440 MHz" in text and "20.0% below 1800 MHz" in text for _, text in drops(summary))
    assert refused(summary) == []
    advice = [each["advice"] for each in summary["findings"] if each["cause"] == "frequency_drop"]
    assert all(advice)


def test_from_databases(tmp_path):
    """The same from AICORE_FREQ, where the name of the device gives its rated clock."""
    for rank, mhz in ((0, 1800), (1, 1440)):
        folder = tmp_path / f"rank_{rank}"
        folder.mkdir()
        with_clock(make(folder / f"ascend_pytorch_profiler_{rank}.db"), [(3, T - 1000, mhz, 0)])
    assert [ranks for ranks, _ in drops(analysed(tmp_path))] == [[1]]
    assert drops(analysed(tmp_path / "rank_1"))[0][1].endswith("20.0% below 1800 MHz (rated)")
    assert drops(analysed(tmp_path / "rank_0")) == []


def test_without_samples_it_reports_that(tmp_path):
    """Insufficient evidence, once for the job."""
    make(tmp_path / "ascend_pytorch_profiler_0.db")
    assert refused(analysed(tmp_path)) == ["frequency_drop"]
