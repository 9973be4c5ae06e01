"""What somebody meets who has not seen the program: endings, notes, estimates, help on words."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from program import PROGRAM, SMALL_MODEL, refused, run, succeeded

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src/python"))
from fp8lab.runs import read_run  # noqa: E402

CONFIG = (
    """
name = "first"
recipe = "{recipe}"
"""
    + SMALL_MODEL
    + """[[stages]]
name = "one"
kind = "pretrain"
steps = {steps}
batch_sequences = 4
sequence_length = 64
data = {{kind = "arithmetic", problems = 200}}
learning_rate = {{kind = "constant", peak = {rate}, warmup_steps = 0}}
eval = {{sequences = 4, data = {{kind = "arithmetic", problems = 50, corpus_seed = 9}}}}
[[stages]]
base = "one"
name = "two"
kind = "cpt"
steps = 1
batch_sequences = 4
sequence_length = 64
data = {{kind = "arithmetic", problems = 200}}
learning_rate = {{kind = "constant", peak = {rate}, warmup_steps = 0}}
"""
).replace('base = "one"\n', "")


def config(folder: Path, recipe: str = "infir2", steps: int = 2, rate: float = 1e-3) -> Path:
    path = folder / "first.toml"
    path.write_text(CONFIG.format(recipe=recipe, steps=steps, rate=rate))
    return path


@pytest.fixture(name="runs", scope="module")
def fixture_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that are a pair."""
    folder = tmp_path_factory.mktemp("first")
    for recipe in ("bf16", "te_current"):
        succeeded("train", "--config", config(folder, recipe), "--out", recipe, cwd=folder)
    return folder


def test_compare_prints_the_last_losses_of_both(runs: Path) -> None:
    words = ("compare", "bf16", "te_current", "--files-only", "--json", "out.json")
    result = run(*words, cwd=runs)
    assert result.returncode == 3
    lines = result.stdout.splitlines()
    assert lines[1].split() == ["loss", "in", "nats", "step", "A", "B", "B", "-", "A"]
    losses = json.loads((runs / "out.json").read_text())["losses"]
    assert [(row["name"], row["step"]) for row in losses] == [("training", 3), ("held-out one", 2)]
    for row, line in zip(losses, lines[2:]):
        assert line.startswith(row["name"])
        values = [float(word) for word in line.split()[-3:]]
        assert values == pytest.approx([row["a"], row["b"], row["difference"]], rel=1e-3)
        assert row["difference"] == pytest.approx(row["b"] - row["a"])
    assert "files: loss differs first at step" in result.stdout
    evaluated = json.loads(succeeded("eval", "bf16", "--json", *_held_out(), cwd=runs))
    assert evaluated["loss"] > 0
    longer = config(runs, "bf16", steps=1)
    succeeded("train", "--config", longer, "--out", "short", cwd=runs)
    run("compare", "bf16", "short", "--files-only", "--json", "short.json", cwd=runs)
    (training,) = json.loads((runs / "short.json").read_text())["losses"]
    assert training["step"] == 2, "the last step that both have"


def _held_out() -> list[str]:
    return ["--set", 'data={kind = "arithmetic", problems = 50, corpus_seed = 9}']


def test_few_held_out_documents_are_said_beside_the_loss(tmp_path: Path) -> None:
    (tmp_path / "held.txt").write_text(f"{'one and ' * 6}\n\n{'two or ' * 6}\n")
    held = 'stages.one.eval={sequences = 1, data = {kind = "text", path = "held.txt"}}'
    for recipe in ("bf16", "te_current"):
        words = ("--config", config(tmp_path, recipe), "--set", held, "--out", recipe)
        assert run("train", *words, cwd=tmp_path).returncode == 0
    said = run("compare", "bf16", "te_current", "--files-only", "--json", "c.json", cwd=tmp_path)
    (line,) = [line for line in said.stdout.splitlines() if line.startswith("held-out one")]
    assert line.startswith("held-out one, 2 documents only "), line
    losses = json.loads((tmp_path / "c.json").read_text())["losses"]
    assert [row["documents"] for row in losses] == [0, 2]


