"""Man pages and completion scripts say what the help says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fp8lab import help_pages

PROGRAM = Path(os.environ["FP8LAB_PROGRAM"])


@pytest.fixture(scope="module")
def commands() -> list[help_pages.Command]:
    return help_pages.read_help(PROGRAM)


def options_of_help(command: str) -> set[str]:
    """The options that the help for readers lists."""
    text = subprocess.check_output([PROGRAM, command, "--help"], text=True)
    table = text.split("options:\n", 1)[1]
    return set(re.findall(r"^  (?:-h \[ )?--([a-z0-9-]+)", table, re.MULTILINE)) - {"help"}


def test_every_command_and_option_of_the_help_is_there(
    commands: list[help_pages.Command],
) -> None:
    overview = subprocess.check_output([PROGRAM, "help"], text=True)
    listed = re.findall(r"^  ([a-z]+) +\S", overview.split("\n\n")[2], re.MULTILINE)
    assert [command.name for command in commands] == listed and len(listed) > 20
    for command in commands:
        named = {option.name for option in command.options if not option.is_positional}
        assert named == options_of_help(command.name), command.name


def test_built_in_names_are_accepted_words(commands: list[help_pages.Command]) -> None:
    train = next(command for command in commands if command.name == "train")
    words = {option.name: option.accepted for option in train.options}
    assert "infir2" in words["recipe"] and "quickstart" in words["preset"]
    assert words["backend"] == ("cpu", "truth", "cuda") and words["out"] == ()


def completed(script: str, *typed: str) -> list[str]:
    """What bash offers for the last of the typed words."""
    words = " ".join(f"'{word}'" for word in ("fp8lab", *typed))
    lines = f"{script}\nCOMP_WORDS=({words}); COMP_CWORD={len(typed)}; _fp8lab\n"
    lines += 'printf "%s\\n" "${COMPREPLY[@]}"\n'
    done = subprocess.run(["bash", "-euo", "pipefail"], input=lines, capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes(commands: list[help_pages.Command]) -> None:
    script = help_pages.bash_completion(commands)
    assert completed(script, "tra") == ["train"]
    assert completed(script, "help", "whati") == ["whatif"]
    assert completed(script, "train", "--init") == ["--init-from"]
    assert completed(script, "train", "--recipe", "infir2_f") == ["infir2_fp32scale"]
    assert completed(script, "train", "--backend", "") == ["cpu", "truth", "cuda"]
    assert completed(script, "train", "--backend", "cpu", "--dry") == ["--dry-run"]
    assert completed(script, "train", "--dry-run", "--kern") == ["--kernels"]
    assert completed(script, "train", "--out", "--r") == []  # a file's name, left to the shell
    assert completed(script, "gemm", "--init") == []


def test_fish_names_the_options(commands: list[help_pages.Command]) -> None:
    script = help_pages.fish_completion(commands)
    assert re.search(r"seen_subcommand_from train' -l recipe .* -x -a '.*\binfir2\b", script)
    assert re.search(r"seen_subcommand_from train' -l out .* -r$", script, re.MULTILINE)


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff is installed")
def test_man_pages_are_whole(commands: list[help_pages.Command]) -> None:
    for command in commands:
        page = help_pages.man_page(command)
        groff = ["groff", "-man", "-ww", "-Tutf8", "-rLL=200n"]
        done = subprocess.run(groff, input=page, capture_output=True, text=True, check=True)
        problems = [line for line in done.stderr.splitlines() if "break" not in line]
        assert not problems, (command.name, problems)
        text = re.sub(r"\x1b\[[0-9;]*m|.\x08", "", done.stdout)
        for option in command.options:
            name = option.name.upper() if option.is_positional else f"--{option.name}"
            assert name in text, (command.name, name)
        assert command.summary in text


def test_control_lines_are_text() -> None:
    option = help_pages.Option("x", "arg", False, (), ".TH is no heading\n'quoted' \\n a-b")
    page = help_pages.man_page(help_pages.Command("x", "a", "fp8lab x", (option,)))
    assert "\\&.TH is no heading\n\\&'quoted' \\en a\\-b" in page
