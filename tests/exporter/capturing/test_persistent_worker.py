"""A process that stays: asked one job at a time, and gone with all its children when something is wrong."""

import asyncio
import gc
import sys
import warnings
from pathlib import Path

import pytest

from exporter.capturing.persistent_worker import PersistentWorker
from lockstep.contracts.errors import MalformedError
from tests.exporter.capturing.test_summarise import is_gone
from tests.exporter.conftest import until

SERVE = """
import json, os, signal, sys, time
from exporter.capturing.summarise_worker import serve
def work(job):
    {body}
sys.exit(serve(work))
"""


def standing(body: str, **more: int) -> PersistentWorker:
    return PersistentWorker((sys.executable, "-c", SERVE.format(body=body)), more.get("output_max_bytes", 1 << 16))


async def test_answers_come_in_order_with_what_was_complained():
    """Output as it is, new lines and all; a failed job states why and leaves the process as it was."""
    made = standing("print('oh', file=sys.stderr); return b'a\\n' * job[3] if job[3] else sys.exit('none')")
    try:
        answers = [await made.ask(["p", "r", "n", count, 1, 2]) for count in (2, 0, 1)]
        assert answers == [(0, b"a\na\n", "oh"), (1, b"", "none"), (0, b"a\n", "oh")]
        assert made.is_running
    finally:
        await made.end()
    assert not made.is_running


async def test_cancelling_ends_the_process_and_its_child(tmp_path: Path):
    """As a limit of time does; the next job starts another process."""
    note = tmp_path / "pids"
    made = standing(
        f"job[3] or (open({str(note)!r}, 'w').write(f'{{os.getppid()}} {{os.getpid()}} '), time.sleep(60)); return b'x'"
    )
    task = asyncio.create_task(made.ask(["p", "r", "n", 0, 1, 2]))
    await until(lambda: note.exists() and note.read_text().endswith(" "))
    task.cancel()
    await asyncio.wait([task])
    pids = [int(pid) for pid in note.read_text().split()]
    await until(lambda: all(map(is_gone, pids)))
    assert not made.is_running
    assert (await made.ask(["p", "r", "n", 1, 1, 2])).output == b"x"
    await made.end()


@pytest.mark.parametrize("ticks", range(6))
def test_an_end_that_was_cancelled_is_completed_by_the_next(ticks: int):
    """Wherever a second cancellation meets it: the event loop closes with no process or transport left open."""

    async def cancel_twice() -> None:
        made = standing("time.sleep(60)")
        task = asyncio.create_task(made.ask(["p", "r", "n", 0, 1, 2]))
        await until(lambda: made.is_running)
        task.cancel()
        for _ in range(ticks + 1):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await made.end()
        assert not made.is_running

    gc.collect()
    with warnings.catch_warnings(record=True) as left:
        warnings.simplefilter("always", ResourceWarning)
        asyncio.run(cancel_twice())
        gc.collect()
    assert [str(each.message) for each in left] == []


async def test_output_beyond_the_limit_is_refused_before_it_is_read():
    """A worker that prints so much is none of ours."""
    made = standing("return b'x' * 5000", output_max_bytes=1000)
    with pytest.raises(MalformedError, match="expected an answer"):
        await made.ask(["p", "r", "n", 0, 1, 2])
    assert not made.is_running
