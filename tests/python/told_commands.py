"""Commands that a text tells, with what they print: blocks ```text with lines "$ COMMAND"."""

from __future__ import annotations

import re


def commands(text: str) -> list[tuple[str, list[str]]]:
    """Commands after a prompt, without their comments, and the lines that follow them. A command
    with <<'END' goes on to that line."""
    found: list[tuple[str, list[str]]] = []
    is_open = False
    for block in re.findall(r"```text\n(.*?)```", text, re.DOTALL):
        for line in block.splitlines():
            if is_open:
                command, lines = found.pop()
                found.append((f"{command}\n{line}", lines))
                is_open = line != "END"
            elif line.startswith("$ "):
                found.append((line[2:].split("  #")[0].strip(), []))
                is_open = line.endswith("<<'END'")
            elif line and found:
                found[-1][1].append(line)
    return found


def follow(printed: list[str], expected: list[str]) -> bool:
    """Whether lines are those expected, of which `...` stands for any number."""
    if not expected:
        return not printed
    if expected[0] == "...":
        return any(follow(printed[skip:], expected[1:]) for skip in range(len(printed) + 1))
    return bool(printed) and printed[0] == expected[0] and follow(printed[1:], expected[1:])