def test_a_run_resumes_by_its_folder_alone(tmp_path: Path) -> None:
    """With what it has recorded, though its file of configuration is gone, and from elsewhere."""
    (tmp_path / "text.txt").write_text("one and two or three\n\n" * 200)
    data = 'stages.one.data={kind = "text", path = "text.txt"}'
    words = [
        "--config",
        config(tmp_path, "te_current", steps=4000),
        "--set",
        "seed=3",
        "--set",
        data,
    ]
    process = subprocess.Popen(
        [PROGRAM, "train", *words, "--out", "my run"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    while "step 2/" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.stdout.read()
    assert process.wait(60) == 4
    (tmp_path / "first.toml").unlink()
    (tmp_path / "other").mkdir()
    for folder, out in ((tmp_path, "my run"), (tmp_path / "other", "../my run")):
        check = succeeded("train", "--resume", "--out", out, "--dry-run", cwd=folder)
        assert "holds a run, which is continued" in check
        changed = ("--set", "logging.print_every_seconds=9", "--threads", "1")
        succeeded("train", "--resume", "--out", out, *changed, "--dry-run", cwd=folder)
        resume = ("train", "--resume", "--out", out)
        said = refused(*resume, "--set", "seed=4", cwd=folder)
        assert "another run: " in said and "seed: 3 -> 4" in said, said
        said = refused(*resume, "--recipe", "infir2", cwd=folder)
        assert "te_current" in said and "infir2" in said, said
        assert "--scale" in refused(*resume, "--scale", "0.5", cwd=folder)
    (tmp_path / "text.txt").unlink()
    assert "text.txt" in refused("train", "--resume", "--out", "my run", cwd=tmp_path)
    said = refused("train", "--resume", cwd=tmp_path)
    assert said.endswith("--resume needs the folder of the run; accepted: --out FOLDER\n"), said
    assert "no run to resume" in refused("train", "--resume", "--out=-x", cwd=tmp_path)


def test_a_run_that_was_resumed_by_its_folder_has_the_bits_of_a_whole_one(tmp_path: Path) -> None:
    path = config(tmp_path, "te_current", steps=60)
    words = ("--config", path, "--set", "logging.print_every_seconds=0")
    succeeded("train", *words, "--out", "whole", cwd=tmp_path)
    process = subprocess.Popen(
        [PROGRAM, "train", *words, "--out", "parts"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    while "step 2/" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.stdout.read()
    assert process.wait(60) == 4
    path.unlink()
    assert "complete: parts/run.h5" in succeeded(
        "train", "--resume", "--out", "parts", cwd=tmp_path
    )
    succeeded("compare", "whole", "parts", "--files-only", cwd=tmp_path)


def test_the_remedies_of_a_run_that_is_resumed_by_its_folder_are_its_own(tmp_path: Path) -> None:
    path = config(tmp_path, "te_current", steps=12, rate=10.0)
    words = ("train", "--config", path.name, "--set", "seed=3", "--out", "my run")
    first = run(*words, cwd=tmp_path)
    assert first.returncode == 5, first.stdout + first.stderr
    told = [line for line in first.stdout.splitlines() if line.startswith("try: ")]
    assert told and all("--config first.toml --set seed=3" in line for line in told)
    again = run("train", "--resume", "--out", "my run", cwd=tmp_path)
    assert again.returncode == 5, again.stderr
    assert [line for line in again.stdout.splitlines() if line.startswith("try: ")] == told
    (tmp_path / "other").mkdir()  # where first.toml would be another file
    away = run("train", "--resume", "--out", "../my run", cwd=tmp_path / "other")
    assert away.returncode == 5 and "try: " not in away.stdout


def test_a_missing_file_is_named_with_the_folder_it_was_looked_for_in(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((4, 128), np.float32))
    product = ("gemm", "--spec", "sm90_wgmma_fp8", "--b", "a.npy", "--out", "d.npy", "--a")
    for words in (("train", "--config"), ("ablate", "--study"), ("data", "inspect"), product):
        said = refused(*words, "none.x", cwd=tmp_path)
        assert f"No such file or directory, looked for in {tmp_path}\n" in said, said
        said = refused(*words, "no/where/none.x", cwd=tmp_path)
        assert f"No such file or directory, there is no folder {tmp_path}/no\n" in said, said
        said = refused(*words, tmp_path / "none.x", cwd=tmp_path)
        assert said.endswith("No such file or directory\n"), said
    said = refused("eval", "none", cwd=tmp_path)
    assert f"there is no such file or folder, looked for in {tmp_path}; accepted" in said


def test_a_start_of_another_model_is_said(runs: Path) -> None:
    start = ("--config", config(runs, "bf16"), "--init-from", "bf16", "--dry-run")
    for setting in ("model.rope_theta=5000", "model.rms_norm_eps=1e-3"):
        said = run("train", *start, "--set", setting, cwd=runs)
        assert said.returncode == 0, said.stderr
        (note,) = [line for line in said.stderr.splitlines() if "init_from: the run states" in line]
        assert setting.split("=")[0] + ": " in note and "begin as another function" in note
    same = run("train", *start, "--set", "model.initializer_range=0.1", cwd=runs)
    assert same.returncode == 0 and "init_from: the run states" not in same.stderr


def test_every_ending_names_the_next_command(tmp_path: Path) -> None:
    long = config(tmp_path, "te_current", steps=4000)
    words = [PROGRAM, "train", "--config", long.name, "--out", "my run"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stdout is not None
    while "step 2/" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    said = process.stdout.read()
    assert process.wait(60) == 4
    command = said.strip().splitlines()[-1]
    assert command == "next: fp8lab train --config first.toml --out 'my run' --resume"
    resumed = command.removeprefix("next: fp8lab ").replace("'my run'", "my@run").split()
    resumed = [word.replace("@", " ") for word in resumed]
    check = run(*resumed, "--dry-run", cwd=tmp_path)
    assert check.returncode == 0 and "holds a run, which is continued" in check.stdout


def check_accepted(words: list[str], cwd: Path) -> None:
    """A run begins with these words; of a preset, whose steps take longer, its plan."""
    plans = "--preset" in words
    result = run(*words, *(["--dry-run"] if plans else []), cwd=cwd)
    assert result.returncode in ((0,) if plans else (0, 1, 5)), (words, result.stderr)
    assert plans or "step 1" in result.stdout, (words, result.stdout)


ACCEPTED: set[tuple[str, ...]] = set()  # remedies that a dry run has accepted


def check_ways(lines: list[str], folder: str, cwd: Path, suffixes: list[str]) -> None:
    """Every remedy is a command that train accepts, with a folder of its own. Those that differ in
    the folder and in logging alone, of the same files, are tried once."""
    commands = [line.rpartition(": fp8lab ")[2] for line in lines if line.startswith("try: ")]
    assert [shlex.split(command)[-1] for command in commands] == [f"{folder}-{s}" for s in suffixes]
    for command in commands:
        words = shlex.split(command)
        assert words[0] == "train" and "--resume" not in words
        pairs = list(zip(words, words[1:]))
        left_out = [
            i
            for i, (option, value) in enumerate(pairs)
            if option == "--out" or (option == "--set" and value.startswith("logging."))
        ]
        kept = [w for i, w in enumerate(words) if i not in left_out and i - 1 not in left_out]
        known = (*kept, *(path.read_text() for path in sorted(cwd.glob("*.toml"))))
        if known in ACCEPTED:
            continue
        ACCEPTED.add(known)
        check_accepted(words, cwd)


def wild_settings(steps: int) -> list[str]:
    """Settings with which the preset quickstart, of few tokens, meets NaN after step 1."""
    stages = (f"steps={steps}", "learning_rate.warmup_steps=0", "learning_rate.peak=10")
    few = ("batch_sequences=4", "micro_batch_sequences=4", "sequence_length=256")
    wild = ["recipe=te_delayed", *(f"stages.*.{setting}" for setting in (*stages, *few))]
    return [word for setting in wild for word in ("--set", setting)]


def test_a_run_that_broke_names_its_checkpoint_and_what_to_try(tmp_path: Path) -> None:
    words = ("train", "--preset", "quickstart", *wild_settings(6))
    often = ("--set", "logging.checkpoint_every_steps=1")
    result = run(*words, *often, "--out", "nan run", cwd=tmp_path)
    assert result.returncode == 1, result.stdout
    lines = result.stdout.splitlines()
    check_ways(lines, "nan run", tmp_path, ["bf16", "half-rate", "fallback"])
    (line,) = [line for line in lines if line.startswith("checkpoint ")]
    found = re.fullmatch(
        r"checkpoint (\d+) steps? before the break, after step (\d+): "
        r"'nan run/checkpoint.safetensors'; which tensors break from there: "
        r"(fp8lab whatif 'nan run' --recipe te_delayed)",
        line,
    )
    assert found is not None and 0 < int(found[1]) < 6, line
    succeeded(*shlex.split(found[3])[1:], cwd=tmp_path)


def test_nan_before_the_first_update_is_no_fault_of_the_rate(tmp_path: Path) -> None:
    (tmp_path / "nan.toml").write_text(
        'name = "nan"\nbase = "static_fp8"\n[slots.default]\nscale_source = "static"\n'
        'static_scale = 1e-20\noverflow = "special"\n'
    )
    config(tmp_path, "nan.toml")
    result = run("train", "--config", "first.toml", "--out", "run", cwd=tmp_path)
    assert result.returncode == 1 and "step 1 nan" in result.stdout, result.stdout
    check_ways(result.stdout.splitlines(), "run", tmp_path, ["bf16", "fallback"])
    on = ("--set", "logging.nonfinite=keep_going")
    result = run("train", "--config", "first.toml", "--out", "on", *on, cwd=tmp_path)
    assert result.returncode == 5 and "step 1 nan" in result.stdout, result.stdout
    check_ways(result.stdout.splitlines(), "on", tmp_path, ["bf16"])


def test_a_run_that_diverged_says_what_to_try(tmp_path: Path) -> None:
    """Alone, in bf16, and as an arm of a study."""
    path = config(tmp_path, "te_delayed", steps=12, rate=10)
    for recipe, ways in {"te_delayed": ["bf16", "half-rate"], "bf16": ["half-rate"]}.items():
        words = ("train", "--config", path, "--recipe", recipe, "--out", recipe)
        result = run(*words, cwd=tmp_path)
        assert result.returncode == 5, result.stdout
        check_ways(result.stdout.splitlines(), recipe, tmp_path, ways)
    (tmp_path / "s.toml").write_text(
        'name = "s"\nbase = "first.toml"\n[[axis]]\nkey = "recipe"\n'
        'values = ["bf16", "te_delayed"]\n'
    )
    result = run("ablate", "--study", "s.toml", "--jobs", 1, "--out", "s", cwd=tmp_path)
    assert "diverged (log with what to try: s/te_delayed/log.txt)" in result.stdout
    log = (tmp_path / "s/te_delayed/log.txt").read_text().splitlines()
    check_ways(log, "s/te_delayed", tmp_path, ["bf16", "half-rate"])


def test_a_stopped_run_says_how_its_loss_went(tmp_path: Path) -> None:
    words = wild_settings(6)
    result = run("train", "--preset", "quickstart", *words, "--out", "run", cwd=tmp_path)
    assert result.returncode == 1, result.stdout
    lines = result.stdout.splitlines()
    assert lines[-1] == "next: fp8lab report run/run.h5 | fp8lab doctor run"
    check_ways(lines, "run", tmp_path, ["bf16", "half-rate", "fallback"])
    assert "no checkpoint before the break: logging.checkpoint_every_steps = " in result.stdout
    (event,) = [line for line in lines if " nan: " in line]
    assert re.search(r"nan: loss growing since step 1: \d\.\d+ to \d+(\.\d)? at step \d+; ", event)
    assert "layers.0." in event


def test_a_study_names_the_commands_that_show_its_runs(tmp_path: Path) -> None:
    config(tmp_path, "bf16")
    study = 'name = "two"\nbase = "first.toml"\n[[axis]]\nkey = "seed"\nvalues = [1, 2]\n'
    (tmp_path / "two.toml").write_text(study)
    words = ("ablate", "--study", "two.toml", "--jobs", 1, "--out")
    (tmp_path / "one/seed2/run.h5.lock").mkdir(parents=True)  # this run cannot begin
    for out, status, following in (
        ("none", 0, "fp8lab report none"),
        ("one", 1, "fp8lab report one | fp8lab doctor one"),
    ):
        result = run(*words, out, cwd=tmp_path)
        assert result.returncode == status, result.stderr
        assert (result.stdout + result.stderr).splitlines()[-1] == f"next: {following}"


def test_a_dry_run_prints_each_recipe_once_and_notes_shards(tmp_path: Path) -> None:
    result = run("train", "--config", config(tmp_path), "--out", "r", "--dry-run", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("infir2: described at stage one") == 1
    assert "a forward pass takes one shard" not in result.stderr
    shards = ("--set", "parallel.shards=2")
    unsaid = ("--config", config(tmp_path), "--out", "u", *shards)
    result = run("train", *unsaid, cwd=tmp_path)
    assert result.returncode == 0 and "takes one shard" not in result.stderr, "by default"
    said = (*shards, "--set", "stages.*.micro_batch_sequences=4")
    for words in (("--dry-run",), ()):
        result = run(
            "train", "--config", config(tmp_path), "--out", "r", *said, *words, cwd=tmp_path
        )
        assert result.returncode == 0, result.stderr
        assert (
            "stage two: a forward pass takes one shard, 2 of 4 sequences ([parallel] shards = 2), "
            "not micro_batch_sequences = 4" in result.stderr
        )
    fits = ("--set", "stages.*.micro_batch_sequences=2")
    words = ("--config", config(tmp_path), "--out", "s", *shards, *fits)
    result = run("train", *words, cwd=tmp_path)
    assert result.returncode == 0 and "takes one shard" not in result.stderr


@pytest.mark.parametrize(
    "word, parts",
    [
        ("wsd", ["wsd: warm-up, stable, decay", "stages.learning_rate.kind", "decay_steps"]),
        ("jsonl", ["jsonl: JSON lines", "a value of stages.data.kind"]),
        ("delayed", ["delayed: amaxes of earlier steps", "slots.OPERAND.history"]),
        ("pow2", ["pow2: a power of two, held in FP32", "matters to slots.OPERAND.scale_"]),
        ("hadamard", ["hadamard:BLOCK", "a value of slots.OPERAND.transform"]),
        ("e4m3fn", ["of them 4 of exponent (bias 7) and 3 of mantissa; largest 448"]),
        ("e5m1", ["7 bits, of them 5 of exponent", "a value of format"]),
        ("sm90_wgmma_fp8", ["an accumulator: ", "a value of gemm.accumulator"]),
        ("adamw", ["two moments and decoupled weight decay", "a value of optimizer.kind"]),
        ("axis", ["axis: a table of a study file", "axis.NAME.VALUE: a table of a recipe file"]),
        ("slots", ["slots.OPERAND: a table of a recipe file"]),
        ("infir2", ["infir2: a recipe: InfiR2", "fp8lab recipes show infir2"]),
        ("quickstart", ["quickstart: a preset: ", "--preset quickstart", "quickstart: a study: "]),
        ("smollm2-135m", ["smollm2-135m: a model: ", 'model = "smollm2-135m"']),
        ("coat", ["coat: a recipe", "coat: a study", "an optimizer: COAT", 'optimizer = "coat"']),
        ("shards", ["parallel.shards: a key of a run file", "power of two"]),
        ("micro_batch_sequences", ["stages.micro_batch_sequences: a key", "divides batch"]),
        ("learning_rate.peak", ["stages.learning_rate.peak: a key"]),
        ("scale_source", ["slots.OPERAND.scale_source: a key of a recipe file"]),
        ("margin", ["design.margin: a key of a study file"]),
        ("parallel", ["parallel: a table of a run file"]),
    ],
)
def test_help_explains_names_and_keys(word: str, parts: list[str]) -> None:
    said = succeeded("help", word)
    for part in parts:
        assert part in said


def test_help_on_an_unknown_word_names_the_near_ones() -> None:
    for word, near in {
        "shardz": "'shards'",
        "infir3": "'infir2'",
        "quikstart": "'quickstart'",
        "trian": "'train'",
        "stocastic": "'stochastic'",
    }.items():
        assert f"did you mean {near}?" in refused("help", word)
    assert "did you mean" not in refused("help", "zzzzzzzzzz")


def test_messages_hold_numbers_where_numbers_belong(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((128, 256), np.float32))
    spec = ("--spec", "sm90_wgmma_fp8/fast/fp32", "--operand-a", "e4m3fn/1x128/pow2")
    both = (*spec, "--operand-b", "e4m3fn/1x128/pow2", "--a", "a.npy", "--b", "a.npy")
    message = refused("gemm", *both, "--out", "d.npy", cwd=tmp_path)
    assert "promote:32, promote:64, promote:128" in message and "promote:G" not in message
    for word in ("promote:48", "fest"):
        spec = ("--spec", f"sm90_wgmma_fp8/{word}/fp32", "--a", "a.npy", "--b", "a.npy")
        assert ":G" not in refused("gemm", *spec, "--out", "d.npy", cwd=tmp_path)


def test_a_vocabulary_that_is_too_small_names_the_line_to_write(tmp_path: Path) -> None:
    small = ("--set", "model.vocab_size=200")
    message = refused("train", "--config", config(tmp_path), *small, "--out", "r", cwd=tmp_path)
    assert "write vocab_size = 259 into [model]" in message
    assert "--set model.vocab_size=259" in message
    fits = ("--set", "model.vocab_size=259", "--out", "r")
    assert run("train", "--config", config(tmp_path), *fits, cwd=tmp_path).returncode == 0


def test_long_evaluations_say_how_long_they_take(runs: Path) -> None:
    """Longer than the five seconds under which nothing is said, on any machine."""
    for backend in ("truth", "cpu"):
        words = [PROGRAM, "eval", "bf16", "--sequences", "2000000", "--backend", backend]
        process = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=runs
        )
        assert process.stderr is not None
        line = ""
        while " batches done, about " not in line:
            line = process.stderr.readline()
            assert line, "ended without an estimate"
        process.kill()
        process.wait()
        assert line.startswith("eval: ") and line.endswith(" s left: evaluating ...\n")


def test_generation_says_how_long_it_takes(runs: Path) -> None:
    words = [PROGRAM, "generate", "bf16", "--prompt", "1+1=", "--samples", "65536"]
    words += ["--temperature", "1", "--max-new-tokens", "40"]
    process = subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=runs
    )
    assert process.stderr is not None
    lines: list[str] = []
    while not lines or " tokens done, about " not in lines[-1]:
        lines.append(process.stderr.readline())
        assert lines[-1], lines
    process.kill()
    process.wait()
    assert lines[-1].startswith("generate: ")


def test_evaluations_of_chats_name_place_and_remedy(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "It is 4."}]
    lines = "".join(json.dumps({"messages": talk}) + "\n" for _ in range(20))
    (tmp_path / "chats.jsonl").write_text(lines)
    path = config(tmp_path)
    chats = '{kind = "jsonl", path = "chats.jsonl", form = "prompt_response"}'
    data = ("--set", f"stages.one.eval.data={chats}", "--out", "r", "--dry-run")
    words = ("train", "--config", path, *data, "--set", "stages.one.eval.max_new_tokens=8")
    asked = ("--set", "stages.one.eval.exact_match=3")
    message = refused(*words, *asked, cwd=tmp_path)
    assert "stage one, evaluation: exact_match cannot judge an answer" in message
    assert "chats.jsonl" in message and "in a chat its last message of the assistant" in message
    assert "exact_match = 0" in message
    message = refused(*words, "--set", "stages.one.eval.pass_at_k.k=[1]", cwd=tmp_path)
    assert "stage one, evaluation: pass_at_k cannot judge an answer" in message
    talk[1]["content"] = "It is\n#### 4"
    lines = "".join(json.dumps({"messages": talk}) + "\n" for _ in range(20))
    (tmp_path / "chats.jsonl").write_text(lines)
    assert run(*words, *asked, cwd=tmp_path).returncode == 0
    long = ("--set", "stages.one.eval.max_new_tokens=60")
    message = refused("train", "--config", path, *data, *asked, *long, cwd=tmp_path)
    assert "exact_match asks nothing: no prompt of chats.jsonl leaves room" in message
    assert "max_new_tokens = 60" in message and "accepted: smaller max_new_tokens" in message
    text = ("--set", 'stages.one.eval.data.form="running_text"')
    message = refused(*words, *asked, *text, cwd=tmp_path)
    assert "exact_match" in message and 'data.form = "prompt_response"' in message


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ('"stages.*.batch_sequences" = 6', "stages.*.batch_sequences=6"),
        ('"model.max_position_embeddings" = 8', "model.max_position_embeddings=8"),
        ('seed = "one"', "seed="),
    ],
)
def test_a_wrong_setting_of_a_study_is_named_by_its_own_place(
    tmp_path: Path, setting: str, key: str
) -> None:
    """Not by a key of the base, with which it does not go together."""
    study = f'name = "s"\nbase = "quickstart"\nbaseline = "bf16"\n[set]\n{setting}\n'
    axis = '[[axis]]\nkey = "recipe"\nvalues = ["bf16", "infir2"]\n'
    (tmp_path / "s.toml").write_text(study + axis)
    message = refused("ablate", "--study", "s.toml", "--list", cwd=tmp_path)
    assert re.search(rf"assignment '[^']*{re.escape(key)}.*' \(s\.toml:[567]:\d+\): ", message)
    if not key.startswith("stages"):
        return
    arm = f'[[arm]]\nname = "a"\n[arm.set]\nrecipe = "bf16"\n{setting}\n'
    (tmp_path / "s.toml").write_text('name = "s"\nbase = "quickstart"\n' + arm)
    message = refused("ablate", "--study", "s.toml", "--list", cwd=tmp_path)
    assert f"assignment '{key}' (s.toml:7:" in message
    words = ("train", "--preset", "quickstart", "--out", "r", "--dry-run")
    message = refused(*words, "--set", "seed=2", "--set", key, cwd=tmp_path)
    assert message.startswith(f"fp8lab: train: --set {key}: ") and "seed" not in message


def test_options_that_count_say_what_they_accept(tmp_path: Path) -> None:
    for words, parts in {
        ("verify", "r", "--steps", "6-8"): ["--from 5 --steps 3 compares steps 6 to 8"],
        ("ablate", "--study", "s", "--stop-before", "1m"): ["seconds before its time limit"],
        ("quantize", "x", "--seed", "1-3"): ["a whole number from 0 to ", "; random seed of"],
    }.items():
        message = refused(*words, cwd=tmp_path)
        assert "accepted: " in message, message
        for part in parts:
            assert part in message, message
    said = succeeded("ablate", "--help")
    for part in ("launcher slurm: a long option of sbatch", "array, chdir", "cpus-per-task"):
        assert part in " ".join(said.split())


def test_one_thing_has_one_word_in_every_command() -> None:
    def options(command: str) -> set[str]:
        return set(re.findall(r"--[a-z][a-z-]*", succeeded(command, "--help")))

    for command in ("eval", "assess", "whatif", "attribute"):
        assert "--sequences" in options(command), command
    for command in ("eval", "generate", "certify"):
        assert {"--max-new-tokens", "--seed"} <= options(command), command
    assert {"--together", "--prefill-chunk"} <= options("generate") & options("certify")
    said = refused("eval", "x", "--held-out-sequences", 3)
    assert "unrecognised option '--held-out-sequences'" in said


def test_muon_says_when_it_leaves_a_matrix_as_it_is(tmp_path: Path) -> None:
    lines = [{"question": f"{i}?", "answer": f"{i}", "advantage": 1e24} for i in range(20)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = '{kind = "jsonl", path = "a.jsonl", form = "prompt_response"}'
    keys = {
        "optimizer.kind": "muon",
        "optimizer.clip_norm": "0.0",
        "logging.nonfinite": "keep_going",
        "stages.one.objective.kind": "policy_gradient",
        "stages.one.data": data,
        "stages.one.eval.data.form": "running_text",
    }
    words = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    path = config(tmp_path, "bf16", steps=3)
    result = run("train", "--config", path, *words, "--out", "r", cwd=tmp_path)
    overflow = [line for line in result.stdout.splitlines() if " overflow: muon leaves " in line]
    assert len(overflow) == 1 and "the norm of the momentum overflows" in overflow[0], result
    assert "1 overflow at step 1" in result.stdout
    keys["stages.one.objective.kind"] = "cross_entropy"
    words = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    result = run("train", "--config", path, *words, "--out", "plain", cwd=tmp_path)
    assert result.returncode == 0 and "overflow" not in result.stdout


def test_every_recipe_of_a_run_has_its_quantizers_in_the_file(tmp_path: Path) -> None:
    stages = ("--set", "stages.two.recipe=mxfp8", "--set", "logging.statistics_every_steps=1")
    succeeded("train", "--config", config(tmp_path), *stages, "--out", "r", cwd=tmp_path)
    tensors = read_run(tmp_path / "r").tensors
    assert tensors["recipe"] == ["infir2", "infir2", "mxfp8"]
    assert set(tensors["quantizers"]) == {"infir2", "mxfp8"}
    for recipe, found in tensors["quantizers"].items():
        assert len(found["format"]) == len(tensors["slot"]) and "" not in found["format"], recipe
    first = tensors["slot"].index("fprop.x")
    assert tensors["quantizers"]["infir2"]["format"][first] == tensors["format"][first]
    assert tensors["quantizers"]["mxfp8"]["format"][first].startswith("e4m3fn/1x32/e8m0")
    assert tensors["quantizers"]["mxfp8"]["scale_bits_per_element"][first] == 0.25
    succeeded("train", "--config", config(tmp_path), "--out", "one", cwd=tmp_path)
    assert set(read_run(tmp_path / "one").tensors["quantizers"]) == {"infir2"}


def test_a_small_text_is_read_once(runs: Path) -> None:
    """Not as often as the 16 sequences of the default have room for it."""
    words = "one two three four five six seven eight nine ten"
    (runs / "small.txt").write_text(f"{words} {words} {words}")  # 147 tokens to read
    for options, filled, length in (((), 2, 64), (("--sequence-length", 32), 4, 32)):
        result = run("eval", "bf16", "--data", "small.txt", "--json", *options, cwd=runs)
        assert result.returncode == 0 and " times" not in result.stderr, result.stderr
        assert json.loads(result.stdout)["sources"][0]["tokens"] == filled * length
        said = f"fill {filled} sequences of {length} tokens: {filled} are evaluated, not 16"
        assert said in result.stderr
    (runs / "tiny.txt").write_text("one two")
    result = run("eval", "bf16", "--data", "tiny.txt", "--json", cwd=runs)
    assert json.loads(result.stdout)["sources"][0]["tokens"] <= 8
    assert "since no document counts twice" in result.stderr and " times" not in result.stderr
    result = run("eval", "bf16", "--data", "small.txt", "--sequence-length", 200, cwd=runs)
    assert "fill 1 sequence of 147 tokens" in result.stderr and " times" not in result.stderr
    # What is asked for is done, and said.
    for length, times in ((49, "6 times, the last time in part"), (147, "16 times")):
        options = ("--sequences", 16, "--sequence-length", length)
        result = run("eval", "bf16", "--data", "small.txt", *options, cwd=runs)
        assert result.returncode == 0 and f"small.txt {times}: the held-out" in result.stderr


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("e4m3", ["e4m3fn: a number format: 8 bits, of them 4 of exponent (bias 7) and 3 of"]),
        ("e4m3", ["smallest normal 0.015625 (2^-6) and subnormal 0.00195312 (2^-9); NaN, no inf"]),
        (
            "e4m3",
            ["largest 448", "e4m3_240: ", "largest 240", "a value of slots.OPERAND.scale_for"],
        ),
        ("e5m2", ["(bias 15)", "largest 57344", "(2^-14) and subnormal", "infinity and NaN"]),
        ("e2m1", ["(bias 1)", "largest 6", "subnormal 0.5 (2^-1)", "neither infinity nor NaN"]),
        ("e8m0", ["0 of mantissa, no sign", "a value of format", "scale_format"]),
        ("bf16", ["8 of exponent (bias 127) and 7 of mantissa", "scale_format", "a value of"]),
        ("int8", ["integers from -127 to 127, no special values"]),
    ],
)
def test_help_explains_formats_of_elements_and_of_scales(word: str, parts: list[str]) -> None:
    said = succeeded("help", word)
    for part in parts:
        assert part in said


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--steps", "a key of --set KEY=VALUE: stages.*.steps"),
        ("--max-steps", "stages.*.steps"),
        ("--epochs", "stages.*.steps"),
        ("--lr", "stages.*.learning_rate.{kind,peak,"),
        ("--learning-rate", "stages.*.learning_rate.{kind,peak,"),
        ("--batch-size", "stages.*.batch_sequences"),
        ("--seed", "a key of --set KEY=VALUE: seed"),
        ("--output-dir", "did you mean '--out'?"),
        ("--model", "did you mean '--init-from'?"),
        ("--dtype", "did you mean '--recipe'?"),
        ("--device", "did you mean '--backend'?"),
        ("--thread", "did you mean '--threads'?"),
    ],
)
def test_options_of_other_programs_point_at_ours(option: str, said: str) -> None:
    message = refused("train", "--preset", "quickstart", option, "1")
    assert f"unrecognised option '{option}'" in message and said in message


