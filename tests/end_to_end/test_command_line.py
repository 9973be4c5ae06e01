"""Every word of a command line is used or refused, and a mistyped one is recognised.

Run by ctest, which passes the program's path in FP8LAB_PROGRAM.
"""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from model_files import CONFIG, random_tensors, write_folder
from program import PROGRAM, refused, run, succeeded

COMMANDS = ["info", "recipes", "train", "data", "ablate", "export", "report", "validate", "gemm"]
COMMANDS += ["quantize", "bench", "eval", "generate", "doctor", "convert", "compare", "verify"]
COMMANDS += ["whatif", "attribute", "certify", "init", "presets", "models", "replay"]

# Options of commands that do several things, with a value each, and which action reads which.
VALUES = {
    "validate": {
        "exhaustive": None, "backend": "cpu", "threads": 1, "seed": 1, "outputs": 1, "rounds": 1,
        "repeats": 1, "only": "gemm", "preset": "quickstart", "recipe": "bf16", "set": "seed=1",
        "no-graphs": None, "record": "r", "json": "j",
    },
    "bench": {
        "model": "m", "backend": "cpu", "all-targets": None, "repeats": 1, "rows": 1, "cols": 1,
        "config": "c", "preset": "quickstart", "recipe": "bf16", "set": "seed=1", "no-graphs": None,
        "json": "j",
    },
    "recipes": {"tokens": 5, "in": 5, "out": 5, "json": None},
}  # fmt: skip
READ = {
    "validate codec": "exhaustive backend json",
    "validate golden": "threads json",
    "validate thirdparty": "json",
    "validate mutants": "threads seed json",
    "validate kernels": "backend threads seed outputs rounds repeats only json",
    "validate step": "backend threads preset recipe set steps no-graphs record json",
    "validate export": "threads seed json",
    "bench emulation": "all-targets repeats rows cols json",
    "bench gemm": "repeats json",
    "bench attention": "repeats json",
    "bench copy": "repeats json",
    "bench quantize": "backend repeats rows cols json",
    "bench load": "model repeats json",
    "bench train": "config preset recipe set backend no-graphs repeats json",
    "recipes list": "json",
    "recipes show": "tokens in out json",
    "recipes check": "tokens in out json",
}
UNREAD = [
    (action, option)
    for action, read in READ.items()
    for option in VALUES[action.split()[0]]
    if option not in read.split()
]


# Options that name a backend, and what they accept.
BACKENDS = {
    "train --backend": "cpu, truth or cuda",
    "eval --backend": "cpu, truth or cuda",
    "generate --backend": "cpu, truth or cuda",
    "compare --backend-a": "cpu, truth or cuda",
    "compare --backend-b": "cpu, truth or cuda",
    "verify --backend": "cpu, truth or cuda",
    "certify --backend": "cpu or cuda",
    "export --backend": "cpu or cuda",
    "convert --backend": "cpu or cuda",
    "validate --backend": "cpu or cuda",
    "gemm --backend": "cpu or cuda",
    "quantize --backend": "cpu or cuda",
    "whatif --backend": "cpu or cuda",
    "bench --backend": "cpu or cuda",
    "attribute --backend": "cpu or cuda",
}


@pytest.mark.parametrize(("action", "option"), UNREAD)
def test_options_of_other_actions_are_refused(action: str, option: str, tmp_path: Path) -> None:
    command, name = action.split()
    value = VALUES[command][option]
    words = [f"--{option}"] if value is None else [f"--{option}", value]
    message = refused(command, name, *words, cwd=tmp_path)
    readers = [other for other, read in READ.items() if option in read.split()]
    assert f"{action}: --{option} is for" in message
    for reader in readers:
        if reader.startswith(command):
            assert reader in message
    assert not list(tmp_path.iterdir())


def test_a_command_lists_the_backends_that_it_accepts() -> None:
    listed = {}
    for command in COMMANDS:
        page = succeeded(command, "--help")
        for option, words in re.findall(r"^  (--backend\S*) ([\w|]+)", page, re.MULTILINE):
            names = words.split("|")
            listed[f"{command} {option}"] = " or ".join(
                [", ".join(names[:-1]), names[-1]] if len(names) > 1 else names
            )
    assert listed == BACKENDS
    for words, accepted in BACKENDS.items():
        command, option = words.split()
        for backend in ("cpu", "truth", "cuda", "none"):
            message = f"fp8lab: {command}: {option} {backend}: accepted: {accepted}\n"
            is_listed = backend in re.findall(r"\w+", accepted)
            assert (run(command, option, backend).stderr == message) != is_listed, words


