"""The signal of stacks in a process of its own: taken only where it is free, given back, never left to a child."""

import subprocess
import sys
import textwrap

PRELUDE = """
import faulthandler, os, re, signal, sys, time
from pathlib import Path
from lockstep.agent.stack_dumps import LOOK_INTERVAL_NS, StackDumps
directory = Path(sys.argv[1])
pipe = directory / "3.stacks"
def is_caught():
    mask = re.search(r"SigCgt:\\s*(\\w+)", Path("/proc/self/status").read_text())[1]
    return bool(int(mask, 16) >> (signal.SIGURG - 1) & 1)
def handle(*_):
    print("handled")
stacks = StackDumps()
TRUSTED = frozenset((0, os.geteuid()))
"""


def run(script, directory):
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(script), str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_the_signal_is_taken_and_given_back(tmp_path):
    """While it is ours the pipe is there; afterwards there is neither, and the signal is ignored as before."""
    script = """
        stacks.begin(directory, 3, TRUSTED)
        print(stacks.fact, pipe.is_fifo(), oct(pipe.stat().st_mode & 0o777), is_caught())
        stacks.begin(directory, 3, TRUSTED)
        print(stacks.fact, [path.name for path in directory.iterdir()])
        stacks.end()
        print(pipe.exists(), is_caught())
        os.kill(os.getpid(), signal.SIGURG)
        print("lives")
        stacks.end()
    """
    assert run(script, tmp_path) == ["SIGURG True 0o640 True", "SIGURG ['3.stacks']", "False False", "lives"]


def test_a_handler_that_is_there_is_left_alone(tmp_path):
    """One of the training's in Python, and one in C that Python does not know of."""
    python = "signal.signal(signal.SIGURG, handle)\n"
    native = "faulthandler.register(signal.SIGURG, file=sys.stdout)\n"
    for first, last in ((python, "handled"), (native, None)):
        script = first + "stacks.begin(directory, 3, TRUSTED)\nprint(stacks.fact, pipe.exists(), flush=True)\n"
        lines = run(script + "stacks.end()\nos.kill(os.getpid(), signal.SIGURG)\n", tmp_path)
        assert lines[0] == "the training handles SIGURG False"
        assert lines[1] == last if last else lines[-1].startswith("  File")


def test_a_handler_that_comes_later_keeps_the_signal(tmp_path):
    """The pipe goes at the next look, once a second, and the training's handler stays."""
    script = """
        stacks.begin(directory, 3, TRUSTED)
        stacks.look(10**15)
        signal.signal(signal.SIGURG, handle)
        stacks.look(10**15 + LOOK_INTERVAL_NS - 1)
        print(pipe.exists())
        stacks.look(10**15 + LOOK_INTERVAL_NS)
        print(pipe.exists(), stacks.fact, flush=True)
        os.kill(os.getpid(), signal.SIGURG)
    """
    assert run(script, tmp_path) == ["True", "False the training took SIGURG", "handled"]


def test_a_descriptor_that_the_training_closed_is_written_no_more(tmp_path):
    """Its number is another file's by then: the file stays empty and open."""
    script = """
        stacks.begin(directory, 3, TRUSTED)
        number = stacks._file
        other = os.open(directory / "checkpoint", os.O_RDWR | os.O_CREAT)
        os.dup2(other, number)
        stacks.look(10**15)
        os.kill(os.getpid(), signal.SIGURG)
        print(stacks.fact, os.fstat(number).st_size, pipe.exists())
    """
    assert run(script, tmp_path) == ["the training took SIGURG 0 False"]


def test_the_pipe_of_the_next_process_of_the_rank_stays(tmp_path):
    """It replaced ours; what ends later removes only its own."""
    script = """
        stacks.begin(directory, 3, TRUSTED)
        pipe.unlink()
        os.mkfifo(pipe)
        stacks.end()
        print(pipe.is_fifo(), is_caught())
    """
    assert run(script, tmp_path) == ["True False"]


def test_a_full_pipe_keeps_no_one_waiting(tmp_path):
    """A hundred dumps that no one reads: the pipe takes what it holds, and the process goes on."""
    script = """
        def deep(depth):
            if depth:
                return deep(depth - 1)
            for _ in range(400):
                os.kill(os.getpid(), signal.SIGURG)
        stacks.begin(directory, 3, TRUSTED)
        deep(90)
        import fcntl, struct, termios
        held = struct.unpack("i", fcntl.ioctl(stacks._file, termios.FIONREAD, bytes(4)))[0]
        print(held <= 256 << 10, held > 32 << 10)
    """
    assert run(script, tmp_path) == ["True True"]


def test_no_pipe_is_a_fact_and_no_more(tmp_path):
    """The directory is gone: the reason is known, the signal stays free."""
    script = """
        stacks.begin(directory / "none", 3, TRUSTED)
        print(stacks.fact, is_caught())
    """
    assert run(script, tmp_path) == ["no pipe or handler: FileNotFoundError False"]


FOLLOWED = """
    requests = directory.parent / ".exporter" / directory.name / "stacks"
    requests.parent.mkdir(parents=True)
    def make():
        os.mkfifo(requests)
        return os.open(requests, os.O_RDWR | os.O_NONBLOCK)
    def written(first=b""):
        data = b""
        deadline = time.monotonic() + 30
        while not data and time.monotonic() < deadline:
            try:
                data = os.read(reader, 1 << 18)
            except BlockingIOError:
                time.sleep(0.001)
        return b"Current thread" in data
"""


def test_requests_are_followed_by_a_pipe_that_comes_late_or_is_replaced(tmp_path):
    """The exporter may start after the training, and again; given back, the pipe asks for nothing any more."""
    script = textwrap.dedent(FOLLOWED) + textwrap.dedent("""
        stacks.begin(directory, 3, TRUSTED)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        stacks.look(10**15)
        writer = make()
        stacks.look(10**15 + LOOK_INTERVAL_NS)
        os.write(writer, b"1")
        print(written())
        requests.unlink()
        other = make()
        stacks.look(10**15 + 2 * LOOK_INTERVAL_NS)
        os.write(other, b"1")
        print(written())
        stacks.end()
        os.write(other, b"1")
        print(is_caught())
    """)
    (tmp_path / "run").mkdir()
    assert run(script, tmp_path / "run") == ["True", "True", "False"]


def test_a_training_that_takes_the_signal_later_gets_none_of_ours(tmp_path):
    """The pipe of requests is given back with the handler."""
    script = textwrap.dedent(FOLLOWED) + textwrap.dedent("""
        writer = make()
        stacks.begin(directory, 3, TRUSTED)
        signal.signal(signal.SIGURG, handle)
        stacks.look(10**15)
        os.write(writer, b"1")
        print(stacks.fact, flush=True)
    """)
    (tmp_path / "run").mkdir()
    assert run(script, tmp_path / "run") == ["the training took SIGURG"]
