"""Man pages in roff, one for the program and one per command, from the values of `parser_tree`."""

import re
import textwrap

from lockstep.cli.command_line.parser_tree import Command, CommandArgument

_EMPTY = "\\&"
_HEAD = '.TH "{title}" 1 "" "Lockstep {version}" "Lockstep"\n'


def man_pages(program: Command, version: str) -> dict[str, str]:
    """Return the text of each page by its file name: lockstep.1, lockstep-run.1 and so on."""
    pages = {_file(command): _page(command, version) for command in (program, *program.commands)}
    return pages | {_file(program): _page(program, version) + _commands(program)}


def _page(command: Command, version: str) -> str:
    name = command.name.replace(" ", "-")
    help_text = command.help or command.description.partition(".")[0]
    parts = [
        _HEAD.format(title=_escaped(name.upper()), version=version),
        f".SH NAME\n{_escaped(name)} \\- {_escaped(help_text)}\n",
        f".SH SYNOPSIS\n{_synopsis(command)}\n",
        f".SH DESCRIPTION\n{_paragraph(command.description)}\n" if command.description else "",
        *(f".SH {_escaped(title.upper())}\n{''.join(map(_entry, group))}" for title, group in command.groups),
        f".SH EXAMPLES AND NOTES\n{_paragraph(command.epilog)}\n" if command.epilog else "",
    ]
    return "".join(parts)


def _commands(program: Command) -> str:
    names = [_escaped(one.name.replace(" ", "-")) for one in program.commands]
    rows = [f".TP\n.BR {name} (1)\n{_paragraph(one.help)}\n" for name, one in zip(names, program.commands, strict=True)]
    return f".SH COMMANDS\n{''.join(rows)}"


def _synopsis(command: Command) -> str:
    """Return the synopsis; optional arguments are in brackets."""
    parts = [f"\\fB{_escaped(command.name)}\\fR"]
    for argument in command.arguments:
        shown = _flag(argument, argument.flags[-1]) if argument.flags else f"\\fI{_escaped(argument.value)}\\fR"
        shown += " ..." if argument.is_repeated else ""
        parts.append(shown if argument.is_required else f"[{shown}]")
    if command.commands:
        parts.append("\\fICOMMAND\\fR ...")
    return "\n".join(parts)


def _entry(argument: CommandArgument) -> str:
    flags = ", ".join(_flag(argument, flag) for flag in argument.flags) or f"\\fI{_escaped(argument.value)}\\fR"
    return f".TP\n{flags}\n{_paragraph(argument.help) or _EMPTY}\n"


def _flag(argument: CommandArgument, flag: str) -> str:
    value = f" \\fI{_escaped(argument.value)}\\fR" if argument.value else ""
    return f"\\fB{_escaped(flag)}\\fR{value}"


def _paragraph(text: str) -> str:
    """Return text in lines of at most 100 characters, none of which is a roff request; examples keep their lines."""
    parts = []
    for line in text.splitlines():
        if line.startswith("  "):
            parts.append(f".nf\n{_escaped(line)}\n.fi")
        else:
            wrapped = textwrap.wrap(_escaped(line), 100, break_on_hyphens=False, break_long_words=False)
            parts += [re.sub(r"^(?=[.'])", r"\\&", each) for each in wrapped]
    return "\n".join(parts)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-")


def _file(command: Command) -> str:
    return f"{command.name.replace(' ', '-')}.1"
