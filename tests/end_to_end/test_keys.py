"""The keys that the program lists: every one is explained, and documents name no other.

Run by ctest, which passes the program's path in FP8LAB_PROGRAM.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from program import refused, succeeded

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    path
    for path in [*ROOT.rglob("*.md"), *ROOT.glob("experiments/**/*.toml")]
    if not {"build", ".git"} & set(path.relative_to(ROOT).parts)
)


def listed(topic: str) -> dict[str, str]:
    """Keys with what is said about each, "[a.b] c" as "a.b.c"."""
    keys: dict[str, str] = {}
    table, key = "", ""
    for line in succeeded("help", topic).split("\nA complete file")[0].splitlines()[1:]:
        if line.startswith("["):
            table = line.strip("[]") + "."
            key = ""
        elif re.fullmatch(r"  \w+", line):
            key = table + line.strip()
            keys[key] = ""
        elif key:
            keys[key] += " " + line.strip()
    return keys


@pytest.fixture(scope="module")
def run_keys() -> dict[str, str]:
    return listed("config")


@pytest.fixture(scope="module")
def recipe_keys() -> dict[str, str]:
    return listed("recipe")


def test_every_key_is_explained(run_keys: dict[str, str], recipe_keys: dict[str, str]) -> None:
    assert len(run_keys) > 90 and len(recipe_keys) > 28
    for key, words in (run_keys | recipe_keys).items():
        assert len(words) > 20 and not re.search(r"\s{2}|;;|default *$", words.strip()), key
    assert "an integer from 0 to" in run_keys["stages.learning_rate.decay_steps"]
    assert 'only with kind = "wsd"' in run_keys["stages.learning_rate.decay_steps"]
    assert "default hidden_size / num_attention_heads" in run_keys["model.head_dim"]
    assert "required" in run_keys["stages.name"]
    assert "default 1024" in recipe_keys["slots.OPERAND.history"]
    assert "did you mean 'config'?" in refused("help", "confg")
    assert "help config" in succeeded("--help")


def run_file_key(key: str) -> str:
    """stages.NAME.steps without the name."""
    return re.sub(r"^stages\.[^.]+\.", "stages.", key)


def settings(text: str) -> Iterator[str]:
    """The keys that commands set; those of `fp8lab eval` stand in [stages.eval]."""
    for match in re.finditer(r"(\beval [^`\n]*?)?--set[= ]+['\"]?([\w.*]+)=", text):
        yield f"stages.eval.{match[2]}" if match[1] else run_file_key(match[2])
    tables = r"(?:stages|optimizer|logging|model|attention|memory)"
    for match in re.finditer(rf"`({tables}\.[\w.*]+)`", text):
        yield run_file_key(match[1])


def written(text: str) -> Iterator[str]:
    """The keys of fenced TOML."""
    for block in re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        table = ""
        for line in block.splitlines():
            if heading := re.match(r"\[+([\w.\"]+)\]+", line):
                table = heading[1].replace('"', "") + "."
            elif key := re.match(r"([\w.]+) *=", line):
                yield table + key[1]


def test_documents_name_keys_that_exist(
    run_keys: dict[str, str], recipe_keys: dict[str, str]
) -> None:
    # --set model=tiny, --set optimizer.group=[...]
    whole = {key[: dot.start()] for key in run_keys for dot in re.finditer(r"\.", key)}
    names = set(run_keys) | whole | {"KEY", "model.base", "stages.base", "stages.KEY"}
    slots = {re.sub(r"^slots\.OPERAND", "slots", key) for key in recipe_keys}
    activations = set(re.findall(r"[\w.]+\w", recipe_keys["saved_activations.ACTIVATION"]))
    found = 0
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        for key in settings(text):
            placeholder = key.endswith((".KEY", ".csv"))  # stages.csv of a study's page
            known = key in names or key in recipe_keys or key in activations or placeholder
            assert known, f"{path.relative_to(ROOT)}: {key}"
            found += 1
        for key in written(text):
            of_value = re.sub(r"^axis\.\w+\.\w+\.", "", key)  # a value of an axis sets recipe keys
            slot = re.sub(r"^(slots|gemm)\.[\w.]+\.(\w+)$", r"\1.\2", of_value)
            slot = re.sub(r"^(saved_activations)\.(?!default$).*", r"\1.ACTIVATION", slot)
            assert key in names or slot in slots, f"{path.relative_to(ROOT)}: {key}"
            found += 1
    assert found > 60
