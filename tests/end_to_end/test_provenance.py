"""What a run records of itself, and what is refused because it would continue as another run."""

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from program import PROGRAM, SMALL_MODEL, stopped


STAGE = """
[[stages]]
name = "{name}"
kind = "{kind}"
steps = {steps}
batch_sequences = 2
sequence_length = {length}
learning_rate.warmup_steps = 1
"""


def stage(name: str, kind: str = "cpt", steps: int = 4, more: str = "", length: int = 64) -> str:
    return STAGE.format(name=name, kind=kind, steps=steps, length=length) + more


def write_config(folder: Path, *stages: str, recipe: str = "bf16", logging: str = "") -> Path:
    path = folder / "config.toml"
    head = f'name = "tiny"\nrecipe = "{recipe}"\n'
    path.write_text(head + SMALL_MODEL + "[logging]\n" + logging + "".join(stages))
    return path


def run(*words: object, cwd: Path | None = None) -> subprocess.CompletedProcess:
    return subprocess.run(
        [PROGRAM, *map(str, words)], capture_output=True, text=True, check=False, cwd=cwd
    )


def train(config: Path, out: Path, *extra: object) -> subprocess.CompletedProcess:
    return run("train", "--config", config, "--out", out, *extra)


def trained(config: Path, out: Path, *extra: object) -> None:
    result = train(config, out, *extra)
    assert result.returncode == 0, result.stderr


def refused(result: subprocess.CompletedProcess, *words: str) -> None:
    assert result.returncode == 2, (result.returncode, result.stdout, result.stderr)
    errors = [line for line in result.stderr.splitlines() if not line.startswith("fp8lab: note: ")]
    assert len(errors) == 1, result.stderr
    for word in words:
        assert word in result.stderr, (word, result.stderr)


def open_run(out: Path) -> h5py.File:
    return h5py.File(out / "run.h5", "r", libver="latest", swmr=True)


def column(out: Path, path: str) -> list:
    with open_run(out) as file:
        return list(file[path][:])


def events(out: Path) -> list[tuple[int, str, str]]:
    with open_run(out) as file:
        group = file["events"]
        return [
            (int(step), kind.decode(), message.decode())
            for step, kind, message in zip(group["step"], group["kind"], group["message"])
        ]


def interrupted(config: Path, out: Path, *extra: object) -> None:
    """A run that was stopped after step 1 or 2."""
    half = config.parent / "half.toml"
    half.write_text(config.read_text())
    stopped("train", "--config", half, "--out", out, *extra)
    assert (out / "checkpoint.safetensors").exists()


def documents(path: Path, text: str = "The sum of two and three is five.") -> Path:
    lines = [{"question": f"{i}: {text}", "answer": f"{i} is the answer"} for i in range(40)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


# --- checkpoints ---------------------------------------------------------------------------------


def header_of(path: Path) -> tuple[dict, int]:
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length]), 8 + length


def test_every_flipped_bit_of_a_checkpoint_is_found(tmp_path: Path) -> None:
    config = write_config(tmp_path, stage("cpt", steps=40), recipe="te_delayed")
    interrupted(config, tmp_path / "run")
    checkpoint = tmp_path / "run" / "checkpoint.safetensors"
    whole = checkpoint.read_bytes()
    header, begin = header_of(checkpoint)
    names = [name for name in header if name != "__metadata__"]
    rng = np.random.default_rng(1)
    for index in range(24):
        name = names[int(rng.integers(len(names)))]
        first, last = header[name]["data_offsets"]
        at = begin + int(rng.integers(first, last))
        damaged = bytearray(whole)
        damaged[at] ^= 1 << int(rng.integers(8))
        checkpoint.write_bytes(damaged)
        result = train(config, tmp_path / "run", "--resume")
        refused(result, "checkpoint.safetensors", "damaged")
        if name != "checksums":
            assert f"'{name}'" in result.stderr
        if index < 6 and name.startswith("weight/"):
            refused(run("eval", checkpoint, "--threads", 1), "damaged", name)
            refused(train(config, tmp_path / "other", "--init-from", checkpoint), "damaged")


