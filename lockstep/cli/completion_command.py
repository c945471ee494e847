"""`lockstep completion`: prints a shell's completion script, from the installed parsers."""

import argparse

_SHELLS = ("bash", "zsh", "fish")


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "completion",
        help="print the completion script of a shell",
        description="Prints a script that completes commands, options and their values. The shell itself completes "
        "files.",
        epilog="To install it for bash, for zsh (in ~/.zshrc), or for fish:\n"
        "  lockstep completion bash > ~/.local/share/bash-completion/completions/lockstep\n"
        '  eval "$(lockstep completion zsh)"\n'
        "  lockstep completion fish > ~/.config/fish/completions/lockstep.fish",
    )
    parser.add_argument("shell", choices=_SHELLS, help="the shell")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Print the script."""
    from lockstep.cli.command_line.completions import SHELLS  # noqa: PLC0415
    from lockstep.cli.command_line.parser_tree import read_parser  # noqa: PLC0415
    from lockstep.cli.main import build_parser  # noqa: PLC0415  (a cycle otherwise)

    print(SHELLS[arguments.shell](read_parser(build_parser())), end="")
    return 0
