"""The program as its users meet it: exit statuses, messages, and what it writes.

Run by ctest, which passes the program's path in FP8LAB_PROGRAM.
"""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from program import PROGRAM, refused, run, succeeded

GOLDEN = Path(__file__).resolve().parents[1] / "golden"

RECIPE = """\
name = "mine"
[slots.default]
format = "e4m3fn"
[gemm]
accumulator = "sm90_wgmma_fp8"
schedule = "promote:128"
"""


@pytest.fixture(name="matrices")
def fixture_matrices(tmp_path: Path) -> Path:
    generator = np.random.default_rng(7)
    np.save(tmp_path / "a.npy", generator.standard_normal((24, 256), dtype=np.float32))
    np.save(tmp_path / "b.npy", generator.standard_normal((40, 256), dtype=np.float32))
    return tmp_path


def test_help_and_version() -> None:
    for arguments in ([], ["--help"], ["help"], ["-h"]):
        assert "validate" in succeeded(*arguments)
    for word in ("--version", "-v", "version"):
        assert succeeded(word).startswith("fp8lab ") and succeeded(word).count("\n") == 1
    commands = ["info", "recipes", "train", "data", "ablate", "export", "report", "validate"]
    commands += ["gemm", "quantize", "bench", "eval", "generate", "doctor", "compare", "verify"]
    commands += ["whatif", "attribute", "certify"]
    for command in commands:
        assert "--help" in succeeded(command, "--help")


def test_unknown_words() -> None:
    message = refused("trian")
    assert "unknown command 'trian'" in message and "train, " in message
    assert refused("mxfp8").endswith("it is a recipe: fp8lab recipes show mxfp8\n")
    assert "--colour" in refused("info", "--colour")
    assert "--jso" in refused("info", "--jso")  # no abbreviations
    assert "too many arguments" in refused("recipes", "show", "bf16", "more")
    assert "accepted: list, show, check" in refused("recipes", "paint")
    assert "accepted: codec, golden" in refused("validate", "everything")
    assert "accepted: emulation, gemm, attention, copy, quantize, load, train" in refused(
        "bench", "everything"
    )
    assert "WHAT is missing; accepted: codec, golden, " in refused("validate")
    assert "--a is missing" in refused("gemm", "--spec", "sm90_bf16")


def test_complaints_are_short_and_need_no_reader(tmp_path: Path) -> None:
    recipe = tmp_path / "long.toml"
    recipe.write_text("z" * 1_000_000 + " = 1\n" + RECIPE)
    said = refused("recipes", "check", recipe)
    assert "unknown key 'zzz" in said and "accepted: name" in said and len(said) < 3000
    with open("/dev/full", "w", encoding="utf-8") as full:
        result = subprocess.run([PROGRAM, "eval", "nothing"], stderr=full, check=False)
    assert result.returncode == 2


def test_info() -> None:
    facts = json.loads(succeeded("info", "--json"))
    assert "portable" in facts["simd"] and facts["simd_in_use"] in facts["simd"]
    assert facts["threads"] >= 1
    assert "infir2" in facts["recipes"]
    assert facts["hdf5"].count(".") == 2
    text = succeeded("info")
    assert "hdf5" in text and len(text.splitlines()) < 16 and "tensor cores 33" in text
    text = succeeded("info", "--accumulators")
    profiles = {row["name"]: row for row in facts["profiles"]}
    assert len(profiles) == 33
    for name, row in profiles.items():
        assert name in text and row["arithmetic"] in text and row["source"] in text
        assert row["evidence"] in {"measured", "replayed", "published", "definition"}
    assert profiles["sm90_wgmma_fp8"]["parameters"] == {
        "products": 32,
        "fraction_bits": 13,
        "accumulator": "fp32",
        "mantissa_bits": 13,
    }
    assert profiles["sm100_mxf4nvf4"]["evidence"] == "published"
    assert profiles["sm100_mma_sync_fp8"]["evidence"] == "replayed"
    assert "same_as" not in profiles["sm90_bf16"]
    assert profiles["sm100_bf16"]["same_as"] == "sm90_bf16"
    assert profiles["cdna3_fp8"]["operands"] == "e4m3fnuz e5m2fnuz"
    assert profiles["cdna3_fp8"]["parameters"]["late_fraction_bits"] == 31
    assert {"format": "e4m3", "width": 16} in profiles["sm100_mxf4nvf4"]["parameters"][
        "block_scales"
    ]