def test_options_of_other_programs_point_at_ours_in_every_command() -> None:
    for words, said in {
        ("eval", "--model"): "did you mean SOURCE, without a name?",
        ("eval", "--batch-size"): "did you mean '--sequences-together'?",
        ("generate", "--max-tokens"): "did you mean '--max-new-tokens'?",
        ("assess", "--output-dir"): "did you mean '--out'?",
        ("eval", "--sharpness"): "a key of --set KEY=VALUE: sharpness",
    }.items():
        assert said in refused(words[0], "x", words[1], "1"), words


def test_a_name_of_no_model_says_what_is_accepted(runs: Path) -> None:
    accepted = "accepted: a Hugging Face folder, the folder of a run, a checkpoint, a safetensors"
    for words in (
        ("eval", "te_curent", "--data", "x.txt"),
        ("assess", "te_curent", "--data", "x.txt"),
        ("generate", "te_curent", "--prompt", "a"),
        ("quantize", "te_curent", "--recipe", "infir2"),
        ("convert", "te_curent", "out", "--to", "fp8"),
        ("export", "te_curent", "out"),
        ("whatif", "te_curent", "--recipe", "infir2"),
        ("bench", "load", "--model", "te_curent"),
    ):
        message = refused(*words, cwd=runs)
        assert "there is no such file or folder (did you mean 'te_current'?)" in message, message
        assert accepted in message
    message = refused("doctor", "te_curent", cwd=runs)
    assert "no directory (did you mean 'te_current'?); accepted: that of a run" in message
    start = ("train", "--config", config(runs), "--out", "n", "--init-from", "te_curent")
    message = refused(*start, cwd=runs)
    assert "(did you mean 'te_current'?) does not exist, looked for in " in message
    assert "; accepted: a Hugging" in message


