"""What the demonstration shows while it runs. It draws the responses of the coordinator's API and decides nothing."""

import io
import re
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from lockstep.cli.demo.demo_verdict import EXPECTED, DemoVerdict
from lockstep.html.units import counted, format_step

_BAR_CELLS = 32
_PLAIN_EVERY_STEPS = 25
_PICTURE_COLUMNS = 110
_STOPPED = {"hang": ", has not arrived", "crash": ", ended before the others"}
"""By kind of incident; its onset is the step in which the job stopped."""
_OWN = (("compute_seconds", "cyan"), ("host_seconds", "blue"), ("data_seconds", "yellow"), ("gc_seconds", "red"))


class DemoView:
    """A live table on a terminal; otherwise an occasional line.

    The progress bar runs towards `goal_step`, at which `goal` happens.
    """

    def __init__(self, console: Console, goal: str, goal_step: int) -> None:
        self._console = console
        self._goal = goal
        self._goal_step = goal_step
        self._live: Live | None = None
        self._last_line_step = -_PLAIN_EVERY_STEPS
        self._last_state = ""

    def show(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(text, highlight=False, markup=False)

    def start(self, text: str) -> None:
        """Show that something is in progress before the run reports."""
        if self._console.is_terminal:
            self._live = Live(Spinner("dots", text), console=self._console, refresh_per_second=8, transient=True)
            self._live.start()
        else:
            self.show(text)

    def update(self, run: dict[str, Any]) -> None:
        """Show the run as it is now."""
        if self._live is not None:
            self._live.update(Group(self._progress(run["step"]), _picture(run)))
            return
        step = run["step"]
        if run["state"] != self._last_state or step >= self._last_line_step + _PLAIN_EVERY_STEPS:
            self._last_state, self._last_line_step = run["state"], step
            self.show(_headline(run))

    def close(self) -> None:
        """Give the terminal back."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _progress(self, step: int) -> RenderableType:
        row = Table.grid(padding=(0, 1))
        done = step >= self._goal_step
        bar = ProgressBar(total=self._goal_step, completed=min(step, self._goal_step), width=_BAR_CELLS)
        row.add_row(
            bar, f"{self._goal} since step {self._goal_step}" if done else f"{self._goal} at step {self._goal_step}"
        )
        return row


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.0f} ms"


def _headline(run: dict[str, Any]) -> str:
    text = f"step {run['step']:>4}  step time {_milliseconds(run['recent_step_seconds']):>7}"
    if run["baseline_step_seconds"] is not None:
        text += f" (healthy: {_milliseconds(run['baseline_step_seconds'])})"
    text += f"  {run['state']}"
    slow = [str(rank) for rank in run["slow_ranks"]]
    if slow:
        others = [str(rank["rank"]) for rank in run["ranks"] if rank["rank"] not in run["slow_ranks"]]
        who = f"rank {others[0]} waits" if len(others) == 1 else f"ranks {', '.join(others)} wait"
        text += f"  {who} for rank {', '.join(slow)}"
    return text


def _picture(run: dict[str, Any]) -> RenderableType:
    longest = max((_total(rank) for rank in run["ranks"]), default=0.0) or 1.0
    table = Table(box=None, pad_edge=False)
    for column in ("rank", "own work", "waits", "compute, host, data, gc | waiting"):
        table.add_column(column, justify="right" if column != "compute, host, data, gc | waiting" else "left")
    for rank in run["ranks"]:
        bar = Text()
        for key, colour in _OWN:
            bar.append("█" * round(_BAR_CELLS * (rank[key] or 0.0) / longest), colour)
        bar.append("░" * round(_BAR_CELLS * (rank["wait_seconds"] or 0.0) / longest), "dim")
        name = Text(str(rank["rank"]), "bold red" if rank["rank"] in run["slow_ranks"] else "")
        table.add_row(name, _milliseconds(rank["self_seconds"]), _milliseconds(rank["wait_seconds"]), bar)
    return Group(Text(_headline(run), "bold"), table)


def _total(rank: dict[str, Any]) -> float:
    return (rank["self_seconds"] or 0.0) + (rank["wait_seconds"] or 0.0)


def print_verdict(console: Console, verdict: DemoVerdict) -> None:
    """Print the verdict as text."""
    console.rule("verdict", style="bold")
    if verdict.rank is None:
        console.print(_nothing_found(verdict))
    else:
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        operator = f"  (operator {verdict.operator})" if verdict.operator else ""
        table.add_row("rank", Text(f"{verdict.rank}{_STOPPED.get(verdict.kind or '', '')}", "bold red"))
        root_cause = f": {verdict.root_cause}" if verdict.root_cause and verdict.kind != "slow_rank" else ""
        table.add_row("cause", Text(f"{verdict.cause or 'unknown'}{root_cause}", "bold"))
        table.add_row("function", Text(f"{verdict.function or 'not captured'}{operator}", "bold"))
        found = "" if verdict.kind in _STOPPED else f", found at {format_step(verdict.detected_step)}"
        table.add_row("since", f"{format_step(verdict.onset_step)}{found}")
        for number, evidence in enumerate(verdict.evidence):
            table.add_row("" if number else "evidence", Text(evidence))
        for number, line in enumerate(verdict.stacks):
            table.add_row("" if number else "stacks", Text(line))
        for number, advice in enumerate(verdict.advice):
            table.add_row("" if number else "advice", _advice(advice))
        console.print(table)
    console.print(f"Injected: {_injected(verdict)}. The verdict is {_outcome(verdict)}.")
    if verdict.agent_share_ratio is not None:
        console.print(_agent_cost(verdict.agent_share_ratio, verdict.agent_capture_seconds))


def _agent_cost(share_ratio: float, capture_seconds: float | None) -> str:
    share = f"The agent took {share_ratio:.3%} of the step time from the training threads"
    if capture_seconds is None:
        return f"{share}."
    return f"{share} before the incident, and {capture_seconds * 1e3:.0f} ms of each rank since, captures included."


def _nothing_found(verdict: DemoVerdict) -> str:
    counts = f"{counted(verdict.steps, 'step')}, {counted(verdict.incidents, 'incident')}"
    if verdict.state == "cancelled":
        return f"The run was cancelled: its processes were asked to end. No alert fires ({counts})."
    return f"No rank holds this job back ({counts})."


def _injected(verdict: DemoVerdict) -> str:
    if verdict.faulty_rank is not None:
        return f"{verdict.fault} on rank {verdict.faulty_rank} from step {verdict.fault_step}"
    return "no fault" if verdict.fault == "none" else f"SIGINT to the job after step {verdict.fault_step}"


def _outcome(verdict: DemoVerdict) -> str:
    if verdict.correct:
        return "right"
    expected = EXPECTED[verdict.fault]
    is_as_injected = (verdict.rank, verdict.cause) == (verdict.faulty_rank, expected.cause) and verdict.incidents == 1
    if is_as_injected and verdict.function is None:
        return "INCOMPLETE: rank and cause are right, no function was captured in time, as happens on a busy machine"
    wanted, found = "no incident", counted(verdict.incidents, "incident")
    if expected.kind:
        wanted = f"one incident of rank {verdict.faulty_rank} with cause {expected.cause} in {expected.function}"
    if expected.state:
        wanted, found = f"{wanted} and state {expected.state}", f"{found} and state {verdict.state or 'unknown'}"
    return f"WRONG: expected {wanted}, got {found}"


def draw_verdict(file: Path, verdict: DemoVerdict) -> None:
    """Write the verdict as an SVG picture of a terminal."""
    console = Console(record=True, width=_PICTURE_COLUMNS, file=io.StringIO())
    print_verdict(console, verdict)
    picture = console.export_svg(title=f"lockstep demo --fault {verdict.fault}")
    # rich requests fonts from a public host; a viewer's own monospace font is good enough.
    file.write_text(re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL), encoding="utf-8")


def _advice(advice: dict[str, Any]) -> Text:
    gain = advice["predicted_gain_ratio"]
    text = Text(advice["suggestion"])
    if gain is not None:
        text.append(f"  (predicted: {gain:.0%} of the step)", "green")
    return text.append(f"\n  {advice['how']}", "dim")
