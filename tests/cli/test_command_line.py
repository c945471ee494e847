"""Completions and man pages: what the parsers take, in the shells' and roff's own syntax."""

import argparse
import re
import subprocess

import pytest

from lockstep.cli.command_line.completions import SHELLS
from lockstep.cli.command_line.man_pages import man_pages
from lockstep.cli.command_line.parser_tree import read_parser
from lockstep.cli.main import build_parser, main

PROGRAM = read_parser(build_parser())
MACROS = {".TH", ".SH", ".TP", ".BR", ".nf", ".fi"}


def complete(*words):
    """Return what bash offers for the last word, by the script that the command prints."""
    array = " ".join(f"'{word}'" for word in ("lockstep", *words))
    script = (
        f'{SHELLS["bash"](PROGRAM)}\nCOMP_WORDS=({array}); COMP_CWORD={len(words)}; _lockstep; echo "${{COMPREPLY[@]}}"'
    )
    ended = subprocess.run(["bash", "-u", "-c", script], capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    return ended.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("do",), ["doctor"]),
        (("--ver",), ["--version"]),
        (("demo", "--fault", ""), ["compute", "data", "gc", "hang", "crash", "cancel", "none"]),
        (("demo", "--fault", "c"), ["compute", "crash", "cancel"]),
        (("demo", "--pi"), ["--picture"]),
        (("demo", "--picture", ""), []),
        (("export", "da"), ["dashboards"]),
        (("run", "--", "--"), []),
        (("run", "--", "torchrun", "--d"), []),
    ],
)
def test_bash_offers_what_the_parser_takes(words, offered):
    """Commands, options, choices; nothing where the shell's own completion of files is right."""
    assert complete(*words) == offered


def test_every_option_of_every_command_is_offered_and_has_its_entry():
    """A new option is in all four texts without anybody writing it there."""
    pages = man_pages(PROGRAM, "0.0.0")
    assert set(pages) == {"lockstep.1", *(f"lockstep-{c.name.split()[1]}.1" for c in PROGRAM.commands)}
    scripts = {shell: write(PROGRAM) for shell, write in SHELLS.items()}
    for command in PROGRAM.commands:
        assert {"-h", "--help"} <= {flag for option in command.options for flag in option.flags}
        name = command.name.split()[1]
        page = pages[f"lockstep-{name}.1"].replace("\\-", "-")
        for flag in (flag for option in command.options for flag in option.flags):
            assert f"\\fB{flag}\\fR" in page, (name, flag)
            assert re.search(rf"{name}\).*{re.escape(flag)}[ \"]", scripts["bash"]), (name, flag)
            long = flag.startswith("--")
            assert re.search(
                rf"'__fish_seen_subcommand_from {name}'.* -{'l' if long else 's'} {flag.lstrip('-')} ", scripts["fish"]
            )
    assert scripts["zsh"].splitlines()[3:] == scripts["bash"].splitlines()[1:]


@pytest.mark.parametrize("name", sorted(man_pages(PROGRAM, "0.0.0")))
def test_a_man_page_is_well_formed(name):
    """Known requests only, NAME first as `apropos` reads it, and no text that roff would take for a request."""
    lines = man_pages(PROGRAM, "0.0.0")[name].splitlines()
    escaped = name[:-2].replace("-", "\\-")
    assert lines[0].startswith(f'.TH "{escaped.upper()}" 1 ')
    assert lines[1] == ".SH NAME"
    assert lines[2].startswith(f"{escaped} \\- ")
    assert len(lines[2]) > len(escaped) + len(" \\- ")
    assert {line.split()[0] for line in lines if line.startswith((".", "'"))} <= MACROS
    assert "" not in lines


def test_texts_are_escaped():
    """Backslashes, dots and apostrophes at the beginning of a line, percent signs, quotes of fish."""
    parser = argparse.ArgumentParser(prog="lockstep", description=".dot 'quoted' C:\\new 5 %")
    commands = parser.add_subparsers()
    one = commands.add_parser("one", help="it's 5 %%", description="'first")
    one.add_argument("--of", choices=("a", "b"), default="a", help="default %(default)s, 5 %%")
    one.add_argument("--hidden", help=argparse.SUPPRESS)
    program = read_parser(parser)
    pages = man_pages(program, "1")
    assert "\\&.dot 'quoted' C:\\enew 5 %" in pages["lockstep.1"]
    assert "\\&'first" in pages["lockstep-one.1"]
    assert "default a, 5 %" in pages["lockstep-one.1"]
    assert "-d 'it\\'s 5 %'" in SHELLS["fish"](program)
    assert "hidden" not in pages["lockstep-one.1"]


@pytest.mark.parametrize("shell", sorted(SHELLS))
def test_the_command_prints_the_script(shell, capsys):
    """`lockstep completion SHELL`, for a shell to read."""
    assert main(["completion", shell]) == 0
    assert capsys.readouterr().out == SHELLS[shell](PROGRAM)
