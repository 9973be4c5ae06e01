"""Man pages and the completion of shells, from the help of the program.

    python3 -m fp8lab.help_pages man DIR     # fp8lab.1 and fp8lab-COMMAND.1 in DIR
    eval "$(python3 -m fp8lab.help_pages bash)"
    python3 -m fp8lab.help_pages fish > ~/.config/fish/completions/fp8lab.fish
    python3 -m fp8lab.help_pages zsh > FOLDER/_fp8lab     # FOLDER in $fpath

`--program FILE` names the program; without it, the one of this package, else `fp8lab` of the path.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LISTS = {"recipe": "recipes", "preset": "presets", "model": "models"}  # option: listing command


@dataclass(frozen=True)
class Option:
    name: str
    value: str  # "arg", "cpu|cuda (=cpu)"; empty: a flag
    is_positional: bool
    accepted: tuple[str, ...]  # words of which the value is one; empty: any
    help: str


@dataclass(frozen=True)
class Command:
    name: str
    summary: str
    usage: str  # the first line is the synopsis, the others describe it
    options: tuple[Option, ...]


def _printed(program: Path, *words: str) -> str:
    done = subprocess.run([program, *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"help_pages: {program} {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def read_help(program: Path) -> list[Command]:
    """Returns the commands of the program; the accepted words of --recipe, --preset and --model
    are the built-in names."""
    names = {
        option: tuple(
            entry["name"] for entry in json.loads(_printed(program, listing, "list", "--json"))
        )
        for option, listing in LISTS.items()
    }
    first, *rest = (json.loads(line) for line in _printed(program, "help", "--json").splitlines())
    summaries = {entry["name"]: entry["summary"] for entry in first["commands"]}
    commands = []
    for entry in rest:
        options = []
        for option in entry["options"]:
            accepted = tuple(option.pop("accepted"))
            if not option["is_positional"]:
                accepted = accepted or names.get(option["name"], ())
            options.append(Option(accepted=accepted, **option))
        name = entry["command"]
        commands.append(Command(name, summaries[name], entry["usage"], tuple(options)))
    return commands


def _roff(text: str) -> str:
    """Returns text that troff prints as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join("\\&" + line if line[:1] in (".", "'") else line for line in text.split("\n"))


def man_page(command: Command) -> str:
    """Returns the manual page fp8lab-COMMAND(1)."""
    synopsis, _, description = command.usage.partition("\n")
    lines = [
        f'.TH FP8LAB\\-{command.name.upper()} 1 "" fp8lab',
        ".SH NAME",
        f"fp8lab\\-{command.name} \\- {_roff(command.summary)}",
        ".SH SYNOPSIS",
        _roff(synopsis),
    ]
    if description:
        lines += [".SH DESCRIPTION", _roff(description)]
    lines.append(".SH OPTIONS")
    for option in command.options:
        term = option.name.upper() if option.is_positional else f"--{option.name} {option.value}"
        lines += [".TP", f"\\fB{_roff(term.strip())}\\fR", _roff(option.help)]
    lines += [".SH SEE ALSO", "fp8lab(1)", ""]
    return "\n".join(lines)


def main_page(commands: Sequence[Command]) -> str:
    """Returns the manual page fp8lab(1)."""
    lines = ['.TH FP8LAB 1 "" fp8lab', ".SH NAME"]
    lines += ["fp8lab \\- a numerical laboratory for FP8 training"]
    lines += [".SH SYNOPSIS", "fp8lab COMMAND [OPTIONS]", ".SH COMMANDS"]
    for command in commands:
        lines += [".TP", f"\\fBfp8lab\\-{_roff(command.name)}\\fR(1)", _roff(command.summary)]
    return "\n".join([*lines, ""])