def test_commands_that_are_printed_take_names_that_begin_with_a_dash(tmp_path: Path) -> None:
    said = succeeded("train", "--config", config(tmp_path, rate=0.01), "--out=-r", cwd=tmp_path)
    (line,) = (one for one in said.splitlines() if one.startswith("next: "))
    commands = line.removeprefix("next: ").split(" | ")
    assert commands[:2] == ["fp8lab report ./-r/run.h5", "fp8lab eval ./-r"]
    (tmp_path / "t.txt").write_text("one two three")
    succeeded(*shlex.split(commands[1])[1:], "--data", "t.txt", cwd=tmp_path)
    broken = config(tmp_path, "te_current", steps=30, rate=10.0)
    result = run("train", "--config", broken, "--out=-b", cwd=tmp_path)
    ways = [one for one in result.stdout.splitlines() if one.startswith("try: ")]
    assert ways, result.stdout
    for way in ways:
        words = shlex.split(way.split(": fp8lab ", 1)[1])
        assert any(word.startswith("--out=-b-") for word in words), way
        check_accepted(words, tmp_path)


def test_assess_says_how_long_its_gradients_take(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("one and one make two, two and two make four. " * 40000)
    words = [PROGRAM, "assess", "bf16", "--data", str(tmp_path / "long.txt"), "--recipe", "infir2"]
    words += ["--sequences", "20000", "--gradient-sequences", "20000", "--out", str(tmp_path / "a")]
    with subprocess.Popen(
        [*words, "--python", sys.executable], stderr=subprocess.PIPE, text=True, cwd=runs
    ) as process:
        assert process.stderr is not None
        lines: list[str] = []
        while not lines or "for the gradients" not in lines[-1]:
            lines.append(process.stderr.readline())
            assert lines[-1], lines
        process.kill()
    assert re.search(r"then outliers, and \d+ s for the gradients \.\.\.\n$", lines[-1])


def test_a_dry_run_refuses_a_backend_that_a_run_refuses(tmp_path: Path) -> None:
    words = ("train", "--config", config(tmp_path), "--backend", "cuda", "--out", "c")
    result = run(*words, cwd=tmp_path)
    if result.returncode == 0:
        pytest.skip("there is a GPU")
    assert run(*words, "--dry-run", cwd=tmp_path).stderr == result.stderr