def test_options_that_do_nothing_here_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((4, 32), np.float32))
    np.save(tmp_path / "c.npy", np.ones((4, 4), np.float32))
    write_folder(tmp_path / "model", random_tensors(CONFIG))
    (tmp_path / "prompts.jsonl").write_text('{"prompt": [5, 6]}\n')
    (tmp_path / "text.txt").write_text("A text of bytes.\n" * 40)
    study = ["ablate", "--study", "none.toml", "--list"]
    generate = ["generate", "model", "--prompts", "prompts.jsonl"]
    evaluate = ["eval", "model", "--data", "text.txt", "--sequence-length", 64]
    gemm = ["gemm", "--a", "x.npy", "--b", "x.npy", "--spec", "sm90_bf16", "--out", "d.npy"]
    train = ["train", "--preset", "quickstart"]
    for words, expected in {
        (*study, "--index", 2): "--index is for running the arms",
        (*study, "--run", "a"): "--run is for running the arms",
        (*study, "--launcher", "slurm"): "--launcher is for running the arms",
        (*study, "--jobs", 2): "--jobs is not read without --dry-run",
        (*study[:-1], "--dry-run", "--slurm", "gpus=1"): "--slurm is for running the arms",
        (*study[:-1], "--slurm", "gpus=1"): "--slurm is for --launcher slurm",
        (*study[:-1], "--launcher", "mpi", "--jobs", 2): "--jobs is not for ranks",
        (*study[:-1], "--launcher", "mpi", "--run", "a"): "--run is for --launcher local",
        ("report", ".", "--from", "runs"): "--from is for --plan",
        ("report", "--plan", "none.toml", "--out", "o"): "--out is for a report",
        ("report", ".", "--plan", "none.toml"): "earlier runs are given by --from",
        (*generate, "--top-k", 4): "--top-k has no effect at --temperature 0",
        (*generate, "--top-p", 0.5): "--top-p has no effect at --temperature 0",
        (*evaluate, "--temperature", 0.5): "--temperature is for samples and rollouts",
        (*evaluate, "--max-new-tokens", 5): "--max-new-tokens is for answers",
        ("certify", "model", "--prompts", "prompts.jsonl", "--form", "running_text"):
            "--form is for prompts of documents",
        ("report", ".", "--export", "trackio"): "--export needs --out",
        ("export", "model", "out", "--seed", 4): "--seed quantizes by --recipe",
        ("quantize", "x.npy", "--spec", "e5m2", "--seed", 4): "--seed has no effect",
        (*gemm, "--seed", 0): "--seed has no effect",
        ("export", "model", "out", "--recipe", "infir2", "--seed", 4): "--seed has no effect",
        ("export", "model", "out", "--threads", 1): "--threads quantizes by --recipe",
        ("quantize", "x.npy", "--spec", "e5m2", "--compare", "e5m2"): "--compare is for a model",
        ("quantize", "model", "--recipe", "infir2", "--out", "o", "--compare", "e5m2"):
            "--compare needs --report",
        ("validate", "step", "s.json", "--recipe", "bf16"): "--recipe is for steps computed anew",
        ("validate", "codec", "folder"): "takes no 'folder'",
        ("recipes", "list", "bf16"): "takes no 'bf16'",
        ("data", "inspect", "x", "--document-begin", 1, "--document-end", 2): "--document-end",
        ("data", "inspect", "x", "--document-end", -7): "--document-end -7",
        (*train, "--simd", "portable", "--backend", "truth"): "--simd is for backend cpu",
        (*train, "--scale", 0): "train: --scale 0: accepted: a number above 0, at most 1000",
        (*train, "--scale", "nan"): "--scale nan: accepted: a number above 0",
        ("bench", *train, "--scale", 2): "unrecognised option '--scale'",
        (*train, "--no-graphs"): "--no-graphs is for backend 'cuda', found 'cpu'",
        (*train, "--math", "exact"): "unrecognised option '--math'",
        (*gemm, "--beta", 2): "--beta needs --c",
        ("train", "quickstart"): "comes without an option; accepted: --preset quickstart",
        ("train", "a.toml"): "comes without an option; accepted: --config a.toml",
        ("ablate", "a.toml"): "comes without an option; accepted: --study a.toml",
        (*train, "--set", "steps=3"): "; in a table: stages.*.steps",
        ("--version", "more"): "too many arguments, 'more'",
        ("--help", "train"): "too many arguments, 'train'",
        ("help", "train", "more"): "too many arguments, 'more'",
        ("quantize", "x.npy", "--spec", "e5m2", "--seed", "-1"): "--seed -1: accepted",
        ("validate", "kernels", "--rounds=-1"): "--rounds must be at least 1",
        ("info", "--json", "--json"): "more than once",
    }.items():  # fmt: skip
        assert expected in refused(*words, cwd=tmp_path), words
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"x.npy", "c.npy", "model", "prompts.jsonl", "text.txt"}


def test_sampling_options_reach_the_samples_of_the_run(tmp_path: Path) -> None:
    """A run that samples by itself is sampled as the command line says."""
    (tmp_path / "run.toml").write_text(
        'name = "r"\nmodel = "tiny"\n[logging]\nstatistics_every_steps = 0\n[[stages]]\n'
        'name = "s"\nkind = "sft"\nsteps = 1\nbatch_sequences = 1\nsequence_length = 128\n'
        "[stages.learning_rate]\nwarmup_steps = 0\n[stages.eval]\nsequences = 1\n"
        "max_new_tokens = 4\n[stages.eval.rollout]\nprompts = 2\n"
        'recipe = "infir2"\ntemperature = 0.0\n'
    )
    succeeded("train", "--config", "run.toml", "--out", "run", cwd=tmp_path)
    greedy = json.loads(succeeded("eval", "run", "--json", cwd=tmp_path))
    hot = json.loads(succeeded("eval", "run", "--temperature", 9, "--json", cwd=tmp_path))
    assert greedy["loss"] == hot["loss"] and greedy["rollout"] != hot["rollout"]


def test_progress_is_printed_as_often_as_asked_for(tmp_path: Path) -> None:
    """Every step, or the first two and the last; which of them does not make another run."""
    (tmp_path / "run.toml").write_text(
        'name = "r"\nmodel = "tiny"\n[logging]\nstatistics_every_steps = 0\n[[stages]]\n'
        'name = "s"\n'
        "steps = 6\nbatch_sequences = 1\nsequence_length = 64\nlearning_rate.warmup_steps = 0\n"
    )
    train = ["train", "--config", "run.toml", "--out", "run", "--set"]

    def steps(output: str) -> list[int]:
        lines = [line.split() for line in output.splitlines() if line.startswith("step ")]
        return [int(words[1].split("/")[0]) for words in lines]

    every = succeeded(*train, "logging.print_every_seconds=0", cwd=tmp_path)
    assert steps(every) == [1, 2, 3, 4, 5, 6]
    assert "complete" in succeeded(
        *train, "logging.print_every_seconds=9", "--resume", cwd=tmp_path
    )
    few = succeeded(*train[:4], "other", "--set", "logging.print_every_seconds=3600", cwd=tmp_path)
    assert steps(few) == [1, 2, 6]


def test_help_of_one_command() -> None:
    for command in COMMANDS:
        text = succeeded(command, "--help")
        assert "--help" in text and "this text" in text
        assert succeeded(command, "-h") == text == succeeded("help", command)
    assert "did you mean 'train'?" in refused("help", "trian")