def bash_completion(commands: Sequence[Command]) -> str:
    """Returns a script that completes commands, options and the words that an option accepts."""
    options, words = [], []
    for command in commands:
        named = [option for option in command.options if not option.is_positional]
        spelled = " ".join(f"--{option.name}" for option in named)
        options.append(f"    {command.name}) options='{spelled} --help' ;;")
        for option in named:
            key = f"{command.name}:--{option.name}"
            if option.accepted:
                words.append(f"    {key}) words={shlex.quote(' '.join(option.accepted))} ;;")
            elif not option.value:
                words.append(f"    {key}) takes_value= ;;")
    names = " ".join(command.name for command in commands)
    return "\n".join(
        [
            "_fp8lab() {",
            "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}",
            "  local command=${COMP_WORDS[1]} options= words= takes_value=yes",
            "  COMPREPLY=()",
            '  if [ "$COMP_CWORD" -eq 1 ] || [ "$COMP_CWORD:$command" = 2:help ]; then',
            f"    COMPREPLY=($(compgen -W '{names} help version' -- \"$word\"))",
            "    return",
            "  fi",
            '  case "$command" in',
            *options,
            "  esac",
            '  case "$command:$before" in',
            *words,
            "    *:--*) ;;",
            "    *) takes_value= ;;",
            "  esac",
            '  if [ -n "$words" ]; then',
            '    COMPREPLY=($(compgen -W "$words" -- "$word"))',
            '  elif [ -z "$takes_value" ] && [ "${word#-}" != "$word" ]; then',
            '    COMPREPLY=($(compgen -W "$options" -- "$word"))',
            "  fi",
            "}",
            "complete -o default -F _fp8lab fp8lab",
            "",
        ]
    )


def zsh_completion(commands: Sequence[Command]) -> str:
    """Returns the file _fp8lab, which runs the script of bash."""
    head = "#compdef fp8lab\nautoload -U +X bashcompinit && bashcompinit\n"
    return head + bash_completion(commands)


def fish_completion(commands: Sequence[Command]) -> str:
    """Returns a script that completes commands, options and accepted words with their help."""
    lines = []
    for command in commands:
        lines.append(
            "complete -c fp8lab -n __fish_use_subcommand -f "
            f"-a {command.name} -d {shlex.quote(command.summary)}"
        )
        seen = f"-n '__fish_seen_subcommand_from {command.name}'"
        for option in command.options:
            if option.is_positional:
                continue
            line = f"complete -c fp8lab {seen} -l {option.name} -d {shlex.quote(option.help)}"
            if option.accepted:
                line += f" -x -a {shlex.quote(' '.join(option.accepted))}"
            elif option.value:
                line += " -r"
            lines.append(line)
    return "\n".join([*lines, ""])


def _program() -> Path:
    beside = Path(__file__).parent / "bin" / "fp8lab"
    found = str(beside) if beside.exists() else shutil.which("fp8lab")
    if found is None:
        raise SystemExit("help_pages: no program fp8lab in PATH; accepted: --program FILE")
    return Path(found)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m fp8lab.help_pages", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--program", type=Path, help="the program fp8lab")
    forms = parser.add_subparsers(dest="form", required=True)
    man = forms.add_parser("man", help="manual pages")
    man.add_argument("dir", type=Path, help="folder that gets the pages")
    shells = {"bash": bash_completion, "zsh": zsh_completion, "fish": fish_completion}
    for shell in shells:
        forms.add_parser(shell, help=f"completion script of {shell}")
    arguments = parser.parse_args()
    commands = read_help(arguments.program or _program())
    if arguments.form in shells:
        sys.stdout.write(shells[arguments.form](commands))
        return
    arguments.dir.mkdir(parents=True, exist_ok=True)
    (arguments.dir / "fp8lab.1").write_text(main_page(commands))
    for command in commands:
        (arguments.dir / f"fp8lab-{command.name}.1").write_text(man_page(command))
    print(f"{arguments.dir}: {1 + len(commands)} pages")


if __name__ == "__main__":
    main()
