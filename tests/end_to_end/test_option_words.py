"""Errors about an option name the option and its value, not the key that it sets inside."""

from __future__ import annotations

from pathlib import Path

import pytest
from model_files import CONFIG, random_tensors, write_folder
from program import SMALL_MODEL, refused

RUN = f"""
name = "r"
{SMALL_MODEL}
[[stages]]
name = "cpt"
steps = 2
batch_sequences = 1
sequence_length = 64
"""
STUDY = """
name = "s"
base = "run.toml"
[[axis]]
key = "recipe"
values = ["bf16", "infir2"]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("words")
    write_folder(folder / "model", random_tensors(CONFIG), CONFIG)
    (folder / "held.txt").write_text("What is held out. " * 40)
    (folder / "run.toml").write_text(RUN)
    (folder / "study.toml").write_text(STUDY)
    return folder


WRONG = {
    ("--sequences", -3): "--sequences -3: accepted: an integer from 1 to",
    ("--exact-match", 2): "--exact-match 2: asks prompts; accepted: --form prompt_response",
    ("--pass-at", 3, "--samples", 1): "--pass-at 3: is more than there are samples, 3",
    ("--rollouts", 3): "--rollouts 3: --rollout-recipe: asks prompts",
    ("--rollout-recipe", "nope"): "--rollout-recipe nope: unknown recipe 'nope'",
    ("--pass-at", 1, "--top-p", 3): "--top-p 3: accepted: a number from",
    ("--recipe", "nope"): "--recipe nope: unknown recipe 'nope'",
    ("--sequence-length", 0): "--sequence-length 0: accepted: an integer from 2",
    ("--sequences-together", -1): "--sequences-together -1: accepted: an integer from 1",
    ("--form", "prompt_response"): "--form prompt_response: plain text has no prompts; "
    "accepted: running_text, or --data of .jsonl files",
    ("--set", "sequences=-1"): "--set sequences=-1: 'sequences' is the integer -1",
    ("--set", "foo=1"): "--set foo=1: unknown key 'foo'",
}


@pytest.mark.parametrize("options", WRONG, ids=lambda options: " ".join(map(str, options)))
def test_eval_names_the_option(folder: Path, options: tuple[object, ...]) -> None:
    said = refused("eval", "model", "--data", "held.txt", *options, cwd=folder)
    assert f"eval: {WRONG[options]}" in said
    assert "stages." not in said and "assignment" not in said


@pytest.mark.parametrize(
    "command", [("generate", "--prompt", "a"), ("certify", "--prompt", "a"), ("assess",)]
)
def test_every_command_with_a_model_names_the_option(
    folder: Path, command: tuple[str, ...]
) -> None:
    said = refused(command[0], "model", *command[1:], "--sequence-length", 0, cwd=folder)
    assert f"fp8lab: {command[0]}: --sequence-length 0: accepted: an integer from 2" in said


@pytest.mark.parametrize("command", ["certify", "assess"])
def test_documents_without_prompts_are_told_by_the_option(folder: Path, command: str) -> None:
    said = refused(command, "model", "--data", "held.txt", "--form", "prompt_response", cwd=folder)
    assert f"fp8lab: {command}: --form prompt_response: plain text has no prompts" in said


def test_a_key_that_an_option_sets_is_not_set_again(folder: Path) -> None:
    run = ("train", "--config", "run.toml", "--dry-run")
    said = refused(*run, "--recipe", "bf16", "--set", "recipe=infir2", cwd=folder)
    assert "train: --recipe bf16: --set recipe=infir2 sets the same; accepted: one of" in said
    held = ("eval", "model", "--data", "held.txt", "--sequences", 3)
    said = refused(*held, "--set", "sequences=4", cwd=folder)
    assert "eval: --set sequences=4: --sequences 3 sets the same" in said
    # A key given by --set is named as one.
    said = refused(*run, "--set", "backend=nope", cwd=folder)
    assert "train: --set backend=nope: 'backend' is 'nope'; accepted: cpu" in said


def test_lines_that_ask_nothing_are_told_by_file_and_line(folder: Path) -> None:
    ask = ("generate", "model", "--prompts", "asked.jsonl")
    for line, words in {
        "": 'asked.jsonl: holds no prompt; accepted: lines of {"prompt": TEXT} or',
        '{"prompt": {"messages": []}}': 'asked.jsonl:1: "prompt" is an object; accepted: a string',
        '{"prompt": null}': 'asked.jsonl:1: accepted: an object with "prompt" or "messages"',
        '{"messages": null}': 'asked.jsonl:1: accepted: an object with "prompt" or "messages"',
        # null counts as an absent key.
        '{"prompt": [999999], "messages": null}': 'asked.jsonl:1: "prompt" holds 999999, which is',
    }.items():
        (folder / "asked.jsonl").write_text(line + "\n")
        assert words in refused(*ask, cwd=folder)


def test_steps_under_validation_name_what_was_typed(folder: Path) -> None:
    said = refused("validate", "step", "--recipe", "nope", cwd=folder)
    assert "fp8lab: validate step: --recipe nope: unknown recipe 'nope'" in said
    assert "validate step: --set seed=x: 'seed'" in refused("validate", "step", "--set", "seed=x")


def test_a_run_and_a_study_name_what_was_typed(folder: Path) -> None:
    run = ("train", "--config", "run.toml", "--dry-run")
    said = refused(*run, "--set", "seed=x", cwd=folder)
    assert "fp8lab: train: --set seed=x: 'seed' is the string 'x'; accepted: an integer" in said
    assert "fp8lab: train: --recipe nope: unknown" in refused(*run, "--recipe", "nope", cwd=folder)
    study = ("ablate", "--study", "study.toml", "--dry-run")
    said = refused(*study, "--set", "seed=x", cwd=folder)
    assert "--set seed=x: 'seed' is the string 'x'" in said and "assignment" not in said