def test_the_nearest_name_is_offered(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((4, 32), np.float32))
    file = tmp_path / "run.toml"
    (tmp_path / "recipe.toml").write_text(
        'name = "r"\n[slots.default]\nformat = "e4m3fn"\ntyle = "row"\n'
    )
    file.write_text('model = "tiny"\n[[stages]]\nname = "a"\nstep = 3\n')
    gemm = ["gemm", "--a", "x.npy", "--b", "x.npy", "--out", "d.npy", "--spec"]
    preset = ["train", "--preset", "quickstart"]
    for words, name in {
        ("trian",): "train",
        ("valdiate", "golden"): "validate",
        ("info", "--jason"): "--json",
        ("recipes", "shwo", "bf16"): "show",
        ("recipes", "show", "infir3"): "infir2",
        ("recipes", "check", "recipe.toml"): "tile",
        ("bench", "quantise"): "quantize",
        ("validate", "goldne"): "golden",
        ("train", "--preset", "quikstart"): "quickstart",
        ("train", "--config", file): "steps",
        (*preset, "--set", "model=tinny"): "tiny",
        (*preset, "--set", "sead=1"): "seed",
        (*preset, "--set", "stages.cpt.lr=1e-3"): "learning_rate",
        (*preset, "--set", "stages.cpt.batch_size=4"): "batch_sequences",
        ("help", "batch"): "batch_sequences",
        ("models", "show", "smollm"): "smollm2-135m",
        (*preset, "--set", "stages.stf.steps=1"): "sft",
        (*preset, "--set", "stages.sft.kind=sftt"): "sft",
        (*preset, "--backend", "cuba"): "cuda",
        (*preset, "--simd", "portabel"): "portable",
        ("report", "run.toml", "--export", "tensorbord"): "tensorboard",
        ("eval", "x", "--form", "running"): "running_text",
        ("quantize", "x.npy", "--spec", "e4m3/1x128"): "e4m3fn",
        ("init", "recipes"): "recipe",
        (*preset, "--set", 'stages.cpt.data.families=["summ"]'): "sum",
        (*gemm, "sm90_wgmma_fp9"): "sm90_wgmma_fp8",
        (*gemm, "infir2:forp"): "fprop",
        (*gemm, "sm90_bf16/fats"): "fast",
        (*gemm, "cublaslt_h200:tensr"): "tensor",
        ("quantize", "x.npy", "--spec", "e4m3fm"): "e4m3fn",
        ("quantize", "x.npy", "--spec", "e4m3fn/rwo"): "row",
        ("quantize", "x.npy", "--recipe", "infir2", "--slot", "fprop.y"): "fprop.x' or 'fprop.w",
        ("quantize", "x.npy", "--spec", "e5m2", "--backend", "cpuu"): "cpu",
        ("export", "x.npy", "o", "--dtype", "bf61"): "bf16",
    }.items():
        assert f"did you mean '{name}'?" in refused(*words, cwd=tmp_path), words
    for words in (("paint",), ("recipes", "show", "nothing_of_the_kind"), ("info", "--colour")):
        assert "did you mean" not in refused(*words)


@pytest.mark.parametrize("threads", ["100000", "30000", "-1", "99999999999"])
def test_threads_are_bounded(threads: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((4, 32), np.float32))
    for words in (
        ("train", "--preset", "quickstart"),
        ("train", "--preset", "quickstart", "--backend", "truth", "--set",
         "logging.statistics_every_steps=0"),
        ("quantize", "x.npy", "--spec", "e5m2"),
        ("validate", "golden", "none"),
        ("validate", "kernels"),
        ("ablate", "--study", "none.toml"),
    ):  # fmt: skip
        message = refused(*words, f"--threads={threads}", cwd=tmp_path)
        assert "threads" in message and threads in message, message
    assert "--jobs" in refused("ablate", "--study", "none.toml", f"--jobs={threads}", cwd=tmp_path)


def test_values_of_another_type_are_told_what_is_accepted(tmp_path: Path) -> None:
    train = ["train", "--preset", "quickstart"]
    for words, expected in {
        (*train, "--scale", "small"): "train: --scale small: accepted: a number such as 0.1",
        (*train, "--threads", "x"): "train: --threads x: accepted: a whole number, at most 2147",
        (
            "quantize",
            "x.npy",
            "--spec",
            "e5m2",
            "--seed",
            "x",
        ): "--seed x: accepted: a whole number",
        ("eval", "x", "--top-p", "big"): "eval: --top-p big: accepted: a number such as 0.1",
        ("eval", "x", "--pass-at", "one"): "eval: --pass-at one: accepted: a whole number",
    }.items():
        assert expected in refused(*words, cwd=tmp_path), words


def test_a_table_names_its_keys(tmp_path: Path) -> None:
    preset = ("train", "--preset", "quickstart", "--dry-run", "--set")
    keys = "stages.*.learning_rate.{kind,peak,final,"
    assert keys in refused(*preset, "stages.cpt.learning_rate=1e-3", cwd=tmp_path)
    said = refused(*preset, "learning_rate=1e-3", cwd=tmp_path)
    assert f"in a table: {keys}" in said and "optimizer.group.learning_rate" in said
    assert f"in a table: {keys}" in refused(*preset, "lr=1e-3", cwd=tmp_path)
    for theirs, ours in (("batch_size", "batch_sequences"), ("seq_len", "sequence_length")):
        assert f"stages.*.{ours}" in refused(*preset, f"{theirs}=4", cwd=tmp_path)


def test_a_number_that_a_float_holds_as_zero_is_refused(tmp_path: Path) -> None:
    """Zero has a meaning of its own: no clipping, no decay."""
    for key in ("clip_norm", "weight_decay"):
        words = ("train", "--preset", "quickstart", "--dry-run", "--set", f"optimizer.{key}=1e-46")
        assert f"'optimizer.{key}' is the number 1e-46" in refused(*words, cwd=tmp_path)
    succeeded(*words[:-1], "optimizer.clip_norm=1e-30", cwd=tmp_path)