@pytest.mark.parametrize(
    "key, value",
    [("stage", "9"), ("step", "3"), ("stage_step", "400"), ("tokens", "-3"), ("streams", "1,2")],
)
def test_metadata_of_a_checkpoint_has_a_checksum(tmp_path: Path, key: str, value: str) -> None:
    config = write_config(tmp_path, stage("cpt", steps=40))
    interrupted(config, tmp_path / "run")
    checkpoint = tmp_path / "run" / "checkpoint.safetensors"
    header, begin = header_of(checkpoint)
    data = checkpoint.read_bytes()[begin:]
    header["__metadata__"][key] = value
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    checkpoint.write_bytes(struct.pack("<Q", len(text)) + text + data)
    refused(train(config, tmp_path / "run", "--resume"), "checkpoint.safetensors", "damaged")


def test_equal_runs_write_equal_checkpoints(tmp_path: Path) -> None:
    config = write_config(tmp_path, stage("a"))
    for out in ("x", "y"):
        trained(config, tmp_path / out)
    files = [(tmp_path / out / "checkpoint.safetensors").read_bytes() for out in ("x", "y")]
    assert files[0] == files[1]
    hashes = [column(tmp_path / out, "checkpoints/hash") for out in ("x", "y")]
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize("older", [False, True])
def test_a_resumed_run_goes_on_with_its_seconds(tmp_path: Path, older: bool) -> None:
    config = write_config(tmp_path, stage("a", steps=400))
    out = tmp_path / "run"
    interrupted(config, out)
    with h5py.File(out / "run.h5", "r+", libver="latest") as file:
        if older:
            del file["checkpoints/seconds"]
            file["metrics/seconds"][-1] += 1000
        else:
            file["checkpoints/seconds"][-1] += 1000
    trained(config, out, "--resume")
    seconds = column(out, "metrics/seconds")
    resumed = next(step for step, kind, _ in events(out) if kind == "resume")
    assert seconds[resumed - 1] < 1000 or older
    assert all(1000 < value < 2000 for value in seconds[resumed:])
    recorded = column(out, "checkpoints/seconds")
    assert np.isnan(recorded[0]) if older else recorded[0] > 1000
    assert recorded[-1] > 1000


def test_files_left_by_killed_runs_are_removed(tmp_path: Path) -> None:
    config = write_config(tmp_path, stage("cpt"))
    out = tmp_path / "run"
    out.mkdir()
    left = out / ".checkpoint.safetensors.tmp-4711-0"
    left.write_bytes(b"half a checkpoint")
    trained(config, out)
    assert not left.exists()
    assert sorted(path.name for path in out.iterdir()) == ["checkpoint.safetensors", "run.h5"]


# --- what a resume compares ----------------------------------------------------------------------


