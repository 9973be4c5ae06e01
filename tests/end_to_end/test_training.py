"""Training through the program: same bits however it is run, killed, resumed or parallelised."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import pytest
from program import PROGRAM, stopped


CONFIG = """
name = "small"
recipe = "{recipe}"
seed = 3
[model]
hidden_size = 128
intermediate_size = 256
num_hidden_layers = 1
num_attention_heads = 2
num_key_value_heads = 1
head_dim = 64
vocab_size = 272
[logging]
statistics_every_steps = 4
checkpoint_every_steps = 3
[[stages]]
name = "cpt"
kind = "cpt"
steps = {cpt}
batch_sequences = 2
micro_batch_sequences = 1
sequence_length = 96
[stages.data]
kind = "arithmetic"
form = "running_text"
[stages.learning_rate]
kind = "wsd"
peak = 1e-3
final = 1e-4
warmup_steps = 1
decay_steps = 0
[[stages]]
name = "sft"
kind = "sft"
steps = {sft}
batch_sequences = 2
micro_batch_sequences = 2
sequence_length = 192
[stages.data]
kind = "arithmetic"
form = "prompt_response"
[stages.learning_rate]
kind = "cosine"
peak = 5e-4
final = 5e-5
warmup_steps = 1
[stages.eval]
every_steps = 4
sequences = 2
exact_match = 2
max_new_tokens = 4
[stages.eval.data]
kind = "arithmetic"
form = "prompt_response"
held_out = true
"""


def write_config(directory: Path, recipe: str, cpt: int = 5, sft: int = 5) -> Path:
    path = directory / "config.toml"
    path.write_text(CONFIG.format(recipe=recipe, cpt=cpt, sft=sft))
    return path


def train(config: Path, out: Path, *extra: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [PROGRAM, "train", "--config", str(config), "--out", str(out), *extra],
        capture_output=True,
        text=True,
        check=False,
    )


def open_run(out: Path) -> h5py.File:
    return h5py.File(out / "run.h5", "r", libver="latest", swmr=True)


def final_hash(out: Path) -> int:
    with open_run(out) as run:
        assert len(run["/complete"]) == 1
        return int(run["/complete"][0])


def step_hashes(out: Path) -> list[int]:
    with open_run(out) as run:
        return [int(value) for value in run["/hashes/weights"][:]]


@pytest.mark.parametrize("recipe", ["infir2", "te_delayed"])
def test_same_bits_for_every_thread_count_and_simd_target(tmp_path: Path, recipe: str) -> None:
    config = write_config(tmp_path, recipe)
    info = subprocess.run([PROGRAM, "info"], capture_output=True, text=True, check=True).stdout
    known = ("portable", "avx2", "avx512", "avx512_fp16", "avx512_amx")
    targets = [t for t in known if t in info.split()]
    variants = [("--threads", n) for n in ("1", "2", "5")] + [("--simd", t) for t in targets]
    expected = None
    for index, variant in enumerate(variants):
        out = tmp_path / f"run{index}"
        result = train(config, out, *variant)
        assert result.returncode == 0, result.stderr
        hashes = step_hashes(out)
        assert len(set(hashes)) == len(hashes) == 10, "every step changes the weights"
        expected = expected or hashes
        assert hashes == expected, variant


def kill_after(process: subprocess.Popen, out: Path, checkpoints: int, delay: float) -> bool:
    """Kills the run `delay` seconds after its n-th checkpoint (0: after its run file) appeared;
    false when it ended before. Every checkpoint has its own modification time."""
    path = out / ("checkpoint.safetensors" if checkpoints else "run.h5")
    seen: set[int] = set()
    while process.poll() is None:
        if path.exists():
            seen.add(path.stat().st_mtime_ns)
        if len(seen) >= max(checkpoints, 1):
            time.sleep(delay)
            break
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("recipe", ["bf16", "te_delayed"])
def test_killed_runs_resume_to_the_same_bits(tmp_path: Path, recipe: str) -> None:
    config = write_config(tmp_path, recipe)
    assert train(config, tmp_path / "whole").returncode == 0
    expected = step_hashes(tmp_path / "whole")
    killed = 0
    for index, (checkpoints, delay) in enumerate([(0, 0), (1, 0), (1, 0.03), (2, 0), (3, 0)]):
        out = tmp_path / f"killed{index}"
        process = subprocess.Popen(
            [PROGRAM, "train", "--config", str(config), "--out", str(out)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        killed += kill_after(process, out, checkpoints, delay)
        with open_run(out) as run:
            assert "metrics" in run
        result = train(config, out, "--resume")
        assert result.returncode == 0, result.stderr
        told = [line for line in result.stdout.splitlines() if "checkpoint yet" in line]
        told += re.findall(
            r"(?m)^continues after step \d+, from .*checkpoint.safetensors$", result.stdout
        )
        with open_run(out) as run:
            assert len(told) == 1 and (len(run["checkpoints"]["step"]) > 0 or "yet" in told[0])
        assert step_hashes(out) == expected
        with open_run(out) as run:
            assert list(run["/metrics/step"][:]) == list(range(1, 11))
    assert killed >= 4, "the runs must really have been killed"


# All that an optimizer keeps in BF16, and steps of one micro-batch.
BF16_STATES = [
    word
    for key in ("weights", "gradients", "first_moment", "second_moment")
    for word in ("--set", f"optimizer.{key}=bf16")
] + ["--set", "stages.*.micro_batch_sequences=2"]


@pytest.mark.parametrize("recipe", ["infir2", "te_delayed"])
def test_training_without_an_fp32_master(tmp_path: Path, recipe: str) -> None:
    config = write_config(tmp_path, recipe)
    whole, halves, single = (tmp_path / name for name in ("whole", "halves", "single"))
    assert train(config, whole, *BF16_STATES).returncode == 0
    result = train(config, single, "--set", "stages.*.micro_batch_sequences=2")
    assert result.returncode == 0, result.stderr
    with open_run(whole) as run:
        states = run["/meta"].attrs["optimizer_states"]
        assert states == b"m=bf16 v=bf16 master=bf16 gradient=bf16"
        losses = run["/metrics/loss"][:]
    with open_run(single) as run:
        assert abs(losses - run["/metrics/loss"][:]).max() < 0.02
    assert step_hashes(whole) != step_hashes(single)
    checkpoint = (whole / "checkpoint.safetensors").read_bytes()
    header = json.loads(checkpoint[8 : 8 + int.from_bytes(checkpoint[:8], "little")])
    tensors = {name: tensor for name, tensor in header.items() if name != "__metadata__"}
    kinds = {name.split("/")[0]: tensor["dtype"] for name, tensor in tensors.items()}
    assert kinds["weight"] == kinds["first_moment"] == kinds["second_moment"] == "BF16"
    assert len(checkpoint) < 0.6 * (single / "checkpoint.safetensors").stat().st_size

    process = subprocess.Popen(
        [PROGRAM, "train", "--config", str(config), "--out", str(halves), *BF16_STATES],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert kill_after(process, halves, 1, 0.0), "the run must really have been killed"
    result = train(config, halves, *BF16_STATES, "--resume")
    assert result.returncode == 0, result.stderr
    assert step_hashes(halves) == step_hashes(whole)

    # Its weights start a run of either kind.
    start = ["--init-from", str(whole / "checkpoint.safetensors")]
    for index, states in enumerate((BF16_STATES, [])):
        result = train(config, tmp_path / f"next{index}", *states, *start)
        assert result.returncode == 0, result.stderr


# States of every kind: codes with scales and codebooks, 16 bits, rounded weights and gradients.
STATES = {
    "coat": ["optimizer=coat", "optimizer.gradients=e5m2/tensor/pow2"],
    "fp8_lm_o2": ["optimizer=fp8_lm_o2", "optimizer.weights=fp16/tensor/pow2/stochastic"],
    "lns_madam": ["optimizer=lns_madam", "optimizer.second_moment=e5m2/1x64/stochastic"],
    "lion": ["optimizer.kind=lion", "optimizer.first_moment=e5m6/1x128"],
    "sgd": ["optimizer.kind=sgd", "optimizer.first_moment=bf16"],
    "muon": ["optimizer.kind=muon", "optimizer.first_moment=e4m3fn/1x128"],
}


@pytest.mark.parametrize("optimizer", STATES)
def test_stored_states_resume_to_the_same_bits(tmp_path: Path, optimizer: str) -> None:
    config = write_config(tmp_path, "te_delayed", cpt=4, sft=4)
    states = [word for state in STATES[optimizer] for word in ("--set", state)]
    states += ["--set", "logging.update_errors_every_steps=3"]
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    result = train(config, whole, *states, "--threads", "2")
    assert result.returncode == 0, result.stderr
    process = subprocess.Popen(
        [PROGRAM, "train", "--config", str(config), "--out", str(halves), *states],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert kill_after(process, halves, 1, 0.0), "the run must really have been killed"
    result = train(config, halves, *states, "--resume", "--threads", "1")
    assert result.returncode == 0, result.stderr
    assert step_hashes(halves) == step_hashes(whole)
    # A rate of the warm-up may move no weight by half a step of a logarithmic format.
    least = 7 if optimizer == "lns_madam" else 8
    assert len(set(step_hashes(whole))) >= least, "every step changes the weights"
    scores = []
    for out in (whole, halves):
        with open_run(out) as run:
            names = [name.decode() for name in run["/scores/name"][:]]
            columns = [run[f"/scores/{key}"][:].tolist() for key in ("step", "value", "count")]
            scores.append([row for row in zip(names, *columns) if row[0].startswith("update/")])
    assert scores[0] == scores[1]
    assert {row[1] for row in scores[0]} == {1, 4, 5, 8}, "steps 1 and 4 of each stage"
    lost = [row[2] for row in scores[0] if row[0] == "update/lost"]
    assert min(lost) < 1 and all(0 <= share <= 1 for share in lost)
    # Its weights start another run, and are what `eval` reads.
    start = ["--init-from", str(whole / "checkpoint.safetensors")]
    result = train(config, tmp_path / "next", *states, *start)
    assert result.returncode == 0, result.stderr


def test_moments_take_the_bytes_of_their_formats(tmp_path: Path) -> None:
    config = write_config(tmp_path, "bf16", cpt=1, sft=1)
    sizes = {}
    for name, states in {"fp32": [], "coat": ["--set", "optimizer=coat"]}.items():
        assert train(config, tmp_path / name, *states).returncode == 0
        checkpoint = (tmp_path / name / "checkpoint.safetensors").read_bytes()
        header = json.loads(checkpoint[8 : 8 + int.from_bytes(checkpoint[:8], "little")])
        sizes[name] = {
            kind: sum(
                tensor["data_offsets"][1] - tensor["data_offsets"][0]
                for tensor_name, tensor in header.items()
                if tensor_name.startswith(kind)
            )
            for kind in ("weight/", "first_moment/", "second_moment/")
        }
    assert sizes["coat"]["weight/"] == sizes["fp32"]["weight/"] == sizes["fp32"]["first_moment/"]
    for kind in ("first_moment/", "second_moment/"):  # 8 bits, and three numbers for 128 elements
        assert 0.27 < sizes["coat"][kind] / sizes["fp32"][kind] < 0.29


def test_bf16_gradients_are_not_accumulated(tmp_path: Path) -> None:
    config = write_config(tmp_path, "infir2")
    result = train(config, tmp_path / "run", "--set", "optimizer.gradients=bf16")
    assert result.returncode == 2 and "2 micro-batches" in result.stderr
    fp32 = ["--set", "recipe=fp32", "--set", "optimizer.weights=bf16"]
    result = train(config, tmp_path / "fp32", *fp32)
    assert result.returncode == 2 and "'optimizer.weights' is 'bf16'" in result.stderr


def test_no_two_micro_batches_of_a_step_share_random_bits(tmp_path: Path) -> None:
    """Random keys count 4096 of them."""
    config = write_config(tmp_path, "infir2")
    for count, status in ((4096, 0), (4097, 2)):
        many = ["--set", f"stages.*.batch_sequences={count}"]
        many += ["--set", "stages.*.micro_batch_sequences=1"]
        many += ["--set", "stages.*.sequence_length=128"]
        result = train(config, tmp_path / "run", *many, "--dry-run")
        assert result.returncode == status, result.stderr
    assert "4097 micro-batches of a step; accepted: at most 4096" in result.stderr


def test_sigterm_writes_a_checkpoint_and_exits_4(tmp_path: Path) -> None:
    config = write_config(tmp_path, "infir2", cpt=12, sft=3)
    assert train(config, tmp_path / "whole").returncode == 0
    out = tmp_path / "stopped"
    stopped("train", "--config", config, "--out", out)
    with open_run(out) as run:
        done = len(run["/metrics/step"])
        assert done in (1, 2) and len(run["/complete"]) == 0
    result = train(config, out, "--resume")
    assert result.returncode == 0, result.stderr
    assert step_hashes(out) == step_hashes(tmp_path / "whole")
    assert final_hash(out) == final_hash(tmp_path / "whole")


def test_existing_run_and_changed_configuration_are_refused(tmp_path: Path) -> None:
    config = write_config(tmp_path, "bf16", cpt=1, sft=1)
    assert train(config, tmp_path / "run").returncode == 0
    again = train(config, tmp_path / "run")
    assert again.returncode == 2 and again.stderr.count("\n") == 1
    assert "--resume" in again.stderr
    changed = train(config, tmp_path / "run", "--resume", "--set", "seed=4")
    assert changed.returncode == 2 and "configuration" in changed.stderr
    assert train(config, tmp_path / "run", "--resume").returncode == 0


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    config = write_config(tmp_path, "infir2", cpt=4000, sft=1)
    out = tmp_path / "run"
    first = subprocess.Popen(
        [PROGRAM, "train", "--config", str(config), "--out", str(out)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert first.stdout is not None
    assert "step 1/" in first.stdout.readline()
    second = train(config, out, "--resume")
    first.kill()
    first.wait()
    assert second.returncode == 2 and second.stderr.count("\n") == 1
    assert "another process" in second.stderr


def test_a_damaged_checkpoint_or_run_file_is_refused(tmp_path: Path) -> None:
    config = write_config(tmp_path, "bf16", cpt=1, sft=1)
    out = tmp_path / "run"
    assert train(config, out, "--set", "stages.sft.steps=2").returncode == 0
    start = tmp_path / "start.safetensors"
    start.write_bytes((out / "checkpoint.safetensors").read_bytes()[:1000])
    broken = train(config, tmp_path / "other", "--init-from", str(start))
    assert broken.returncode == 2 and broken.stderr.count("\n") == 1
    (out / "run.h5").write_bytes(b"not a run file")
    broken = train(config, out, "--resume")
    assert broken.returncode == 2 and broken.stderr.count("\n") == 1


def test_dry_run_prints_the_plan_and_writes_nothing(tmp_path: Path) -> None:
    config = write_config(tmp_path, "infir2")
    result = train(config, tmp_path / "dry", "--dry-run")
    assert result.returncode == 0, result.stderr
    for text in ("fprop.x", "e4m3fn", "promote:128", "parameters", "memory", "time"):
        assert text in result.stdout
    assert not (tmp_path / "dry").exists()


def test_loss_falls_and_prompts_do_not_count(tmp_path: Path) -> None:
    config = write_config(tmp_path, "infir2", cpt=25, sft=2)
    assert train(config, tmp_path / "run").returncode == 0
    with open_run(tmp_path / "run") as run:
        loss = run["/metrics/loss"][:]
        tokens = run["/metrics/tokens"][:]
    assert loss[24] < 0.75 * loss[0]
    assert tokens[24] == 25 * 2 * 96, "running text trains on every token"
    assert 0 < tokens[26] - tokens[24] < 2 * 2 * 192, "prompts and padding are not trained on"


ROTATED = """
name = "{name}"
[slots.default]
format = "int8"
tile = "tensor"
{transform}
[gemm]
accumulator = "sm90_bf16"
"""


def fprop_x_quality(out: Path, layer: str) -> float:
    """Signal to noise in decibels of the x of one layer, a mean over the logged steps."""
    with open_run(out) as run:
        slots = [text.decode() for text in run["/tensors/slot"][:]]
        layers = [text.decode() for text in run["/tensors/layer"][:]]
        column = list(zip(layers, slots)).index((layer, "fprop.x"))
        return float(run["/tensors/sqnr_db"][:, column].mean())


OUTLIERS = 'stages.cpt.stress=[{kind="outlier_channels", gain=64.0}]'


def test_hadamard_transforms_train_and_recover_planted_outliers(tmp_path: Path) -> None:
    losses, quality = {}, {}
    planted = ["--set", OUTLIERS]
    for name, transform in (
        ("plain", ""),
        ("rotated", 'transform = "hadamard:full"'),
        ("drawn", 'transform = "hadamard:full:drawn"'),
        ("smoothed", 'transform = "smooth:0.5"'),
    ):
        recipe = tmp_path / f"{name}.toml"
        recipe.write_text(ROTATED.format(name=name, transform=transform))
        config = write_config(tmp_path, str(recipe), cpt=6, sft=2)
        shapes = ["--set", "model.vocab_size=288"]  # 272 = 16 * 17 has no Hadamard matrix
        result = train(config, tmp_path / name, *planted, *shapes)
        assert result.returncode == 0, result.stderr
        with open_run(tmp_path / name) as run:
            losses[name] = list(run["/metrics/loss"][:])
        for layer in ("layers.0.attention.qkv", "layers.0.mlp.gate_up"):
            quality[name, layer] = fprop_x_quality(tmp_path / name, layer)
    assert len({tuple(values) for values in losses.values()}) == len(losses)
    for name, layer in quality:
        if name != "plain":
            gain = 3.0 if name == "smoothed" else 12.0
            assert quality[name, layer] > quality["plain", layer] + gain, quality
    for name in losses:
        assert losses[name][5] < losses[name][0] - 0.2, losses


def test_static_smoothing_resumes_to_the_same_bits(tmp_path: Path) -> None:
    recipe = tmp_path / "static.toml"
    recipe.write_text(ROTATED.format(name="static", transform='transform = "smooth:0.5:static"'))
    config = write_config(tmp_path, str(recipe), cpt=5, sft=2)
    assert train(config, tmp_path / "whole").returncode == 0
    process = subprocess.Popen(
        [PROGRAM, "train", "--config", str(config), "--out", str(tmp_path / "killed")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert kill_after(process, tmp_path / "killed", 1, 0)
    result = train(config, tmp_path / "killed", "--resume")
    assert result.returncode == 0, result.stderr
    assert step_hashes(tmp_path / "killed") == step_hashes(tmp_path / "whole")
    current = tmp_path / "current.toml"
    current.write_text(recipe.read_text().replace(":static", ""))
    config.write_text(config.read_text().replace(str(recipe), str(current)))
    assert train(config, tmp_path / "current").returncode == 0
    assert step_hashes(tmp_path / "current") != step_hashes(tmp_path / "whole")


FP4_FORWARD = """
name = "{name}"
[slots.default]
format = "bf16"
[slots.fprop.x]
format = "e2m1"
tile = "row"
{transform}
[slots.fprop.w]
format = "e2m1"
tile = "row"
[gemm]
accumulator = "sm90_bf16"
"""


def test_clamped_and_compensated_fp4_activations_train(tmp_path: Path) -> None:
    losses, quality = {}, {}
    planted = ["--set", OUTLIERS]
    for name, transform in (
        ("plain", ""),
        ("clamped", 'transform = "clamp:0.99"'),
        ("compensated", 'transform = "clamp:0.99:compensated"'),
    ):
        recipe = tmp_path / f"{name}.toml"
        recipe.write_text(FP4_FORWARD.format(name=name, transform=transform))
        config = write_config(tmp_path, str(recipe), cpt=6, sft=2)
        result = train(config, tmp_path / name, *planted)
        assert result.returncode == 0, result.stderr
        with open_run(tmp_path / name) as run:
            losses[name] = list(run["/metrics/loss"][:])
        quality[name] = fprop_x_quality(tmp_path / name, "layers.0.attention.qkv")
    assert quality["compensated"] > quality["plain"] + 10.0, quality
    assert quality["compensated"] > quality["clamped"] + 20.0, quality
    assert losses["compensated"][5] < losses["compensated"][0] - 0.2, losses
    assert losses["compensated"][0] != losses["clamped"][0], losses


LEFT = """
name = "{name}"
[slots.default]
format = "bf16"
[slots.dgrad.dy]
format = "e4m3fn"
{transform}
[slots.dgrad.w]
format = "e4m3fn"
{transform}
[gemm]
accumulator = "sm90_bf16"
"""


def test_left_transforms_are_gone_from_the_gradients(tmp_path: Path) -> None:
    losses, norms = {}, {}
    for name, transform in (
        ("plain", ""),
        ("full", 'transform = "left:hadamard:full"'),
        ("drawn", 'transform = "left:hadamard:16:drawn"'),
    ):
        recipe = tmp_path / f"{name}.toml"
        recipe.write_text(LEFT.format(name=name, transform=transform))
        config = write_config(tmp_path, str(recipe), cpt=6, sft=2)
        result = train(config, tmp_path / name)
        assert result.returncode == 0, result.stderr
        with open_run(tmp_path / name) as run:
            losses[name] = list(run["/metrics/loss"][:])
            norms[name] = list(run["/metrics/grad_norm"][:])
    for name in ("full", "drawn"):
        assert losses[name] != losses["plain"]
        assert losses[name] == pytest.approx(losses["plain"], rel=2e-3), losses
        assert norms[name] == pytest.approx(norms["plain"], rel=2e-2), norms


@pytest.mark.parametrize("recipe", ["nvfp4", "halo1_fp8", "halo2_fp8", "fp4_occ"])
def test_recipes_with_transforms_run_to_the_same_bits(tmp_path: Path, recipe: str) -> None:
    config = write_config(tmp_path, recipe, cpt=3, sft=2)
    layers = ["--set", "model.num_hidden_layers=2"]
    assert train(config, tmp_path / "one", "--threads", "1", *layers).returncode == 0
    result = train(config, tmp_path / "three", "--threads", "3", *layers)
    assert result.returncode == 0, result.stderr
    hashes = step_hashes(tmp_path / "one")
    assert len(set(hashes)) == 5 and hashes == step_hashes(tmp_path / "three")


def test_a_transform_that_does_not_fit_the_model_is_refused(tmp_path: Path) -> None:
    recipe = tmp_path / "odd.toml"
    recipe.write_text(ROTATED.format(name="odd", transform='transform = "hadamard:28"'))
    result = train(write_config(tmp_path, str(recipe)), tmp_path / "run")
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    assert "fprop.x" in result.stderr and "multiple of 28, K = 128" in result.stderr
    assert not (tmp_path / "run").exists()


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q"]))