def test_closed_and_full_streams_end_nothing(tmp_path: Path) -> None:
    """A run file does not get the descriptor of standard output, nor a note end the program."""
    words = f"{PROGRAM} train --preset quickstart --scale 0.1"
    few = "--set 'stages.*.batch_sequences=1' --set 'stages.*.micro_batch_sequences=1'"
    hashes = set()
    for name, streams in {"open": "", "none": "<&- >&- 2>&-", "out": "<&- >&-"}.items():
        command = f"{words} {few} --out {name} {streams}"
        done = subprocess.run(command, shell=True, cwd=tmp_path, check=False, capture_output=True)
        assert done.returncode == 0, (name, done.stderr)
        assert "whole" in succeeded("doctor", name, cwd=tmp_path)
        hashes.add((tmp_path / name / "checkpoint.safetensors").read_bytes()[-4096:])
    assert len(hashes) == 1
    said = succeeded("eval", "open", "--recipe", "mxfp8", cwd=tmp_path)
    full = f"{PROGRAM} eval open --recipe mxfp8 2> /dev/full"
    done = subprocess.run(full, shell=True, cwd=tmp_path, check=False, capture_output=True)
    assert done.returncode == 0 and done.stdout.decode() == said


def test_a_key_is_set_once(tmp_path: Path) -> None:
    train = ["train", "--preset", "quickstart", "--dry-run", "--set", "seed=1", "--set"]
    message = refused(*train, "seed=2", cwd=tmp_path)
    assert message == "fp8lab: --set seed=2: seed is set before, to 1; accepted: once\n"
    assert "set before, to 1" in refused(*train, "seed=1", cwd=tmp_path)


def test_a_terminal_obeys_nothing_that_a_message_repeats(tmp_path: Path) -> None:
    for name in ("\x1b[2J\x07x", "a\x9b2Jb", "\x7f\r\nfp8lab: fine"):
        for words in (("eval", name), ("train", "--config", name), (name,), ("info", "--" + name)):
            message = refused(*words, cwd=tmp_path)[:-1]
            assert all(32 <= ord(c) < 127 or ord(c) > 159 for c in message), (words, message)


@pytest.mark.parametrize("kind", ["run", "recipe", "study"])
def test_a_file_to_begin_with_works_as_it_is(kind: str, tmp_path: Path) -> None:
    said = succeeded("init", kind, cwd=tmp_path)
    file = tmp_path / f"{kind}.toml"
    assert f"fp8lab {kind}.toml" not in said and f"{kind}.toml: a complete {kind} file" in said
    command = said.split("next: fp8lab ")[1].split()
    text = succeeded(*command, cwd=tmp_path)
    assert {"run": "pretrain", "recipe": "mine", "study": "shared-seed2"}[kind] in text
    assert "is there" in refused("init", kind, cwd=tmp_path)
    # Every key is in it, as help lists it, and help has the file's beginning.
    page = succeeded("help", {"run": "config"}.get(kind, kind))
    example = page.split("writes:\n\n")[1]
    assert file.read_text().startswith(example)
    commented = file.read_text()[len(example) :]
    lines = [line[2:] for line in commented.splitlines() if line.startswith("# ")]
    for line in page.split("\nA complete file")[0].splitlines():
        assert not line or line in lines, line


def test_the_keys_of_a_study_are_those_that_its_reader_knows(tmp_path: Path) -> None:
    """An unknown key is answered with the known ones, table by table."""
    succeeded("init", "study", "s.toml", cwd=tmp_path)
    text = (
        (tmp_path / "s.toml")
        .read_text()
        .split("\n\n# Keys")[0]
        .replace('baseline = "bf16" ', 'baseline = { recipe = "bf16", zzz = 1 } ', 1)
    )
    page = succeeded("help", "study").split("\nA complete file")[0]
    known: dict[str, list[str]] = {"": []}
    heading = ""
    for line in page.splitlines():
        if line.startswith("["):
            heading = line.strip("[]")
            known[heading] = []
        elif re.match(r"  \w", line):
            known[heading].append(line.strip())
    plain = text.replace(", zzz = 1", "")
    cases = {
        "": "zzz = 1\n" + plain,
        "baseline": text,
        "design": plain.replace("margin =", "zzz = 1\nmargin ="),
        "shared": plain.replace("axes =", "zzz = 1\naxes ="),
        "axis": plain.replace('key = "recipe"', 'zzz = 1\nkey = "recipe"'),
        "arm": plain.replace('name = "infir2-half_rate"', 'zzz = 1\nname = "infir2-half_rate"'),
    }
    tables = {"set", "design", "axis", "arm", "shared"}
    for table, document in cases.items():
        (tmp_path / "s.toml").write_text(document)
        message = refused("ablate", "--study", "s.toml", "--list", cwd=tmp_path)
        assert "unknown key" in message and "zzz" in message, message
        accepted = set(message.split("accepted: ")[1].strip().split(", "))
        expected = set(known[table]) | (tables if table == "" else set())
        assert accepted == expected, (table, accepted, expected)


def test_names_of_presets_and_models(tmp_path: Path) -> None:
    presets = json.loads(succeeded("presets", "--json"))
    assert {"quickstart", "worded"} <= {row["name"] for row in presets}
    text = succeeded("presets")
    assert all(row["name"] in text and row["summary"] in text for row in presets)
    models = {row["name"]: row for row in json.loads(succeeded("models", "--json"))}
    assert models["gpt2"]["parameters"] == 124_439_808  # as published
    assert "124.4 M  12 layers" in succeeded("models")
    # A study begins from a preset by its name.
    study = 'base = "quickstrt"\n[[axis]]\nkey = "recipe"\nvalues = ["bf16", "infir2"]\n'
    (tmp_path / "s.toml").write_text(study)
    message = refused("ablate", "--study", "s.toml", "--list", cwd=tmp_path)
    assert (
        "s.toml:1:" in message
        and "unknown preset 'quickstrt' (did you mean 'quickstart'?)" in message
    )
    (tmp_path / "s.toml").write_text(study.replace("quickstrt", "quickstart"))
    assert "infir2" in succeeded("ablate", "--study", "s.toml", "--list", cwd=tmp_path)


