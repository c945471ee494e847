"""CPU time that an exporter takes for a neighbour's page, for lines of the NCCL Inspector, and to keep their sums.

The page is that of a node of 192 cores and eight devices: 1,900 lines, of which 450 are read.

    python -m benchmarks.neighbour_cost
"""

import time

from exporter.inspector.accounts import CollectiveTotals, InspectorAccounts
from exporter.inspector.lines import parse_line
from exporter.neighbours.inspector_series import inspector_samples
from exporter.neighbours.sample_history import SampleHistory
from lockstep.contracts.inspector_metrics import PLACES_MAX
from tests.exporter.inspector.inspected import line

ROUNDS = 20
LINES = 2_000
_CORES, _MODES, _DEVICES = 192, ("idle", "user", "system", "iowait", "irq", "nice", "softirq", "steal"), 8
_READ, _OTHER = 24, 16


def page(number: int) -> str:
    """Return the page at its `number`-th reading."""
    lines = [
        f'node_cpu_seconds_total{{cpu="{core}",mode="{mode}"}} {number * 15.0}'
        for core in range(_CORES)
        for mode in _MODES
    ]
    for device in range(_DEVICES):
        labels = f'gpu="{device}",UUID="GPU-{device}",Hostname="n1",modelName="NVIDIA H100 80GB HBM3"'
        lines += [f'DCGM_FI_DEV_SM_CLOCK{{{labels},each="{each}"}} {1980 + number}' for each in range(_READ)]
        lines += [f"DCGM_FI_DEV_OTHER_{each}{{{labels}}} 1" for each in range(_OTHER)]
    return "\n".join(lines)


def main() -> None:
    """Print the figures."""
    kept, pages = SampleHistory("n1", samples_max=120), [page(number) for number in range(ROUNDS)]
    begin = time.process_time()
    for number, text in enumerate(pages):
        kept.add(text, float(number))
    page_ms = (time.process_time() - begin) / ROUNDS * 1e3
    accounts, lines = InspectorAccounts(), [line(number % 8, ranks=8, sequence=number // 8) for number in range(LINES)]
    begin = time.process_time()
    for number, each in enumerate(lines):
        one = parse_line(each)
        assert one is not None
        accounts.add(("job", number % 8), one)
    line_us = (time.process_time() - begin) / LINES * 1e6
    series_ms, series_count = inspected_ms()
    print(f"a page of {pages[0].count(chr(10)) + 1:,} lines, {kept.series_count} series kept: {page_ms:.1f} ms")
    print(f"a line of the Inspector: {line_us:.1f} us")
    print(f"{series_count} series of the Inspector kept: {series_ms:.2f} ms")


def inspected_ms() -> tuple[float, int]:
    """Return what it takes to keep the sums of eight ranks with all their places once, and how many series they are."""
    places = [(f"communicator {number}", "AllReduce") for number in range(PLACES_MAX)]
    sums = {("job", rank): {place: CollectiveTotals(count=1) for place in places} for rank in range(_DEVICES)}
    kept = SampleHistory("n1", samples_max=120)
    begin = time.process_time()
    for number in range(ROUNDS):
        kept.add_samples(inspector_samples(sums, "n1"), float(number))
    return (time.process_time() - begin) / ROUNDS * 1e3, kept.series_count


if __name__ == "__main__":
    main()