def test_recipes() -> None:
    listed = json.loads(succeeded("recipes", "list", "--json"))
    names = [row["name"] for row in listed]
    assert {"bf16", "infir2", "te_delayed"} <= set(names)
    by_folder = [(row["folder"], row["name"]) for row in listed]
    assert by_folder == sorted(by_folder)
    assert len(set(names)) == len(names) and {"halo0_fp6", "halo2_int8"} <= set(names)
    table = succeeded("recipes", "list")
    assert "\ndeepseek_v3/  DeepSeek-V3\n  deepseek_v3  " in table
    assert "infir2                   measured" in table
    for row in listed:
        assert row["name"] in table and row["summary"] in table
        assert row["system"] and row["source"] and row["evidence"] in table
        shown = json.loads(succeeded("recipes", "show", row["name"], "--json"))
        assert shown["hash"] == row["hash"]
    text = succeeded("recipes", "show", "infir2", "--in", "200")
    assert "pow2 enc_floor" in text and "promote:128" in text
    assert "warning: fprop.x: K = 200 is not a multiple of 128" in text
    message = refused("recipes", "show", "infir3")
    assert "unknown recipe 'infir3' (did you mean 'infir2'?)" in message and len(message) < 200
    assert "fp8lab recipes list" in message


def test_recipes_check(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(RECIPE)
    assert "sm90_wgmma_fp8" in succeeded("recipes", "check", file)
    file.write_text(RECIPE + "tile = 3\n")
    assert f"{file}:7:1: unknown key 'gemm.tile'" in refused("recipes", "check", file)
    file.write_text("name = [")
    assert f"{file}:1:" in refused("recipes", "check", file)
    file.write_text(RECIPE.replace('"e4m3fn"', '"e4m3fn"\ntile = "1x96"'))
    message = refused("recipes", "check", file)
    assert "gemm.fprop.schedule" in message and "accepted" in message
    assert "cannot open" in refused("recipes", "check", tmp_path / "missing.toml")
    file.write_bytes(b'name = "\xff\xfe"\n')
    assert str(file) in refused("recipes", "check", file)


def test_a_file_with_axes_is_several_recipes(tmp_path: Path) -> None:
    grid = tmp_path / "grid.toml"
    axis = '[axis.format]\nm3.slots.default.format = "e8m3"\nm4.slots.default.format = "e8m4"\n'
    grid.write_text('base = "bf16"\nname = "cut_{format}"\n' + axis)
    found = json.loads(succeeded("recipes", "check", grid, "--json"))
    assert [recipe["name"] for recipe in found] == ["cut_m3", "cut_m4"]
    assert found[1]["linear"]["slots"]["fprop.x"]["format"] == "e8m4"
    text = succeeded("recipes", "check", grid)
    assert "recipe cut_m3 (" in text and "recipe cut_m4 (" in text
    message = refused("recipes", "show", grid)
    assert f"{grid}:3:" in message and "of 2 recipes" in message and "cut_m3, cut_m4" in message
    assert "of 2 recipes" in refused("train", "--preset", "quickstart", "--set", f"recipe={grid}")
    shown = succeeded("recipes", "show", "halo2_int8")
    assert "recipe halo2_int8 (" in shown and "left:hadamard:full" in shown
    assert "(did you mean 'halo2_int8'?)" in refused("recipes", "show", "halo2_int")


def test_train_refusals(tmp_path: Path) -> None:
    assert "either --config FILE or --preset" in refused("train", cwd=tmp_path)
    assert "unknown preset 'quick'" in refused("train", "--preset", "quick", cwd=tmp_path)
    file = tmp_path / "run.toml"
    file.write_text('model = "tiny"\n[[stages]]\nname = "a"\nstep = 3\n')
    message = refused("train", "--config", file, cwd=tmp_path)
    assert f"{file}:4:1: unknown key 'stages.step'" in message
    file.write_text('model = "tiny"\n[[stages]\n')
    assert f"{file}:2:" in refused("train", "--config", file, cwd=tmp_path)
    preset = ["train", "--preset", "quickstart"]
    assert "unknown recipe 'bf17'" in refused(*preset, "--recipe", "bf17", cwd=tmp_path)
    assert "unknown key 'sead'" in refused(*preset, "--set", "sead=1", cwd=tmp_path)
    assert "KEY=VALUE" in refused(*preset, "--set", "seed", cwd=tmp_path)
    assert sorted(tmp_path.iterdir()) == [file]


def test_gemm_implementation(matrices: Path) -> None:
    words = ["gemm", "--spec", "sm90_bf16", "--out", matrices / "d.npy"]
    words += ["--a", matrices / "a.npy", "--b", matrices / "b.npy", "--implementation"]
    assert "accepted: own or cublaslt" in refused(*words, "cutlass")
    assert "cublaslt needs backend 'cuda', found 'cpu'" in refused(*words, "cublaslt")
    succeeded(*words, "own")


def test_bench_train(tmp_path: Path) -> None:
    words = ["--preset", "quickstart", "--recipe", "infir2", "--set", "model=tiny", "--repeats", 1]
    words += ["--set", "stages.*.sequence_length=32", "--json", "bench.json"]
    text = succeeded("bench", "train", *words, cwd=tmp_path)
    bench = json.loads((tmp_path / "bench.json").read_text())["train"]
    assert bench["recipe"] == "infir2" and bench["tokens"] == 4 * 32
    plain, hashed, measured = bench["steps"]
    assert measured["median_seconds"] > 0 and len(plain["seconds"]) == 1
    assert f"{hashed['tokens_per_second']:.0f} tokens/s" in text
    kinds = {kind["operation"]: kind for kind in bench["kinds"]}
    assert sum(kind["class"] == "GEMMs" for kind in kinds.values()) >= 2
    assert all(kind["calls"] > 0 and kind["seconds"] > 0 for kind in kinds.values())
    assert not any(kind["class"] == "measurement" for kind in kinds.values())
    shards = ["--set", "parallel.shards=4", "--set", "stages.*.micro_batch_sequences=1"]
    succeeded("bench", "train", *words, *shards, cwd=tmp_path)
    of_shards = json.loads((tmp_path / "bench.json").read_text())["train"]["kinds"]
    gemms = {kind["operation"]: kind["calls"] for kind in of_shards if kind["class"] == "GEMMs"}
    assert gemms == {name: 4 * kinds[name]["calls"] for name in gemms}
    assert "give either --config FILE or --preset NAME" in refused("bench", "train")
    truth = ["bench", "train", "--preset", "quickstart", "--set", "backend=truth"]
    assert "the run has backend truth; accepted: --backend cpu or cuda" in refused(*truth)


def test_missing_gpu(matrices: Path) -> None:
    if json.loads(succeeded("info", "--json"))["cuda"] == "compiled in":
        pytest.skip("this build has CUDA")
    words = ["--spec", "infir2:fprop", "--a", matrices / "a.npy", "--b", matrices / "b.npy"]
    out = matrices / "d.npy"
    words += ["--out", out, "--backend"]
    assert "cuda" in refused("gemm", *words, "cuda")
    assert "cuda" in refused("gemm", *words, "cuda", "--implementation", "cublaslt")
    assert "no CUDA backend" in refused("bench", "gemm")
    assert "--backend tpu: accepted: cpu or cuda" in refused("gemm", *words, "tpu")
    assert "cuda" in refused("train", "--preset", "quickstart", "--backend", "cuda", cwd=matrices)
    assert not out.exists() and not (matrices / "runs").exists()


def test_gemm_of_codes(tmp_path: Path) -> None:
    """Codes of small integers: every accumulator returns the exact product."""
    one = {0: 0x00, 1: 0x38, 2: 0x40, -1: 0xB8, -2: 0xC0}
    generator = np.random.default_rng(3)
    a = generator.choice([0, 1, 2, -1, -2], size=(5, 64))
    b = generator.choice([0, 1, 2, -1, -2], size=(7, 64))
    code = np.vectorize(one.__getitem__)
    np.save(tmp_path / "a.npy", code(a).astype(np.uint8))
    np.save(tmp_path / "b.npy", code(b).astype(np.uint8))
    words = ["--a", tmp_path / "a.npy", "--b", tmp_path / "b.npy", "--out", tmp_path / "d.npy"]
    operands = ["--operand-a", "e4m3fn", "--operand-b", "e4m3fn"]
    for unit in ("sm90_wgmma_fp8", "sm90_mma_sync_fp8", "ideal_exact", "ideal_fp32", "sm90_bf16"):
        text = succeeded("gemm", "--spec", f"{unit}/fast/fp32", *operands, *words)
        assert "(5, 7) from K = 64" in text
        assert np.array_equal(np.load(tmp_path / "d.npy"), (a @ b.T).astype(np.float32))
    np.save(tmp_path / "sa.npy", np.full((5, 1), 0.5, np.float32))
    np.save(tmp_path / "sb.npy", np.arange(1, 8, dtype=np.float32))
    scales = ["--scale-a", tmp_path / "sa.npy", "--scale-b", tmp_path / "sb.npy"]
    rows = ["--operand-a", "e4m3fn/row", "--operand-b", "e4m3fn/row"]
    succeeded("gemm", "--spec", "sm90_wgmma_fp8/fast/fp32", *rows, *words, *scales)
    expected = 0.5 * (a @ b.T) * np.arange(1, 8)
    assert np.array_equal(np.load(tmp_path / "d.npy"), expected.astype(np.float32))


def test_gemm_of_values(matrices: Path) -> None:
    files = ["--a", matrices / "a.npy", "--b", matrices / "b.npy", "--out", matrices / "d.npy"]
    reference = np.load(matrices / "a.npy") @ np.load(matrices / "b.npy").T
    limits = {"infir2:fprop": 0.06, "mxfp8:fprop": 0.06, "sm90_bf16/fast/fp32": 0.01}
    for spec, error in limits.items():
        succeeded("gemm", "--spec", spec, *files)
        result = np.load(matrices / "d.npy")
        assert result.dtype == np.float32 and result.shape == (24, 40)
        relative = np.linalg.norm(result - reference) / np.linalg.norm(reference)
        assert 0 < relative < error, (spec, relative)


def test_gemm_with_every_accumulator(matrices: Path, tmp_path: Path) -> None:
    files = ["--a", matrices / "a.npy", "--b", matrices / "b.npy", "--out", matrices / "d.npy"]
    reference = np.load(matrices / "a.npy") @ np.load(matrices / "b.npy").T
    results = {}
    for row in json.loads(succeeded("info", "--json"))["profiles"]:
        succeeded("gemm", "--spec", row["name"] + "/fp32", *files)
        results[row["name"]] = np.load(matrices / "d.npy")
        relative = np.linalg.norm(results[row["name"]] - reference) / np.linalg.norm(reference)
        # e2m1 elements have one mantissa bit, e4m3 three, and the rest seven or more.
        operands = row["operands"].split()[0]
        limit = {"e2m1": 0.2, "e4m3fn": 0.06, "e4m3fnuz": 0.06}.get(operands, 0.005)
        assert relative < limit, (row["name"], relative)
        recipe = RECIPE.replace("sm90_wgmma_fp8", row["name"])
        if operands == "e4m3fn" and "block_scales" not in row["parameters"]:
            (tmp_path / "mine.toml").write_text(recipe)
            succeeded("gemm", "--spec", f"{tmp_path / 'mine.toml'}:fprop", *files)
    bits = {name: result.tobytes() for name, result in results.items()}
    assert bits["sm90_wgmma_fp8"] != bits["sm90_mma_sync_fp8"]
    assert bits["sm90_wgmma_fp8"] != bits["sm89_mma_fp8"]


def test_gemm_alpha_beta_and_bias(matrices: Path) -> None:
    files = ["--a", matrices / "a.npy", "--b", matrices / "b.npy", "--out", matrices / "d.npy"]
    spec = ["--spec", "sm90_bf16/fp32"]
    succeeded("gemm", *spec, *files)
    product = np.load(matrices / "d.npy")
    c = np.arange(24 * 40, dtype=np.float32).reshape(24, 40)
    bias = np.arange(24, dtype=np.float32)
    np.save(matrices / "c.npy", c)
    np.save(matrices / "bias.npy", bias)
    more = ["--c", matrices / "c.npy", "--bias", matrices / "bias.npy", "--alpha", 2, "--beta", 0.5]
    succeeded("gemm", *spec, *files, *more)
    expected = 2.0 * product.astype(np.float64) + 0.5 * c  # exact; rounded to FP32, then the bias
    expected = expected.astype(np.float32) + bias[:, np.newaxis]
    assert np.array_equal(np.load(matrices / "d.npy"), expected)


def test_library_call_refusals(matrices: Path) -> None:
    a, b, out = matrices / "a.npy", matrices / "b.npy", matrices / "d.npy"
    np.save(a, np.ones((32, 256), np.float32))
    np.save(b, np.ones((48, 256), np.float32))

    def call(mode: str, *more: object) -> str:
        spec = f"cublaslt_h200:{mode}"
        message = refused("gemm", "--spec", spec, "--a", a, "--b", b, "--out", out, *more)
        assert not out.exists()
        return message

    assert "unknown mode 'mx'" in call("mx")
    assert "unknown word 'slow'" in call("tensor/slow")
    assert "no fast accumulation" in call("1x128x1x128/fast")
    assert "one schedule" in call("bf16/fast")
    assert "output e4m3fn is for scales by tensor" in call("row/e4m3fn")
    assert "needs an e5m2 operand" in call("tensor/e5m2")
    both = ["--operand-a", "e5m2/tensor", "--operand-b", "e5m2/tensor"]
    assert "refuses e5m2 by e5m2" in call("tensor", *both)
    assert "scales by 1x128" in call("1x128x128x128", "--operand-a", "e4m3fn/row")
    assert "never splits K" in call("row/split_k=2")
    assert "leaves range" in call("tensor/split_k=9")
    assert "--d-scale is for outputs" in call("tensor", "--d-scale", 2)
    assert "--beta needs --c" in call("tensor", "--beta", 2)
    np.save(matrices / "c.npy", np.zeros((32, 49), np.float32))
    assert "no effect without --beta" in call("tensor", "--c", matrices / "c.npy")
    assert "expected (32, 48)" in call("tensor", "--c", matrices / "c.npy", "--beta", 2)
    assert "expected (1, 32)" in call("tensor", "--bias", matrices / "c.npy")
    np.save(matrices / "a.npy", np.zeros((32, 250), np.float32))
    np.save(matrices / "b.npy", np.zeros((48, 250), np.float32))
    assert "K = 250; accepted: multiples of 16" in call("tensor")
    np.save(a, np.zeros((17, 256), np.float32))
    np.save(b, np.zeros((48, 256), np.float32))
    assert "M = 17; accepted: multiples of 16" in call("row")
    np.save(a, np.zeros((1000, 256), np.float32))
    succeeded("gemm", "--spec", "cublaslt_h200:row", "--a", a, "--b", b, "--out", out)


def test_gemm_refusals(matrices: Path) -> None:
    out = matrices / "d.npy"
    a, b = matrices / "a.npy", matrices / "b.npy"

    def gemm(spec: str, first: Path, second: Path, *more: object) -> str:
        message = refused("gemm", "--spec", spec, "--a", first, "--b", second, "--out", out, *more)
        assert not out.exists()
        return message

    np.save(matrices / "short.npy", np.zeros((40, 255), np.float32))
    assert "same K" in gemm("infir2:fprop", a, matrices / "short.npy")
    assert "accepted: fprop, dgrad, wgrad" in gemm("infir2:bprop", a, b)
    assert "unknown accumulator" in gemm("sm100", a, b)
    assert "unknown recipe" in gemm("infir3:fprop", a, b)
    assert "unknown word '1x'" in gemm("sm90_wgmma_fp8", a, b, "--operand-a", "e4m3fn/1x")
    assert "accepted" in gemm("sm90_wgmma_fp8/fast", a, b, "--operand-a", "e4m3fn/1x128")
    assert "delayed scaling" in gemm("te_delayed:fprop", a, b)
    codes, scale = matrices / "codes.npy", matrices / "scale.npy"
    np.save(codes, np.full((24, 256), 0x21, np.uint8))
    np.save(scale, np.full((24, 2), 0.006975, np.float32))
    few = gemm("ideal_exact", codes, b, "--operand-a", "e2m1")
    assert "codes.npy: element (0, 0) is 0x21, but codes of e2m1 have 4 bits" in few
    scaled = ["--operand-a", "e4m3fn/1x128/pow2", "--scale-a", scale]
    assert "scale.npy: scale 0.006975 of tile (0, 0) cannot be stored by e4m3fn/1x128/pow2" in gemm(
        "sm90_wgmma_fp8/promote:128/fp32", codes, b, *scaled
    )
    assert "takes block scales and a is e4m3fn" in gemm(
        "sm100_mxf8f6f4", a, b, "--operand-a", "e4m3fn"
    )
    assert "cannot multiply a" in gemm("sm90_f16", a, b, "--operand-a", "bf16")
    assert "cannot multiply b" in gemm("sm100_mxf4nvf4", a, b, "--operand-b", "e4m3fn/mx32")
    assert "takes no block scales" in gemm("sm90_f16/in_instruction", a, b)
    assert "cannot open" in gemm("infir2:fprop", a, matrices / "none.npy")
    np.save(matrices / "double.npy", np.zeros((40, 256)))
    assert "float32" in gemm("infir2:fprop", a, matrices / "double.npy")
    np.save(matrices / "empty.npy", np.zeros((0, 256), np.float32))
    assert "no elements" in gemm("infir2:fprop", a, matrices / "empty.npy")
    np.save(matrices / "codes.npy", np.zeros((40, 256), np.uint8))
    assert "needs scales" in gemm("infir2:fprop", a, matrices / "codes.npy")
    np.save(matrices / "scales.npy", np.ones((1, 3), np.float32))
    message = gemm("infir2:fprop", a, matrices / "codes.npy", "--scale-b", matrices / "scales.npy")
    assert "needs f32 (1, 2)" in message
    assert "scales are for uint8 codes" in gemm(
        "infir2:fprop", a, b, "--scale-b", matrices / "scales.npy"
    )


def test_values_that_are_no_numbers_are_counted(matrices: Path, tmp_path: Path) -> None:
    """They are arithmetic that the emulation is for, so that they are a note and no refusal."""
    a = np.load(matrices / "a.npy")
    bits = (a.view(np.uint32) >> 16).astype(np.uint16)
    a[2, 5], a[3, 0] = np.nan, -np.inf
    bits[2, 5], bits[3, 0] = 0x7FC0, 0xFF80
    words = ["--spec", "infir2:fprop", "--b", matrices / "b.npy", "--out", tmp_path / "d.npy"]
    for name, values in (("floats", a), ("bits", bits)):
        file = tmp_path / f"{name}.npy"
        np.save(file, values)
        said = f"{file}: 2 of {a.size} elements are NaN or infinite, the first at (2, 5)"
        note = f"fp8lab: note: {said}\n"
        for command in (
            ["gemm", "--a", file, *words],
            ["quantize", file, "--spec", "infir2:fprop.x", "--out", tmp_path / "codes.npy"],
        ):
            result = run(*command)
            assert result.returncode == 0 and result.stderr == note, result.stderr
    assert "note" not in run("gemm", "--a", matrices / "a.npy", *words).stderr


def test_results_do_not_take_the_place_of_operands(matrices: Path) -> None:
    a, b = matrices / "a.npy", matrices / "b.npy"
    before = a.read_bytes()
    alias = matrices / ".." / matrices.name / "a.npy"
    for out in (a, alias):
        words = ("gemm", "--spec", "sm90_wgmma_fp8", "--a", a, "--b", b, "--out", out)
        assert "is the file of --a too" in refused(*words)
        assert "is the file of --input too" in refused(
            "quantize", a, "--spec", "e5m2", "--out", out
        )
    two = ("--out", matrices / "codes.npy", "--dequantized", matrices / "codes.npy")
    assert "is the file of --out too" in refused("quantize", a, "--spec", "e5m2", *two)
    assert a.read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello",
        b"\x93NUMPY\x01\x00",
        b"\x93NUMPY\x01\x00\xff\xff{",
        b"\x93NUMPY\x01\x00" + struct.pack("<H", 20) + b"{'descr': 3, 'shape'",
        b"\x93NUMPY\x09\x00" + b"\x00" * 64,
    ],
)
def test_malformed_npy(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x.npy"
    file.write_bytes(content)
    assert str(file) in refused("quantize", file, "--spec", "e4m3fn/tensor")


def test_npy_shorter_than_its_shape(tmp_path: Path) -> None:
    file = tmp_path / "x.npy"
    np.save(file, np.zeros((8, 8), np.float32))
    file.write_bytes(file.read_bytes()[:-1])
    assert str(file) in refused("quantize", file, "--spec", "e4m3fn/tensor")


def test_quantize(matrices: Path) -> None:
    x = np.load(matrices / "a.npy")
    codes, values = matrices / "codes.npy", matrices / "values.npy"
    assert (
        succeeded(
            "quantize",
            matrices / "a.npy",
            "--recipe",
            "infir2",
            "--slot",
            "fprop.x",
            "--out",
            codes,
            "--dequantized",
            values,
        )
        == ""
    )
    scales = np.load(matrices / "codes.scale.npy")
    assert np.load(codes).dtype == np.uint8 and np.load(codes).shape == x.shape
    assert scales.shape == (24, 2) and np.all(np.log2(scales) == np.round(np.log2(scales)))
    relative = np.linalg.norm(np.load(values) - x) / np.linalg.norm(x)
    assert 0 < relative < 0.05
    report = json.loads(
        succeeded("quantize", matrices / "a.npy", "--spec", "e4m3fn/1x128/pow2/enc_floor", "--json")
    )
    assert abs(report["sqnr_db"] + 20 * np.log10(relative)) < 1e-3
    assert report["amax"] == np.abs(x).max()
    # What is printed is a spec, and so is an operand of a recipe.
    for spec in ("infir2:fprop.x", report["operand"], "e4m3fn/1x128/pow2"):
        again = succeeded("quantize", matrices / "a.npy", "--spec", spec, "--json")
        assert json.loads(again) == report
    transposed = succeeded(
        "quantize", matrices / "a.npy", "--spec", "infir2:wgrad.x", "--transpose", "--json"
    )
    slot = ["--recipe", "infir2", "--slot", "wgrad.x"]
    assert transposed == succeeded("quantize", matrices / "a.npy", *slot, "--json")
    # The second orientation is made from the transpose, here from the requantized first one.
    succeeded(
        "quantize",
        matrices / "a.npy",
        "--recipe",
        "deepseek_v3",
        "--slot",
        "wgrad.x",
        "--out",
        codes,
    )
    assert np.load(codes).shape == (256, 24)
    # What quantize writes is what gemm reads.
    succeeded(
        "quantize", matrices / "a.npy", "--recipe", "infir2", "--slot", "fprop.x", "--out", codes
    )
    common = ["--spec", "infir2:fprop", "--b", matrices / "b.npy"]
    succeeded("gemm", *common, "--a", matrices / "a.npy", "--out", matrices / "d1.npy")
    succeeded(
        "gemm",
        *common,
        "--a",
        codes,
        "--scale-a",
        matrices / "codes.scale.npy",
        "--out",
        matrices / "d2.npy",
    )
    assert np.array_equal(np.load(matrices / "d1.npy"), np.load(matrices / "d2.npy"))


def test_quantize_refusals(matrices: Path) -> None:
    x = matrices / "a.npy"
    assert "either --spec" in refused("quantize", x)
    assert "either --spec" in refused("quantize", x, "--spec", "e5m2", "--recipe", "bf16")
    assert "--slot is missing" in refused("quantize", x, "--recipe", "infir2")
    assert "accepted: fprop.x" in refused("quantize", x, "--recipe", "infir2", "--slot", "x")
    assert "unknown format 'e9m9'" in refused("quantize", x, "--spec", "e9m9")
    assert "'row' after 'row'" in refused("quantize", x, "--spec", "e4m3fn/row/row/row")
    assert "'ceil' has no effect" in refused("quantize", x, "--spec", "e4m3fn/row/ceil")
    assert "'fast' after 'promote:128'" in refused(
        "gemm", "--spec", "sm90_wgmma_fp8/promote:128/fast", "--a", x, "--b", x, "--out", x
    )
    assert "is requantized" in refused("quantize", x, "--spec", "deepseek_v3:wgrad.x")
    assert "INPUT is missing; usage: fp8lab quantize X.npy" in refused("quantize", "--spec", "e5m2")
    # A folder is a model.
    assert "a model takes --recipe" in refused("quantize", matrices, "--spec", "e5m2")
    assert "holds no model" in refused("quantize", matrices, "--recipe", "bf16")


def test_write_failure_is_a_runtime_failure(matrices: Path) -> None:
    """A path that leads nowhere is bad input, a full disk is not."""
    words = ["--spec", "e4m3fn/tensor", "--out", matrices / "no" / "such" / "codes.npy"]
    assert "there is no folder" in refused("quantize", matrices / "a.npy", *words)
    with open("/dev/full", "w", encoding="utf-8") as full:
        process = subprocess.run(
            [PROGRAM, "info"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert process.returncode == 1 and "standard output" in process.stderr


def test_validate_golden(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    folder = tmp_path / "golden"  # without conv_hash.bin, which takes minutes
    folder.mkdir()
    for name in ("mma.bin", "gemm.bin", "gemm_edge.bin", "conv_sample.bin"):
        shutil.copy(GOLDEN / name, folder / name)
    checked = run("validate", "golden", folder, "--json", report)
    assert checked.returncode == 0, checked.stderr
    lines = checked.stdout.splitlines()
    result = json.loads(report.read_text())
    assert lines[-1] == f"{result['cases']} cases, 0 mismatches, 0 unchecked"
    assert result["cases"] == sum(row["cases"] for row in result["files"]) > 0
    assert len(lines) == len(result["files"]) + 1
    # One flipped output bit is found, a truncated file is refused, an unknown operation unchecked.
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    good = (GOLDEN / "mma.bin").read_bytes()
    (damaged / "mma.bin").write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    changed = run("validate", "golden", damaged)
    assert changed.returncode == 3 and " 1 mismatches" in changed.stdout.splitlines()[-1]
    assert "first mismatch in mma.bin" in changed.stdout
    (damaged / "mma.bin").write_bytes(good[:-1])
    assert "mma.bin" in refused("validate", "golden", damaged)
    (damaged / "mma.bin").write_bytes(good[:48] + struct.pack("<I", 77) + good[52:])
    unknown = run("validate", "golden", damaged)
    assert unknown.returncode == 3 and " 0 unchecked" not in unknown.stdout.splitlines()[-1]
    assert refused("validate", "golden", tmp_path / "none")


def write_products(folder: Path, name: str, first: int = 0x40400000) -> None:
    """Two dot products as others recorded them: 1 x 2 + 1, and NaN."""
    one, two = 0x3C00, 0x4000
    np.savez_compressed(
        folder / name,
        a=np.array([[one, 0, 0, 0], [0, one, 0, 0]], np.uint16),
        b=np.array([[two, 0, 0, 0], [0, two, 0, 0]], np.uint16),
        c_fp32=np.array([0x3F800000, 0x7FC00000], np.uint32),
        d_fp32=np.array([first, 0xFFC00000], np.uint32),
        d_fp16=np.array([0x4200, 0x7E00], np.uint16),
    )


def test_validate_thirdparty(tmp_path: Path) -> None:
    folder, report = tmp_path / "records", tmp_path / "report.json"
    folder.mkdir()
    for chip in ("A100", "V100", "B200"):
        write_products(folder, f"{chip}_fp16.npz")
    checked = run("validate", "thirdparty", folder, "--json", report)
    assert checked.returncode == 0, checked.stderr
    lines = checked.stdout.splitlines()
    assert lines[0] == (
        "A100_fp16.npz (sm80_f16, sm80_f16_f16acc): 4 cases, 0 mismatches, 0 unchecked"
    )
    assert len(lines) == 4 and lines[-1] == "12 cases, 0 mismatches, 0 unchecked"
    result = json.loads(report.read_text())
    assert result["what"] == "thirdparty" and result["cases"] == 12 and len(result["files"]) == 3
    write_products(folder, "V100_fp16.npz", first=0x40400001)
    changed = run("validate", "thirdparty", folder)
    assert changed.returncode == 3
    assert "12 cases, 1 mismatches, 0 unchecked" == changed.stdout.splitlines()[-1]
    assert "first mismatch in V100_fp16.npz: d_fp32, row 0: expected 0x40400001" in changed.stdout
    write_products(folder, "V100_fp16.npz")
    write_products(folder, "MI300_fp16.npz")
    unknown = run("validate", "thirdparty", folder)
    assert unknown.returncode == 3
    assert "no profile for chip 'MI300' and format 'fp16'" in unknown.stdout
    assert "12 cases, 0 mismatches, 4 unchecked" == unknown.stdout.splitlines()[-1]
    damaged = (folder / "A100_fp16.npz").read_bytes()
    (folder / "A100_fp16.npz").write_bytes(damaged[:-1])
    assert "A100_fp16.npz" in refused("validate", "thirdparty", folder)
    assert "folder of the thirdparty files" in refused("validate", "thirdparty")
    assert "none" in refused("validate", "thirdparty", tmp_path / "none")
    assert "no recorded products" in refused("validate", "thirdparty", tmp_path)


def test_ablate_refusals(tmp_path: Path) -> None:
    assert "--study" in refused("ablate", cwd=tmp_path)
    study = tmp_path / "s.toml"
    study.write_text('base = "none.toml"\n')
    assert "none.toml" in refused("ablate", "--study", study, cwd=tmp_path)
    assert sorted(tmp_path.iterdir()) == [study]