def test_presets_and_models_are_shown_whole(tmp_path: Path) -> None:
    for row in json.loads(succeeded("presets", "list", "--json")):
        shown = succeeded("presets", "show", row["name"])
        (tmp_path / "run.toml").write_text(shown)
        again = succeeded("presets", "show", "./run.toml", cwd=tmp_path)
        assert again.split("\n", 1)[1] == shown.split("\n", 1)[1] and "\nbase" not in shown
    model = succeeded("models", "show", "tiny")
    assert "[model]\n" in model and "hidden_size = 256\n" in model
    text = json.loads(succeeded("models", "show", "tiny", "--json"))["text"]
    assert text in model and "intermediate_size = 512\n" in text
    for command, kind in {"presets": "preset", "models": "model"}.items():
        assert succeeded(command, "list") == succeeded(command)
        assert f"{command} show: NAME is missing" in refused(command, "show")
        assert f"unknown {kind} 'nope'" in refused(command, "show", "nope")
        assert "(did you mean 'show'?); accepted: list, show" in refused(command, "shw")


def test_what_is_no_model_is_told_by_its_kind(tmp_path: Path) -> None:
    (tmp_path / "held.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + bytes(60))
    (tmp_path / "run.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(60))
    np.save(tmp_path / "x.npy", np.ones((4, 32), np.float32))
    for file, words in {
        "held.jsonl": "held.jsonl: no safetensors file, but text: header length",
        "model.gguf": "no safetensors file, but GGUF, of which python3 -m fp8lab.gguf FILE FOLDER",
        "x.npy": "x.npy: is a matrix (.npy), not a model or a run; fp8lab quantize x.npy",
    }.items():
        for command in ("eval", "generate", "whatif"):
            more = {"generate": ("--prompt", "a"), "whatif": ("--recipe", "bf16")}.get(command, ())
            assert words in refused(command, file, *more, cwd=tmp_path)
    # A run goes by its run.h5 as by its folder, wherever a model is read.
    for file in ("run.h5", tmp_path / "run.h5"):
        assert "a run without a checkpoint" in refused("eval", file, cwd=tmp_path)


DOCUMENTS = {
    "run.toml": ("a run file", "fp8lab train --config run.toml", '[[stages]]\nname = "s"\n'),
    "r.toml": ("a recipe", "fp8lab train --preset NAME --recipe r.toml", "[slots.x]\n"),
    "study": ("a study", "fp8lab ablate --study study", '[[arm]]\nname = "a"\n'),
    "m.toml": (
        "a model file",
        "fp8lab train --preset NAME --set model.base=m.toml",
        "vocab_size = 48\nhidden_size = 32\n",
    ),
    "part.toml": (
        "a model file",
        "its keys belong into [model] of a run file",
        'base = "fog"\nvocab_size = 48\nhidden_size = 32\n',
    ),
    "o.toml": ("a TOML file", "", "[[optimizer.group]]\nfrozen = true\n"),
    "broken.toml": ("a TOML file", "", "[["),
}


def test_documents_are_named_wherever_other_files_are_read(tmp_path: Path) -> None:
    for name, (_, _, content) in DOCUMENTS.items():
        (tmp_path / name).write_text(content)
    commands = {
        "a model or a run": (
            ("eval",),
            ("generate", "--prompt", "a"),
            ("export",),
            ("whatif", "--recipe", "bf16"),
            ("attribute",),
            ("assess",),
            ("certify",),
            ("train", "--preset", "quickstart", "--dry-run", "--init-from"),
        ),
        "a run": (("verify",), ("compare", "r.toml"), ("compare", "--files-only", "r.toml")),
        "the folder of a run, of a study or of a model": (("doctor",),),
        "a run or a study": (("report",),),
        "a GEMM of fp8lab.recorder": (("replay",),),
        "a pack of fp8lab validate device": (("validate", "device"),),
        "a matrix (.npy)": (("quantize", "--spec", "e4m3fn/1x128"),),
        "token shards": (("data", "inspect"),),
    }
    for wanted, all_words in commands.items():
        for index, words in enumerate(all_words):
            for name in DOCUMENTS if index == 0 else ("run.toml",):
                shown = "r.toml" if words[0] == "compare" else name
                kind, command, _ = DOCUMENTS[shown]
                more = ("out",) if words[0] == "export" else ()
                said = refused(*words, name, *more, cwd=tmp_path)
                ending = f"; {command}" if command else ""
                assert said.rstrip().endswith(f"{shown}: is {kind}, not {wanted}{ending}"), said


def test_models_and_records_are_named_where_documents_are_read(tmp_path: Path) -> None:
    kind, command, content = DOCUMENTS["m.toml"]
    (tmp_path / "m.toml").write_text(content)
    (tmp_path / "run.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(60))
    (tmp_path / "c.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    for own, words in {
        "a run file": ("train", "--dry-run", "--config"),
        "a recipe": ("recipes", "check"),
        "a study": ("ablate", "--list", "--study"),
    }.items():
        said = refused(*words, "m.toml", cwd=tmp_path)
        assert said.rstrip().endswith(f"m.toml: is {kind}, not {own}; {command}"), said
        said = refused(*words, "run.h5", cwd=tmp_path)
        assert "run.h5: is an HDF5 file, the record of a run or study, not TOML" in said
        assert "fp8lab report run.h5" in said
        said = refused(*words, "c.safetensors", cwd=tmp_path)
        assert "c.safetensors: is a safetensors file, not TOML; fp8lab eval c.safetensors" in said
    # The command that is named reads the file.
    model = succeeded("models", "show", "tiny", "--json")
    (tmp_path / "m.toml").write_text(json.loads(model)["text"].replace("[model]\n", ""))
    words = command.replace("NAME", "quickstart").split()[1:]
    assert "parameters" in succeeded(*words, "--dry-run", cwd=tmp_path)


def test_files_that_are_no_text_are_named_wherever_others_are_read(tmp_path: Path) -> None:
    def tensors(**metadata: str) -> bytes:
        header = json.dumps({"__metadata__": metadata}).encode()
        return struct.pack("<Q", len(header)) + header

    np.save(tmp_path / "x.npy", np.ones((4, 128), np.float32))
    files = {
        "x.npy": ("a matrix (.npy)", "fp8lab quantize x.npy --spec e4m3fn/1x128"),
        "g.safetensors": ("a GEMM of fp8lab.recorder", "fp8lab replay g.safetensors"),
        "p.safetensors": (
            "a pack of fp8lab validate device", "fp8lab validate device p.safetensors",
        ),
        "w.safetensors": ("a safetensors file of weights", "fp8lab eval w.safetensors"),
        "run.h5": ("an HDF5 file, the record of a run or study", "fp8lab report run.h5"),
    }  # fmt: skip
    (tmp_path / "g.safetensors").write_bytes(tensors(fp8lab="gemm-1"))
    (tmp_path / "p.safetensors").write_bytes(tensors(fp8lab="device-1"))
    (tmp_path / "w.safetensors").write_bytes(tensors(format="pt"))
    (tmp_path / "run.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(60))
    own = {
        "a GEMM of fp8lab.recorder": (("replay",), "g.safetensors"),
        "a pack of fp8lab validate device": (("validate", "device"), "p.safetensors"),
        "a matrix (.npy)": (
            ("gemm", "--spec", "sm90_wgmma_fp8", "--b", "x.npy", "--out", "d.npy", "--a"), "x.npy",
        ),
        "token shards": (("data", "inspect"), ""),
    }  # fmt: skip
    for wanted, (words, right) in own.items():
        for name, (kind, command) in files.items():
            if name != right:
                said = refused(*words, name, cwd=tmp_path)
                assert said == f"fp8lab: {name}: is {kind}, not {wanted}; {command}\n"
    for words in (("eval",), ("whatif", "--recipe", "bf16"), ("verify",), ("report",)):
        for name in ("x.npy", "g.safetensors", "p.safetensors"):
            assert f"{name}: is {files[name][0]}, not a " in refused(*words, name, cwd=tmp_path)
    # A folder of runs has no records.
    (tmp_path / "folder").mkdir()
    (tmp_path / "run.h5").rename(tmp_path / "folder/run.h5")
    said = refused("replay", "folder", cwd=tmp_path)
    assert said.endswith("has no records of fp8lab.recorder; it is a run: fp8lab verify folder\n")


def test_a_pack_of_another_card_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    def pack(name: str, found: int) -> Path:
        facts = {"major": 9, "minor": 0, "driver": 13000, "runtime": 13000, "version": "x"}
        conversion = {"format": "bf16", "count": 1}
        about = {"device": {"name": name, **facts}, "products": [], "conversions": [conversion]}
        tensors = {
            "conversion0.x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
            "conversion0.codes": {"dtype": "BF16", "shape": [1], "data_offsets": [4, 6]},
        }
        metadata = {"fp8lab": "device-1", "about": json.dumps(about)}
        header = json.dumps({"__metadata__": metadata, **tensors}).encode()
        data = struct.pack("<fH", 1.0, found)
        (tmp_path / "p").write_bytes(struct.pack("<Q", len(header)) + header + data)
        return tmp_path / "p"

    said = succeeded("validate", "device", pack("\x1b[31mcard\n9 cases", 0x3F80))
    assert said.startswith("\\x1b[31mcard 9 cases, compute capability 9.0")
    assert said.endswith("\n1 cases, 0 mismatches, 0 unchecked\n")
    assert run("validate", "device", pack("card", 0x3F81)).returncode == 3


def test_places_of_words_are_not_offered_as_options() -> None:
    for command, near in {"recipes": "--nam", "presets": "--nam", "models": "--acton"}.items():
        said = refused(command, near)
        assert f"unrecognised option '{near}'" in said and "did you mean" not in said


def interpreter_in(folder: Path, name: str) -> Path:
    """A program that writes its words into called.txt of `folder` and refuses."""
    folder.mkdir()
    script = folder / name
    script.write_text(f'#!/bin/sh\necho "$@" > {folder}/called.txt\necho no >&2\nexit 2\n')
    script.chmod(0o755)
    return script


def test_one_rule_chooses_the_interpreter(tmp_path: Path) -> None:
    chosen = interpreter_in(tmp_path / "chosen", "interpreter")
    interpreter_in(tmp_path / "path", "python3")
    path = f"{tmp_path / 'path'}:{os.environ['PATH']}"
    write_folder(tmp_path / "model", random_tensors(CONFIG), CONFIG)
    (tmp_path / "model/tokenizer.json").write_text("{}")
    (tmp_path / "held.txt").write_text("What is held out. " * 40)
    for module, words in {
        "fp8lab_analysis.report": ("report", ".", "--out", "page"),
        "fp8lab.tokens": ("eval", "model", "--data", "held.txt"),
    }.items():
        for folder, variable in {"chosen": str(chosen), "path": ""}.items():
            environment = {"PATH": path, "FP8LAB_PYTHON": variable, "FP8LAB_CACHE": str(tmp_path)}
            assert run(*words, cwd=tmp_path, environment=environment).returncode == 2
            called = tmp_path / folder / "called.txt"
            assert called.read_text().startswith(f"-m {module} ")
            called.unlink()
    assert "FP8LAB_PYTHON" in succeeded("help")


def test_a_recipe_is_no_quantizer(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((4, 32), np.float32))
    message = refused("quantize", "x.npy", "--spec", "mxfp8", cwd=tmp_path)
    assert "'mxfp8' is a recipe" in message and "mxfp8:fprop.x" in message
    gemm = ["gemm", "--a", "x.npy", "--b", "x.npy", "--out", "d.npy", "--spec", "infir2"]
    assert "infir2:fprop" in refused(*gemm, cwd=tmp_path)


def test_another_kind_leaves_the_keys_of_a_base_behind(tmp_path: Path) -> None:
    stage = '[[stages]]\nbase = "cpt"\n'
    train = ["train", "--config", "run.toml", "--dry-run"]
    for more, settings in {
        'learning_rate = { kind = "constant" }\n': [],
        "": ["stages.cpt.learning_rate.kind=constant"],
    }.items():
        (tmp_path / "run.toml").write_text('model = "tiny"\n' + stage + more)
        words = [word for setting in settings for word in ("--set", setting)]
        succeeded(*train, *words, cwd=tmp_path)
    # What a file says itself is not dropped in silence.
    own = 'learning_rate = { kind = "constant", decay_steps = 3 }\n'
    (tmp_path / "run.toml").write_text('model = "tiny"\n' + stage + own)
    assert 'is for kind = "wsd"' in refused(*train, cwd=tmp_path)
    own = "learning_rate.decay_steps = 3\n"
    (tmp_path / "run.toml").write_text('model = "tiny"\n' + stage + own)
    message = refused(*train, "--set", "stages.cpt.learning_rate.kind=constant", cwd=tmp_path)
    assert 'is for kind = "wsd"' in message


@pytest.mark.parametrize("given", ["0", "x", "", "-3", "1.5"])
def test_odd_threads_of_the_environment_are_refused(given: str) -> None:
    result = run("info", environment={"OMP_NUM_THREADS": given})
    assert result.returncode == 2 and result.stdout == ""
    found = f"{given}; " if given else ""
    assert f"\nfp8lab: OMP_NUM_THREADS: {found}accepted: 1 to " in "\n" + result.stderr


def test_threads_are_those_that_the_process_may_use() -> None:
    def threads(**environment: str) -> int:
        plain = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
        done = subprocess.run(
            ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0))), PROGRAM, "info", "--json"],
            env={**plain, **environment},
            capture_output=True,
            text=True,
            check=True,
        )
        return int(json.loads(done.stdout)["threads"])

    assert threads() == 1
    assert threads(OMP_NUM_THREADS="3") == threads(OMP_NUM_THREADS="3,2") == 3


