"""Reads argparse parsers into plain values; the only module that uses argparse's private attributes."""

import argparse
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandArgument:
    """An option, or a positional argument, which has no `flags`.

    `value` is the name of its value in the help, empty for a switch; `choices` are its allowed values, empty for any.
    """

    flags: tuple[str, ...]
    value: str
    choices: tuple[str, ...]
    help: str
    is_required: bool
    is_repeated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command or sub-command; `groups` are the titles in its help with their arguments."""

    name: str
    help: str
    description: str
    epilog: str
    groups: tuple[tuple[str, tuple[CommandArgument, ...]], ...]
    commands: tuple["Command", ...] = ()

    @property
    def arguments(self) -> tuple[CommandArgument, ...]:
        """Return all arguments, in the order of the help."""
        return tuple(argument for _, arguments in self.groups for argument in arguments)

    @property
    def options(self) -> tuple[CommandArgument, ...]:
        """Return the arguments that have flags."""
        return tuple(argument for argument in self.arguments if argument.flags)


def read_parser(parser: argparse.ArgumentParser, help_text: str = "") -> Command:
    """Convert a parser and its sub-parsers to values, with defaults filled into the texts."""
    below: list[Command] = []
    for action in parser._actions:  # noqa: SLF001  (argparse offers no other way)
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            texts = {choice.dest: _help(parser, choice) for choice in action._choices_actions}  # noqa: SLF001
            below += [read_parser(one, texts.get(name, "")) for name, one in action.choices.items()]
    groups = [(group.title or "", _arguments(parser, group)) for group in parser._action_groups]  # noqa: SLF001
    return Command(
        name=parser.prog,
        help=help_text,
        description=parser.description or "",
        epilog=parser.epilog or "",
        groups=tuple((title, arguments) for title, arguments in groups if arguments),
        commands=tuple(below),
    )


def _arguments(parser: argparse.ArgumentParser, group: argparse._ArgumentGroup) -> tuple[CommandArgument, ...]:
    shown = [action for action in group._group_actions if action.help is not argparse.SUPPRESS]  # noqa: SLF001
    return tuple(_argument(parser, one) for one in shown if not isinstance(one, argparse._SubParsersAction))  # noqa: SLF001


def _argument(parser: argparse.ArgumentParser, action: argparse.Action) -> CommandArgument:
    choices = tuple(str(choice) for choice in action.choices or ())
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    value = metavar or ("{" + ",".join(choices) + "}" if choices else action.dest)
    return CommandArgument(
        flags=tuple(action.option_strings),
        value="" if action.nargs == 0 else value,
        choices=choices,
        help=_help(parser, action),
        is_required=action.required,
        is_repeated=isinstance(action, argparse._AppendAction) or action.nargs in ("*", "+"),  # noqa: SLF001
    )


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return parser._get_formatter()._expand_help(action) if action.help else ""  # noqa: SLF001
