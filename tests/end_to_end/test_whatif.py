"""fp8lab whatif and attribute: one step of a run under other recipes, and its error by source.

Run by ctest, which passes the program's path in FP8LAB_PROGRAM.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from program import PROGRAM, refused, succeeded

RUN = """
name = "r"
model = "tiny"
recipe = "recipe.toml"
[logging]
statistics_every_steps = 0
[[stages]]
name = "s"
steps = 2
batch_sequences = 2
micro_batch_sequences = 1
sequence_length = 128
learning_rate.warmup_steps = 0
data.kind = "text"
data.path = "train.txt"
[stages.eval]
sequences = 1
data.kind = "text"
data.path = "held_out.txt"
"""
GROUPS = ["source", "scale", "slot", "GEMM", "layer"]
RECIPE = """
name = "mine"
[slots.default]
format = "e4m3fn"
tile = "tensor"
[gemm]
accumulator = "sm90_wgmma_fp8"
[gemm.wgrad]
output = "fp32"
[keep_high_precision]
modules = ["lm_head"]
"""


@pytest.fixture(name="folder", scope="module")
def fixture_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whatif")
    (folder / "run.toml").write_text(RUN)
    (folder / "recipe.toml").write_text(RECIPE)
    (folder / "train.txt").write_text(
        "\n\n".join(f"{i} and {i + 1} make {i + i + 1}." for i in range(200))
    )
    (folder / "held_out.txt").write_text("\n\n".join(f"What is {i}?" for i in range(40)))
    succeeded("train", "--config", "run.toml", "--out", "run", cwd=folder)
    return folder


@pytest.fixture(name="copy")
def fixture_copy(folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(folder, tmp_path / "copy")


def whatif(folder: Path, *words: object) -> tuple[str, dict[str, Any]]:
    text = succeeded("whatif", "run", *words, "--json", "o.json", cwd=folder)
    return text, json.loads((folder / "o.json").read_text())


def test_weights_are_measured_as_quantize_measures_them(folder: Path) -> None:
    text, found = whatif(folder, "--recipe", "te_current", "--recipe", "infir2")
    assert "stage s, recipe mine, checkpoint after step 2; 1 x 128 tokens of step 3" in text
    assert [one["recipe"] for one in found["recipes"]] == ["te_current", "infir2"]
    for one in found["recipes"]:
        measured = json.loads(
            succeeded("quantize", "run", "--recipe", one["recipe"], "--json", cwd=folder)
        )
        of = {weight["tensor"]: weight["quantizers"][0] for weight in measured["weights"]}
        for index in (0, 1):
            expected = of[f"model.layers.{index}.mlp.down_proj.weight"]
            layer = next(e for e in one["layers"] if e["layer"] == f"layers.{index}.mlp.down")
            operand = next(e for e in layer["operands"] if e["slot"] == "fprop.w")
            for key in ("quantizer", "sqnr_db", "underflow_fraction", "saturation_fraction"):
                assert operand[key] == expected[key], (index, key)


def test_the_worst_product_comes_first(folder: Path) -> None:
    text, found = whatif(folder, "--recipe", "mxfp8", "--recipe", "nvfp4", "--worst", "3")
    products = [
        (product["relative_error"], one["recipe"], layer["layer"], product["gemm"])
        for one in found["recipes"]
        for layer in one["layers"]
        for product in layer["products"]
    ]
    products.sort(key=lambda product: -product[0])
    table = text[text.index("recipe  layer") :].splitlines()[1:4]
    assert [tuple(line.split()[:3]) for line in table] == [p[1:] for p in products[:3]]
    assert all(product[1] == "nvfp4" for product in products[:3])
    assert "the worst 3 of 48" in text


def test_an_estimator_is_a_part_of_its_own(folder: Path) -> None:
    text, found = whatif(folder, "--recipe", "fp4_direct", "--recipe", "fp4_dge", "--layer", "*")
    assert len(found["recipes"][0]["layers"]) == 9
    assert text.count("by the estimator dge:5:3 of fprop.w") == 1
    assert [len(one["remarks"]) for one in found["recipes"]] == [0, 1]
    straight, estimated = (one["layers"] for one in found["recipes"])
    for before, after in zip(straight, estimated, strict=True):
        rounds = after["layer"] != "lm_head"
        for plain, product in zip(before["products"], after["products"], strict=True):
            assert plain["estimator_error"] == 0
            assert product["operand_error"] == plain["operand_error"]
            has_part = rounds and product["gemm"] == "wgrad"
            assert (product["estimator_error"] > 0.1) == has_part, (after["layer"], product)
    words = ("--group", "source", "--recipe", "fp4_dge", "--json", "e.json")
    assert "\nestimator " in succeeded("attribute", "run", *words, cwd=folder)
    (sources,) = json.loads((folder / "e.json").read_text())["groups"]
    assert max(sources["parts"], key=lambda part: part["alone"])["name"] == "estimator"


def test_attention_is_said_not_to_be_replayed(folder: Path) -> None:
    printed, found = whatif(folder, "--recipe", "fp8_attention", "--recipe", "te_delayed")
    sentence = "recipe fp8_attention quantizes attention as well, which is not replayed"
    assert printed.count(sentence) == 1
    remarks = {one["recipe"]: one["remarks"] for one in found["recipes"]}
    assert any(sentence in remark for remark in remarks["fp8_attention"])
    assert not any("attention as well" in remark for remark in remarks["te_delayed"])


def test_a_checkpoint_beside_its_run_file_is_the_run(folder: Path) -> None:
    by_run = whatif(folder, "--recipe", "te_delayed")
    text = succeeded("whatif", "run/checkpoint.safetensors", "--recipe", "te_delayed", cwd=folder)
    assert text.splitlines()[1:] == by_run[0].splitlines()[1:]
    assert "24 tensors have no amax history in this checkpoint that fits" in text
    assert by_run[1]["recipes"][0]["remarks"]
    other = succeeded("whatif", "run", "--recipe", "te_delayed", "--batch", 2, cwd=folder)
    assert "tokens of step 4" in other and other.splitlines()[4:] != text.splitlines()[4:]


def test_accumulators_beside_the_loss_of_the_run(folder: Path) -> None:
    names = ["sm89_mma_fp8", "sm90_wgmma_fp8", "sm100_f8f6f4"]
    words = [word for name in names for word in ("--accumulator", name)]
    text, found = whatif(folder, *words)
    rows = found["accumulators"]
    evaluated = json.loads(succeeded("eval", "run", "--json", cwd=folder))
    assert [row["accumulator"] for row in rows] == ["", *names]
    assert rows[0]["loss"] == rows[2]["loss"] == evaluated["loss"]
    assert rows[2]["difference_rms"] == 0 < rows[1]["difference_rms"]
    assert [row["evidence"] for row in rows[1:]] == ["replayed", "measured", "published"]
    assert "recipes" not in found and "8 of 9" in text


def test_every_tensor_of_the_step_is_told(folder: Path) -> None:
    text, found = whatif(folder, "--tensors")
    rows = found["tensors"]
    assert {row["phase"] for row in rows} >= {"forward", "backward"}
    lines = text[text.index("phase     layer") :].splitlines()
    assert len(lines) == len(rows) + 1
    (attended,) = [
        row
        for row in rows
        if (row["layer"], row["operation"]) == ("layers.1.attention", "attention_forward")
        and row["output"] == "out"
    ]
    assert 0 < attended["deviation"] < attended["amax"] and attended["nonfinite"] == 0
    assert "recipes" not in found


def test_units_are_said_and_what_is_not_quantized(folder: Path) -> None:
    text, found = whatif(folder, "--recipe", "infir2", "--layer", "*")
    assert "as fractions of the\nexact product" in text and "SQNR in dB" in text
    assert "recipe infir2: 1 of 9 layers stay in bf16, and their errors are" in text
    assert text.count("rounding of results: lm_head\n") == 1
    layers = found["recipes"][0]["layers"]
    assert [one["layer"] for one in layers if not one["quantized"]] == ["lm_head"]
    documented = (Path(__file__).parents[2] / "src/diagnosis/README.md").read_text()
    keys = {key for one in layers for part in ("operands", "products") for key in one[part][0]}
    for key in keys - {"slot", "quantizer", "exact", "gemm", "spec"}:
        assert f"`{key}`" in documented, key


def test_what_is_missing_is_named(copy: Path) -> None:
    recipe = ("--recipe", "infir2")

    def message(*words: object) -> str:
        before = sorted(path.name for path in copy.iterdir())
        text = refused("whatif", *words, cwd=copy)
        assert sorted(path.name for path in copy.iterdir()) == before
        return text

    for words, expected in {
        (): "RUN is missing; usage: fp8lab ",
        ("run",): "give --recipe NAME, --accumulator NAME or --tensors",
        ("run", "--recipe", "infir3"): "did you mean 'infir2'?",
        ("run", *recipe, *recipe): "two recipes are called 'infir2'",
        ("run", "--accumulator", "sm89_mma_fp9"): "did you mean 'sm89_mma_fp8'?",
        ("run", "--accumulator", "sm89_mma_fp8/fast"): "accepted: a name alone",
        ("run", "--accumulator", "sm100_mxf4nvf4"): "no linear layer of recipe mine can use it",
        ("run", "--accumulator", "sm90_bf16", "--worst", 3): "--worst is for --recipe",
        ("run", *recipe, "--worst", -1): "--worst -1: accepted",
        ("run", *recipe, "--batch", 0): "--batch 0: accepted: 1 to 100000",
        ("run", *recipe, "--layer", "layers.2.*"): "layer 'layers.2.*': the model has no such",
        ("run", "--tensors", "--layer", "lm_head"): "--layer is for --recipe",
        ("run", *recipe, "--backend", "truth"): "--backend truth: accepted: cpu or cuda",
        ("run", *recipe, "--json", "none/o.json"): "none",
        ("none", *recipe): "none",
    }.items():
        assert expected in message(*words), words
    rotated = '[slots.x]\ntransform = "hadamard:48"\n[slots.w]\ntransform = "hadamard:48"\n'
    rotated += '[slots.dy]\ntransform = "hadamard:48"\n'
    (copy / "mine.toml").write_text(RECIPE + rotated)
    assert "hadamard:48" in message("run", "--recipe", "mine.toml")
    shutil.rmtree(copy / "run")
    succeeded("train", "--config", "run.toml", "--out", "run", cwd=copy)
    (copy / "held_out.txt").write_text("Something else.\n\n" * 30)
    text = message("run", "--accumulator", "sm90_bf16")
    assert "the evaluation data of stage s was" in text
    shutil.copytree(copy / "run", copy / "alone")
    (copy / "alone/run.h5").unlink()
    assert "no run.h5 lies beside" in message("alone", *recipe)
    assert "there is no such file or folder" in message("alone/none.safetensors", *recipe)
    (copy / "train.txt").write_text("Something else.\n\n" * 30)
    assert "the training data of stage s was" in message("run", *recipe)
    succeeded("train", "--config", "run.toml", "--out", "second", "--set", "seed=2", cwd=copy)
    shutil.copy(copy / "second/checkpoint.safetensors", copy / "run/checkpoint.safetensors")
    assert "a checkpoint of another run" in message("run", *recipe)


def test_a_gradient_is_attributed(folder: Path) -> None:
    words = [word for name in GROUPS for word in ("--group", name)]
    text = succeeded("attribute", "run", *words, "--json", "a.json", cwd=folder)
    found = json.loads((folder / "a.json").read_text())
    assert found["recipe"] == found["attributed_recipe"] == "mine"
    assert 0.01 < found["error"] < 0.3 and found["error_with_nothing"] < 1e-6
    groups = {group["group"]: group for group in found["groups"]}
    assert list(groups) == GROUPS
    assert len(groups["layer"]["parts"]) == 9
    for group in groups.values():
        table = text[text.index(f"\n{group['group']} ") :].strip().splitlines()
        parts = sorted(group["parts"], key=lambda part: part["without"])
        assert table[1].startswith(parts[0]["name"])
        rest = 1 - sum(part["share_without"] for part in parts)
        assert group.get("remainder_without", rest) == pytest.approx(rest)
    assert text.count("\nremainder: what the shares of a group leave of 100 %") == 1
    assert "Shares are percentages of the squared error" in text
    assert all(part["alone"] is None for part in groups["scale"]["parts"])
    assert max(groups["source"]["parts"], key=lambda part: part["alone"])["name"] == "element cast"
    words = ["--layer", "layers.*.mlp.down", "--json", "b.json"]
    succeeded("attribute", "run", *words, cwd=folder)
    (some,) = json.loads((folder / "b.json").read_text())["groups"]
    down = [part for part in groups["layer"]["parts"] if part["name"].endswith("mlp.down")]
    assert some["group"] == "layer" and some["parts"] == down
    other = succeeded("attribute", "run", "--recipe", "te_delayed", cwd=folder)
    assert "\nsource " in other and "\nlayer " not in other
    assert "under recipe te_delayed" in other and "24 tensors have no amax history" in other


def test_fewer_sequences_are_the_first_of_the_micro_batch(copy: Path) -> None:
    still = RUN.replace("[[stages]]", "[[stages]]\nlearning_rate.peak = 1e-30")
    found = {}
    for size in (1, 2):
        text = still.replace("micro_batch_sequences = 1", f"micro_batch_sequences = {size}")
        (copy / "run.toml").write_text(text)
        succeeded("train", "--config", "run.toml", "--out", f"of{size}", cwd=copy)
        for count in range(1, size + 1):
            words = [f"of{size}", "--recipe", "te_current", "--sequences", count]
            succeeded("whatif", *words, "--json", "o.json", cwd=copy)
            found[size, count] = json.loads((copy / "o.json").read_text())
            assert found[size, count]["sequences"] == count
    assert found[2, 1]["recipes"] == found[1, 1]["recipes"]
    assert found[2, 2]["recipes"] != found[1, 1]["recipes"]
    for count in (0, 3):
        message = refused("attribute", "of2", "--sequences", count, cwd=copy)
        assert "at most the 2 of a micro-batch, and a divisor of the 2 of a step" in message


def test_what_attribute_cannot_do_is_refused(copy: Path) -> None:
    for words, expected in {
        (): "RUN is missing; usage: fp8lab ",
        ("run", "--recipe", "infir3"): "did you mean 'infir2'?",
        ("run", "--batch", 100001): "--batch 100001: accepted: 1 to 100000",
        ("run", "--backend", "truth"): "--backend truth: accepted: cpu or cuda",
        ("run", "--backend", "gpu"): "--backend gpu: accepted: cpu or cuda",
        ("run", "--layer", "mlp.down"): "layer 'mlp.down': the model has no such",
        ("run", "--json", "none/o.json"): "none",
        ("run", "more"): "too many arguments",
    }.items():
        assert expected in refused("attribute", *words, cwd=copy), words


@pytest.mark.parametrize(("command", "sequences"), [("whatif", 16), ("attribute", 2)])
def test_a_long_diagnosis_begins_with_its_time(command: str, sequences: int, copy: Path) -> None:
    text = RUN.replace("steps = 2", "steps = 1").replace(
        "_sequences = 2", f"_sequences = {sequences}"
    )
    text = text.replace("micro_batch_sequences = 1", f"micro_batch_sequences = {sequences}")
    (copy / "run.toml").write_text(text.replace("sequence_length = 128", "sequence_length = 1024"))
    succeeded("train", "--config", "run.toml", "--out", "long", cwd=copy)
    recipes = ["infir2", "te_current", "mxfp8", "infir2_tensor"]
    words = [word for name in recipes for word in ("--recipe", name)]
    words = words if command == "whatif" else words[:2]
    work = r"8 layers under 4 recipes" if command == "whatif" else r"\d+ gradients"
    # One thread: what takes less than five seconds has no estimate.
    arguments = [PROGRAM, command, "long", *words, "--threads", "1"]
    with subprocess.Popen(arguments, cwd=copy, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if line.startswith(f"{command}: "):
                break
        process.kill()
    assert re.fullmatch(rf"{command}: {work}, about \d+ s\n", lines[-1]), lines
    # What is estimated has not begun.
    assert all(re.match("opening|estimating|fp8lab: note", line) for line in lines[:-1]), lines