def test_threads_of_the_environment_are_bounded() -> None:
    message = refused("validate", "codec", environment={"OMP_NUM_THREADS": "100000"})
    assert "OMP_NUM_THREADS: 100000; accepted" in message


@pytest.mark.parametrize(
    "setting",
    [
        "stages.*.batch_sequences=1000000000000",
        "stages.*.steps=1000000000000",
        "stages.pretrain.data.problems=1000000000000",
        "stages.sft.eval.sequences=1000000000000",
        "stages.sft.eval.exact_match=1000000000000",
        "stages.sft.eval.pass_at_k={problems=1000000,samples=65536,k=[1]}",
        "model.vocab_size=1000000000000",
        "model.intermediate_size=1099511627776",
        "model.num_attention_heads=1099511627776",
    ],
)
def test_sizes_without_sense_are_refused_at_once(setting: str, tmp_path: Path) -> None:
    message = refused("train", "--preset", "quickstart", "--set", setting, cwd=tmp_path)
    assert "accepted:" in message and setting.split("=")[0].rsplit(".", 1)[1] in message
    assert not list(tmp_path.iterdir())


def test_what_exceeds_the_memory_is_refused_at_once(tmp_path: Path) -> None:
    preset = ["train", "--preset", "quickstart"]
    for words in (
        (*preset, "--set", "model.hidden_size=100000000"),
        (*preset, "--set", "stages.*.batch_sequences=4000000", "--set",
         "stages.*.micro_batch_sequences=4000000"),
        ("bench", "quantize", "--rows", 1 << 40, "--cols", 1 << 40),
    ):  # fmt: skip
        message = refused(*words, cwd=tmp_path)
        assert " needs " in message and "this machine has" in message, message
    assert not list(tmp_path.iterdir())