def test_resume_compares_the_contents_of_everything_named(tmp_path: Path) -> None:
    data = documents(tmp_path / "data.jsonl")
    held_out = documents(tmp_path / "held_out.jsonl", "Something else.")
    recipe = tmp_path / "mine.toml"
    shutil.copy(Path(__file__).parents[2] / "experiments/recipes/infir2/infir2.toml", recipe)
    more = f"""[stages.data]
kind = "jsonl"
path = "{data}"
[stages.eval]
every_steps = 100
sequences = 1
data.path = "{held_out}"
"""
    start = tmp_path / "start"
    trained(write_config(tmp_path, stage("cpt")), start)
    config = write_config(tmp_path, stage("cpt", steps=40, more=more), recipe=str(recipe))
    out = tmp_path / "run"
    weights = start / "checkpoint.safetensors"
    interrupted(config, out, "--init-from", weights)
    resume = ("--resume", "--init-from", weights)

    for path, old, new, words in (
        (recipe, "promote:128", "promote:32", ["recipe of stage cpt"]),
        (data, "three", "seven", ["training data of stage cpt"]),
        (held_out, "else", "more", ["evaluation data of stage cpt"]),
    ):
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        refused(train(config, out, *resume), "run.h5", *words)
        path.write_text(text)
    refused(train(config, out, "--resume"), "initial weights")
    refused(train(config, out, *resume, "--set", "seed=4"), "configuration")

    # Other words for the same things: a relative path, another working directory, another name.
    moved = config.read_text().replace(f'"{recipe}"', '"./mine.toml"')
    moved = moved.replace(f'"{data}"', '"data.jsonl"').replace('name = "tiny"', 'name = "same"')
    config.write_text(moved)
    result = run(
        "train", "--config", config, "--out", out, *resume, "--simd", "portable", cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    with open_run(out) as file:
        meta = file["meta"].attrs
        names = list(meta["identity_names"])
        assert names[:2] == [b"configuration", b"arithmetic"] and names[-1] == b"initial weights"
        assert all(len(text) == 16 for text in meta["identity_hashes"])
        version, source = meta["code_version"].decode().rsplit(".", 1)
        assert "+" in version and len(source) == 16
    assert "simd_changed" in [kind for _, kind, _ in events(out)]


def test_checkpoint_and_run_file_belong_together(tmp_path: Path) -> None:
    config = write_config(tmp_path, stage("cpt", steps=40))
    out, other = tmp_path / "run", tmp_path / "other"
    refused(train(config, out, "--resume"), "no run to resume")
    assert not out.exists()
    interrupted(config, out)
    checkpoint, file = out / "checkpoint.safetensors", out / "run.h5"
    aside = tmp_path / "aside"
    checkpoint.rename(aside)
    refused(train(config, out, "--resume"), "checkpoint.safetensors", "missing")
    aside.rename(checkpoint)
    before = checkpoint.read_bytes()
    file.rename(aside)
    for words in (["--resume"], []):
        refused(train(config, out, *words), "no run.h5 beside this checkpoint")
    assert checkpoint.read_bytes() == before
    aside.rename(file)

    interrupted(config, other, "--set", "seed=9")
    shutil.copy(other / "checkpoint.safetensors", checkpoint)
    refused(train(config, out, "--resume"), "checkpoint.safetensors", "another run")
    checkpoint.write_bytes(before)
    steps = column(out, "/checkpoints/step")
    assert len(steps) == 1 and steps[0] in (1, 2)
    # An earlier checkpoint of the same run would silently repeat steps that are recorded.
    trained(config, out, "--resume")
    assert len(column(out, "/complete")) == 1
    trained(config, tmp_path / "whole")
    assert column(out, "/hashes/weights") == column(tmp_path / "whole", "/hashes/weights")


def test_an_older_checkpoint_of_the_same_run_is_refused(tmp_path: Path) -> None:
    config = write_config(
        tmp_path, stage("cpt", steps=40000), logging="checkpoint_every_steps = 2\n"
    )
    out = tmp_path / "run"
    interrupted(config, out)
    checkpoint = out / "checkpoint.safetensors"
    old = checkpoint.read_bytes()
    stopped("train", "--config", config, "--out", out, "--resume")
    checkpoint.write_bytes(old)
    refused(train(config, out, "--resume"), "checkpoint.safetensors", "not the one")


def test_a_run_killed_before_its_first_checkpoint_starts_anew(tmp_path: Path) -> None:
    config = write_config(tmp_path, stage("cpt", steps=30))
    out = tmp_path / "run"
    process = subprocess.Popen(
        [PROGRAM, "train", "--config", str(config), "--out", str(out)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    process.wait()
    assert not (out / "checkpoint.safetensors").exists()
    trained(config, out, "--resume")
    assert column(out, "/metrics/step") == list(range(1, 31))


def test_eval_of_a_run_whose_data_changed_is_refused(tmp_path: Path) -> None:
    data = documents(tmp_path / "data.jsonl")
    recipe = tmp_path / "mine.toml"
    shipped = Path(__file__).parents[2] / "experiments/recipes/infir2/infir2.toml"
    shutil.copy(shipped, recipe)
    more = f"""[stages.data]
kind = "jsonl"
path = "{data}"
[stages.eval]
every_steps = 100
sequences = 1
data.path = "{data}"
"""
    config = write_config(tmp_path, stage("cpt", more=more), recipe=str(recipe))
    trained(config, tmp_path / "run")
    before = run("eval", tmp_path / "run").stdout
    text = data.read_text()
    data.write_text(text.replace("three", "seven"))
    refused(run("eval", tmp_path / "run"), "evaluation data of stage cpt", "--data")
    assert run("eval", tmp_path / "run", "--data", data).returncode == 0
    data.write_text(text)
    # The recipe is that of the run file.
    recipe.write_text(recipe.read_text().replace("promote:128", "promote:32"))
    assert before == run("eval", tmp_path / "run").stdout != ""
    assert before != run("eval", tmp_path / "run", "--recipe", recipe).stdout != ""
    trained(config, tmp_path / "changed")
    refused(train(config, tmp_path / "run", "--resume"), "recipe of stage cpt")


# --- steps that learn nothing, and data that go on ------------------------------------------------


LATE_ANSWER = """[stages.data]
kind = "jsonl"
path = "{path}"
"""


def test_data_without_a_target_are_refused_before_step_0(tmp_path: Path) -> None:
    data = tmp_path / "late.jsonl"
    data.write_text(json.dumps({"question": "x" * 200, "answer": "y"}) + "\n")
    config = write_config(tmp_path, stage("sft", kind="sft", more=LATE_ANSWER.format(path=data)))
    text = config.read_text().replace("[stages.data]", '[stages.data]\nform = "prompt_response"')
    config.write_text(text + f'[stages.eval]\nsequences = 1\ndata.path = "{data}"\n')
    refused(train(config, tmp_path / "run"), "stage sft", "no token", "late.jsonl", "64")
    assert not (tmp_path / "run").exists()


def test_a_step_without_targets_is_nan_and_leaves_the_weights(tmp_path: Path) -> None:
    data = tmp_path / "mixed.jsonl"
    lines = [{"question": "q", "answer": "a"}] * 10 + [{"question": "x" * 200, "answer": "y"}] * 10
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    more = LATE_ANSWER.format(path=data) + f'[stages.eval]\nsequences = 40\ndata.path = "{data}"\n'
    config = write_config(tmp_path, stage("sft", kind="sft", steps=12, more=more))
    trained(config, tmp_path / "run", "--set", "stages.sft.batch_sequences=1")
    loss, weights = column(tmp_path / "run", "/metrics/loss"), column(
        tmp_path / "run", "/hashes/weights"
    )
    nothing = [i for i, value in enumerate(loss) if np.isnan(value)]
    assert nothing and len(nothing) < 12
    for i in range(1, 12):
        assert (weights[i] == weights[i - 1]) == (i in nothing), i
    assert [step for step, kind, _ in events(tmp_path / "run") if kind == "no_targets"] == [
        i + 1 for i in nothing
    ]


def losses(tmp_path: Path, name: str, *stages: str) -> list[float]:
    trained(write_config(tmp_path, *stages), tmp_path / name)
    return column(tmp_path / name, "/metrics/loss")


def test_a_second_stage_of_a_kind_continues_the_data(tmp_path: Path) -> None:
    keep = 'reset_optimizer = false\nlearning_rate.kind = "constant"\n'
    one = losses(tmp_path, "one", stage("a", steps=8, more=keep))
    two = losses(tmp_path, "two", stage("a", more=keep), stage("b", more=keep))
    assert two[:4] == one[:4]
    # The learning rate warms up again, so that the first loss alone is that of one long stage.
    assert two[4] == one[4]
    again = losses(
        tmp_path, "again", stage("a", more=keep), stage("b", more=keep + "restart_data = true\n")
    )
    assert again[:4] == one[:4] and again[4] != one[4]


def test_a_resume_between_stages_continues_the_data(tmp_path: Path) -> None:
    stages = [
        stage("a", steps=1),
        stage("q", kind="sft", steps=4, length=192),
        stage("b", steps=3),
    ]
    config = write_config(tmp_path, *stages, recipe="te_delayed")
    trained(config, tmp_path / "whole")
    out = tmp_path / "stopped"
    stopped("train", "--config", config, "--out", out)
    trained(config, out, "--resume")
    assert column(out, "/hashes/weights") == column(tmp_path / "whole", "/hashes/weights")


# --- delayed scaling over stages ------------------------------------------------------------------


def without_history(out: Path) -> dict[int, int]:
    """Operands without an amax history, by step."""
    with open_run(out) as file:
        group = file["tensors"]
        return dict(zip(map(int, group["step"]), group["without_history"][:].sum(axis=1)))


def underflow(out: Path, step: int) -> float:
    with open_run(out) as file:
        row = list(file["tensors/step"][:]).index(step)
        return float(np.max(file["tensors/underflow_fraction"][row]))


def test_amax_histories_go_on_through_stages_and_runs(tmp_path: Path) -> None:
    logging = "statistics_every_steps = 1\n"
    two = [stage("a"), stage("q", kind="sft", length=256)]
    config = write_config(tmp_path, *two, recipe="te_delayed", logging=logging)
    trained(config, tmp_path / "carried")
    marks = without_history(tmp_path / "carried")
    assert marks[1] > 0 and not any(marks[step] for step in range(2, 9))
    reset = [two[0], two[1] + "reset_amax_history = true\n"]
    config = write_config(tmp_path, *reset, recipe="te_delayed", logging=logging)
    trained(config, tmp_path / "reset")
    marks = without_history(tmp_path / "reset")
    assert marks[5] == marks[1] > 0 and marks[6] == 0
    assert underflow(tmp_path / "reset", 5) > 2 * underflow(tmp_path / "carried", 5)

    # From the checkpoint of another run; a stage in another recipe has no history to give.
    config = write_config(tmp_path, two[1], recipe="te_delayed", logging=logging)
    start = tmp_path / "carried" / "checkpoint.safetensors"
    trained(config, tmp_path / "from", "--init-from", start)
    assert not any(without_history(tmp_path / "from").values())
    refused(
        train(
            config,
            tmp_path / "from",
            "--resume",
            "--init-from",
            tmp_path / "reset" / "checkpoint.safetensors",
        ),
        "initial amax histories",
    )
    plain = [stage("a", more='recipe = "te_current"\n'), two[1]]
    config = write_config(tmp_path, *plain, recipe="te_delayed", logging=logging)
    trained(config, tmp_path / "switched")
    assert without_history(tmp_path / "switched")[5] > 0


def test_warmup_with_current_scaling_is_a_field_of_the_recipe(tmp_path: Path) -> None:
    shipped = Path(__file__).parents[2] / "experiments/recipes/transformer_engine/te_delayed.toml"
    recipe = tmp_path / "warm.toml"
    recipe.write_text(shipped.read_text().replace("margin = 0", "margin = 0\nwarmup_steps = 2"))
    logging = "statistics_every_steps = 1\n"
    config = write_config(tmp_path, stage("a"), recipe=str(recipe), logging=logging)
    trained(config, tmp_path / "warm")
    assert not any(without_history(tmp_path / "warm").values())
    config = write_config(tmp_path, stage("a"), recipe="te_current", logging=logging)
    trained(config, tmp_path / "current")
    config = write_config(tmp_path, stage("a"), recipe="te_delayed", logging=logging)
    trained(config, tmp_path / "delayed")
    hashes = {
        name: column(tmp_path / name, "/hashes/weights") for name in ("warm", "current", "delayed")
    }
    same = [a == b for a, b in zip(hashes["warm"], hashes["current"])]
    assert same == [True, True, False, False]
    assert hashes["warm"][0] != hashes["delayed"][0]
    refused(
        run("recipes", "check", recipe_with(tmp_path, "warmup_steps = 2")),
        "warmup_steps",
        "no effect",
    )


def test_a_resume_goes_on_with_the_warmup(tmp_path: Path) -> None:
    shipped = Path(__file__).parents[2] / "experiments/recipes/transformer_engine/te_delayed.toml"
    recipe = tmp_path / "warm.toml"
    recipe.write_text(shipped.read_text().replace("margin = 0", "margin = 0\nwarmup_steps = 6000"))
    config = write_config(tmp_path, stage("a", steps=300), recipe=str(recipe))
    interrupted(config, tmp_path / "run")
    checkpoint, _ = header_of(tmp_path / "run" / "checkpoint.safetensors")
    steps = checkpoint["__metadata__"]["step"]
    histories = checkpoint["__metadata__"]["history_steps"].split(",")
    assert {entry.split("=")[1] for entry in histories} == {steps}
    trained(config, tmp_path / "run", "--resume")
    ended, _ = header_of(tmp_path / "run" / "checkpoint.safetensors")
    histories = ended["__metadata__"]["history_steps"].split(",")
    assert {entry.split("=")[1] for entry in histories} == {"300"}
    trained(config, tmp_path / "whole")
    assert column(tmp_path / "run", "/hashes/weights") == column(
        tmp_path / "whole", "/hashes/weights"
    )


def recipe_with(folder: Path, line: str) -> Path:
    shipped = Path(__file__).parents[2] / "experiments/recipes/transformer_engine/te_current.toml"
    path = folder / "line.toml"
    path.write_text(shipped.read_text().replace("[slots.default]", "[slots.default]\n" + line))
    return path


# --- one profile ----------------------------------------------------------------------------------


def test_there_is_one_math_profile(tmp_path: Path) -> None:
    config = write_config(tmp_path, stage("a"))
    refused(train(config, tmp_path / "run", "--set", "math=fast"), "math")
    refused(train(config, tmp_path / "run", "--math", "exact"), "math")
    trained(config, tmp_path / "run")
    with open_run(tmp_path / "run") as file:
        assert file["meta"].attrs["math_profile"] == b"exact"


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q"]))
