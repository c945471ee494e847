"""Completion scripts for bash, zsh and fish, from the values of `parser_tree`.

Bash and zsh share one function, which zsh runs through its bashcompinit. Arguments that take a file, or any value, are
left to the shell.
"""

from collections.abc import Iterable

from lockstep.cli.command_line.parser_tree import Command, CommandArgument

_BASH = """\
# {shell} completion for lockstep; written by `lockstep completion {shell}`.
{head}_lockstep() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} command=${{COMP_WORDS[1]}} words=""
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W "{commands}" -- "$current"))
        return
    fi
    case " ${{COMP_WORDS[*]:0:$COMP_CWORD}} " in *" -- "*) return ;; esac
    case "$command $previous" in
{values}        *) case "$command" in
{words}        esac ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _lockstep lockstep
"""
_ZSH_HEAD = "autoload -U +X compinit && compinit -u\nautoload -U +X bashcompinit && bashcompinit\n"


def bash(program: Command) -> str:
    """Return the script for bash."""
    return _function(program, "bash", "")


def zsh(program: Command) -> str:
    """Return the script for zsh."""
    return _function(program, "zsh", _ZSH_HEAD)


def fish(program: Command) -> str:
    """Return the script for fish."""
    lines = ["# fish completion for lockstep; written by `lockstep completion fish`."]
    names = " ".join(_short(command) for command in program.commands)
    for command in program.commands:
        lines.append(
            f"complete -c lockstep -n 'not __fish_seen_subcommand_from {names}' -f "
            f"-a {_short(command)} -d {_quoted(command.help)}"
        )
        seen = f"complete -c lockstep -n '__fish_seen_subcommand_from {_short(command)}'"
        lines += [f"{seen} {_fish_argument(one)}" for one in command.arguments if one.flags or one.choices]
    return "\n".join(lines) + "\n"


SHELLS = {"bash": bash, "zsh": zsh, "fish": fish}


def _function(program: Command, shell: str, head: str) -> str:
    values, words = [], []
    for command in program.commands:
        name = _short(command)
        values += [
            f'        {_patterns(name, [option])}) words="{" ".join(option.choices)}" ;;\n'
            for option in command.options
            if option.choices
        ]
        if free := [option for option in command.options if option.value and not option.choices]:
            values.append(f"        {_patterns(name, free)}) return ;;\n")
        words.append(f'            {name}) words="{" ".join(_offered(command))}" ;;\n')
    return _BASH.format(
        shell=shell,
        head=head,
        commands=" ".join([*map(_short, program.commands), *_flags(program.options)]),
        values="".join(values),
        words="".join(words),
    )


def _patterns(command: str, options: Iterable[CommandArgument]) -> str:
    return "|".join(f'"{command} {flag}"' for flag in _flags(options))


def _offered(command: Command) -> list[str]:
    choices = [choice for one in command.arguments if not one.flags for choice in one.choices]
    return [*choices, *_flags(command.options)]


def _flags(options: Iterable[CommandArgument]) -> list[str]:
    return [flag for option in options for flag in option.flags]


def _fish_argument(argument: CommandArgument) -> str:
    words = [f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in argument.flags]
    if argument.choices:
        words.append(f"{'-x ' if argument.flags else ''}-a {_quoted(' '.join(argument.choices))}")
    elif argument.value:
        words.append("-r")
    return " ".join([*words, f"-d {_quoted(argument.help)}"])


def _short(command: Command) -> str:
    return command.name.rpartition(" ")[2]


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