def test_memory_limits_of_the_process_count(tmp_path: Path) -> None:
    limit = ["bash", "-c", 'ulimit -v 2000000; exec "$FP8LAB_PROGRAM" "$@"', "bash"]
    words = ["train", "--preset", "quickstart", "--set", "model.vocab_size=2000000"]
    if subprocess.run([*limit, "--version"], capture_output=True, check=False).returncode < 0:
        pytest.skip("the program does not start within the limit, as one with AddressSanitizer")
    result = subprocess.run(
        [*limit, *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 2, result.stderr
    assert "this machine has 1.907 GiB" in result.stderr


DEEP = 200_000


def test_nesting_is_bounded(tmp_path: Path) -> None:
    lists, tables = "[" * DEEP + "]" * DEEP, "{a=" * DEEP + "1" + "}" * DEEP
    documents = {
        "key": ".".join("a" * 40_000) + " = 1\n",
        "header": "[" + ".".join("a" * 40_000) + "]\n",
        "quoted": ".".join(['"a"'] * 40_000) + " = 1\n",
        "lists": f"name = {lists}\n",
        "tables": f"name = {tables}\n",
        "inline": "name = {" + ".".join("a" * 40_000) + " = 1}\n",
    }
    for name, text in documents.items():
        file = tmp_path / f"{name}.toml"
        file.write_text('# a comment, "quoted\n' + text)
        for command in (("train", "--config"), ("recipes", "check"), ("ablate", "--study")):
            message = refused(*command, file, cwd=tmp_path)
            assert f"{file}:2:" in message and "at most 32" in message, (name, message[:200])
    preset = ["train", "--preset", "quickstart", "--set"]
    for setting in (".".join("a" * 40_000) + "=1", "name={" + ".".join("a" * 40_000) + "=1}"):
        assert "at most 32" in refused(*preset, setting, cwd=tmp_path)


def test_dots_and_brackets_in_strings_are_no_nesting(tmp_path: Path) -> None:
    dots = "." * 100 + "[" * 100
    file = tmp_path / "mine.toml"
    recipe = '[slots.default]\nformat = "bf16"\n'
    for text in (f'"{dots}\\"{dots}"', f"'{dots}'", f'"""\n{dots}"{dots}\n"""', f"'''\n{dots}'''"):
        file.write_text(f'name = "mine"\nsummary = {text}  # {dots}\n' + recipe)
        assert "mine" in succeeded("recipes", "check", file)


def test_nested_json_is_bounded(tmp_path: Path) -> None:
    deep = "[" * DEEP + "]" * DEEP
    folder = tmp_path / "model"
    write_folder(folder, random_tensors(CONFIG))
    (tmp_path / "prompts.jsonl").write_text('{"prompt": ' + deep + "}\n")
    message = refused("generate", "model", "--prompts", "prompts.jsonl", cwd=tmp_path)
    assert "prompts.jsonl:1: lists and objects in one another" in message
    (tmp_path / "text.jsonl").write_text('{"text": ' + deep + "}\n")
    assert "text.jsonl:1" in refused("eval", "model", "--data", "text.jsonl", cwd=tmp_path)
    for key in ("vocab_size", "model_type", "architectures", "layer_types", "tie_word_embeddings"):
        config = json.dumps({k: v for k, v in CONFIG.items() if k != key})
        (folder / "config.json").write_text(f'{config[:-1]}, "{key}": {deep}}}')
        words = ("train", "--preset", "quickstart", "--set", "model=model")
        assert "more than 64" in refused(*words, cwd=tmp_path), key
    header = ('{"a": ' + deep + "}").encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert "tensor 'a'" in refused("quantize", tmp_path / "x.safetensors", "--recipe", "infir2")


def test_outputs_are_looked_at_before_anything_is_computed(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((16, 32), np.float32))
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    write_folder(tmp_path / "model", random_tensors(CONFIG))
    gemm = ["gemm", "--a", "x.npy", "--b", "x.npy", "--spec", "sm90_bf16", "--out"]
    quantize = ["quantize", "x.npy", "--spec", "e5m2"]
    train = ["train", "--preset", "quickstart", "--out"]
    for words, expected in {
        (*train, "file"): "'file': is a file",
        (*train, "file/run"): "file is a file",
        (*train, ""): "accepted: the name of a folder",
        ("train", "--preset", "quickstart", "--dry-run", "--out", "file"): "'file': is a file",
        ("ablate", "--study", tmp_path / "study.toml", "--out", "file"): "'file': is a file",
        ("report", "folder", "--out", "file"): "'file': is a file",
        ("export", "model", "file"): "'file': is a file",
        ("quantize", "model", "--recipe", "infir2", "--out", "file"): "'file': is a file",
        (*gemm, "folder"): "is a folder",
        (*gemm, "none/d.npy"): "there is no folder none",
        (*gemm, "/dev/null"): "no regular file",
        (*quantize, "--out", "none/codes.npy"): "there is no folder none",
        (*quantize, "--dequantized", "folder"): "is a folder",
        ("validate", "golden", "none", "--json", "folder"): "is a folder",
        ("bench", "quantize", "--json", "none/b.json"): "there is no folder none",
        ("validate", "step", "--record", "file"): "'file': is a file",
    }.items():
        if words[0] == "ablate":
            (tmp_path / "study.toml").write_text(
                'base = "run.toml"\nbaseline = "bf16"\n[[axis]]\nkey = "recipe"\n'
                'values = ["bf16"]\n'
            )
            (tmp_path / "run.toml").write_text('model = "tiny"\n[[stages]]\nname = "a"\n')
        assert expected in refused(*words, cwd=tmp_path), words
    assert (tmp_path / "file").read_text() == "mine" and not (tmp_path / "runs").exists()


def test_a_plan_says_what_its_options_would_do(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        'name = "r"\nmodel = "tiny"\nrecipe = "infir2"\n[logging]\nstatistics_every_steps = 0\n'
        '[[stages]]\nname = "s"\nkind = "cpt"\nsteps = 2\nbatch_sequences = 1\n'
        "sequence_length = 64\n[stages.learning_rate]\nwarmup_steps = 0\n"
    )
    plan = ["train", "--config", "run.toml", "--dry-run", "--out", "out"]
    planned = run(*plan, "--arm", "a1", cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    text = planned.stdout
    assert "output out: new" in text and "arm a1" in text
    warnings = [line for line in text.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == len(set(warnings)) > 0
    assert any("layers.*." in line and " layers): " in line for line in warnings), warnings
    assert not any("layers.0." in line or "layers.1." in line for line in warnings), warnings
    assert not (tmp_path / "out").exists()
    succeeded("train", "--config", "run.toml", "--out", "out", cwd=tmp_path)
    assert "out/run.h5: exists; use --resume" in refused(*plan, cwd=tmp_path)
    plan[-1] = "new"
    again = run(*plan, "--init-from", "out/checkpoint.safetensors", cwd=tmp_path).stdout
    assert "output new: new" in again
    assert "out/checkpoint.safetensors, which fit the model" in again
    write_folder(tmp_path / "model", random_tensors(CONFIG))
    refusal = run(*plan, "--init-from", "model", cwd=tmp_path)
    assert refusal.returncode == 2 and "model" in refusal.stderr


@pytest.mark.parametrize("policy", ["active", "passive", None])
def test_idle_threads_sleep_whatever_the_environment_says(policy: str | None) -> None:
    """OpenMP's runtime prints the policy that it reads, once for each time it is loaded."""
    settings = {"OMP_DISPLAY_ENV": "verbose"}
    if policy is not None:
        settings["OMP_WAIT_POLICY"] = policy
    inherited = {
        k: v for k, v in os.environ.items() if k not in {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}
    }
    result = subprocess.run(
        [PROGRAM, "info"], capture_output=True, text=True, check=True, env={**inherited, **settings}
    )
    reported = dict(re.findall(r"(OMP_WAIT_POLICY|GOMP_SPINCOUNT) = '(\w+)'", result.stderr))
    assert reported == {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "5000"}
