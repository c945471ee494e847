"""Small windows for the host's rules; times in us, which the builders turn into ns."""

from lockstep.diagnosis.host_causes.view import HostView, view_host
from lockstep.trace.columns import ANNOTATION, COPY, KERNEL, OPERATOR, PYTHON, RUNTIME
from tests.trace.made import MadeEvent, columns_of, made

ALONE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
US = 1000


def span(name, start_us, duration_us, *, category=OPERATOR, thread=1, **more) -> MadeEvent:
    """Return an event of the host."""
    return made(name, category, thread, int(start_us * US), int(duration_us * US), **more)


def frame(name, start_us, duration_us, **more) -> MadeEvent:
    """Return a Python frame."""
    return span(name, start_us, duration_us, category=PYTHON, **more)


def loader(start_us, duration_us, name=ALONE) -> MadeEvent:
    """Return a span of torch's loader."""
    return span(name, start_us, duration_us, category=ANNOTATION)


def call(name, start_us, duration_us, correlation=-1, **more) -> MadeEvent:
    """Return a call into the device's runtime."""
    return span(name, start_us, duration_us, category=RUNTIME, correlation=correlation, **more)


def kernel(name, start_us, duration_us, correlation=-1, stream=7) -> MadeEvent:
    """Return a kernel."""
    return span(
        name, start_us, duration_us, category=KERNEL, thread=(0, stream), stream=stream, correlation=correlation
    )


def copy(name, start_us, duration_us, correlation=-1) -> MadeEvent:
    """Return a copy on the device."""
    return span(name, start_us, duration_us, category=COPY, thread=(0, 7), stream=7, correlation=correlation)


def steps(count, each_us) -> list[MadeEvent]:
    """Return the agent's marks around `count` steps of equal length."""
    return [span(f"lockstep.step#{step}", step * each_us, 0, category=ANNOTATION) for step in range(count + 1)]


def view(events, window_us, **more) -> HostView:
    """Return the view of a window that begins at 0."""
    return view_host(columns_of(events, **more), (0, int(window_us * US)))
