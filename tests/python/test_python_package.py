"""The Python package against the program, ml_dtypes, and models of emulation/specification.md.

Run by ctest with PYTHONPATH at the build tree's package and the program in FP8LAB_PROGRAM.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import make_example_run
import numpy as np
import pytest
import tensor_core_model

fp8lab = pytest.importorskip("fp8lab", reason="the package fp8lab is not built")
Array = np.ndarray[Any, Any]

FORMATS = ("e4m3fn", "e5m2")


def generator(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def bits(x: Array) -> Array:
    return x.view(np.uint32)


def value_of_code(code: int, name: str) -> float:
    """Finite codes (emulation/specification.md, "Formats and codes")."""
    number = tensor_core_model.unpack(code, name)
    value = number.significand * 2.0**number.unit
    return -value if number.negative and value == 0 else value


# --- codec ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_decode_follows_the_definition(name: str) -> None:
    codes = np.arange(256, dtype=np.uint8)
    values = fp8lab.decode(codes, name)
    assert values.dtype == np.float32
    finite = np.isfinite(values)
    assert finite.sum() == (254 if name == "e4m3fn" else 248)
    expected = np.array([value_of_code(int(code), name) for code in codes[finite]], np.float32)
    assert np.array_equal(bits(values[finite]), bits(expected))


@pytest.mark.parametrize("name", FORMATS)
def test_encode_takes_the_nearest_value_and_ties_to_even(name: str) -> None:
    top = 0x7E if name == "e4m3fn" else 0x7B
    grid = np.array([value_of_code(code, name) for code in range(top + 1)])
    middle = ((grid[1:] + grid[:-1]) / 2).astype(np.float32)
    x = np.concatenate([grid.astype(np.float32), middle, np.nextafter(middle, np.float32(0))])
    x = np.concatenate(
        [x, generator().normal(0, 30, 2000).astype(np.float32), np.array([1e9], np.float32)]
    )
    magnitude = np.minimum(np.abs(x.astype(np.float64)), grid[-1])
    upper = np.searchsorted(grid, magnitude)
    lower = np.maximum(upper - 1, 0)
    below, above = magnitude - grid[lower], grid[upper] - magnitude
    expected = np.where((above < below) | ((above == below) & (upper % 2 == 0)), upper, lower)
    expected = np.where(magnitude == 0, 0, expected) | np.where(np.signbit(x), 128, 0)
    assert np.array_equal(fp8lab.encode(x, name), expected.astype(np.uint8))


def test_encode_policies_widths_and_shapes() -> None:
    x = np.array([[np.inf, 500.0], [-np.nan, -1e-30]], np.float32)
    assert fp8lab.encode(x, "e4m3fn").tolist() == [[0x7E, 0x7E], [0x7F, 0x80]]
    assert fp8lab.encode(x, "e4m3fn", overflow="special").tolist() == [[0x7F, 0x7F], [0x7F, 0x80]]
    assert fp8lab.encode(x, "e5m2", overflow="special")[0, 0] == 0x7C
    assert fp8lab.encode(x, "bf16").dtype == np.uint16
    assert fp8lab.encode(np.array([1.5], np.float32), "fp32").tolist() == [0x3FC00000]
    assert fp8lab.encode(np.array(1.0, np.float32)).shape == ()
    assert fp8lab.encode(np.zeros((2, 0, 3), np.float32)).shape == (2, 0, 3)


def test_stochastic_rounding_is_unbiased_and_follows_the_seed() -> None:
    x = np.full(40000, 1.03, np.float32)
    codes = fp8lab.encode(x, rounding="stochastic", seed=3)
    assert set(fp8lab.decode(codes).tolist()) == {1.0, 1.125}
    # The standard error of the mean is 0.125 * sqrt(0.24 * 0.76 / 40000) = 2.7e-4.
    assert abs(fp8lab.decode(codes).mean() - 1.03) < 4 * 2.7e-4
    assert np.array_equal(codes, fp8lab.encode(x, rounding="stochastic", seed=3))
    assert not np.array_equal(codes, fp8lab.encode(x, rounding="stochastic", seed=4))


def test_sixteen_bit_sources_are_exact() -> None:
    x = generator().normal(size=(5, 7)).astype(np.float16)
    wide = x.astype(np.float32)
    assert np.array_equal(fp8lab.encode(x), fp8lab.encode(wide))
    half = fp8lab.encode(wide, "bf16", overflow="special")
    assert np.array_equal(fp8lab.encode(half), fp8lab.encode(fp8lab.decode(half, "bf16")))


# --- quantization ---------------------------------------------------------------------------------


def test_quantize_is_the_definition() -> None:
    x = generator().normal(size=(6, 300)).astype(np.float32)
    codes, scales, statistics = fp8lab.quantize(x, "e4m3fn/1x128/dec_div")
    assert codes.shape == (6, 300) and scales.shape == (6, 3)
    amax = np.stack([np.abs(x[:, i : i + 128]).max(1) for i in (0, 128, 256)], 1)
    assert np.array_equal(scales, amax / np.float32(448))
    wide = np.repeat(scales, 128, 1)[:, :300]
    assert np.array_equal(codes, fp8lab.encode(x / wide))
    y = fp8lab.decode(codes) * wide
    assert np.array_equal(y, fp8lab.dequantize(codes, scales, "e4m3fn/1x128/dec_div"))
    noise = ((x - y).astype(np.float64) ** 2).sum()
    sqnr = 10 * np.log10((x.astype(np.float64) ** 2).sum() / noise)
    assert statistics["sqnr_db"] == pytest.approx(sqnr, rel=1e-6)
    assert statistics["amax"] == np.abs(x).max()
    assert statistics["exponent_histogram"].shape == (64,)
    assert statistics["scale_bits_per_element"] == 32 * 18 / 1800


def test_spec_by_keywords_is_the_spec_by_words() -> None:
    spec = fp8lab.QuantSpec(
        format="e4m3fn", tile="1x128", scale_format="pow2", scale_rounding="enc_floor"
    )
    assert spec == fp8lab.QuantSpec("e4m3fn/1x128/pow2/enc_floor")
    assert spec != fp8lab.QuantSpec("e4m3fn/1x128/pow2/scale_rounding:nearest")
    assert (spec.format, spec.tile, spec.scale_rounding) == ("e4m3fn", "1x128", "enc_floor")
    x = generator().normal(size=(4, 256)).astype(np.float32)
    first = fp8lab.quantize(x, spec)
    second = fp8lab.quantize(x, "e4m3fn/1x128/pow2/enc_floor", statistics=False)
    assert np.array_equal(first.codes, second.codes) and second.statistics is None
    margin = fp8lab.quantize(x, fp8lab.QuantSpec(format="e4m3fn", margin=1))
    assert np.array_equal(margin.scales, 2 * fp8lab.quantize(x, "e4m3fn/tensor").scales)
    assert fp8lab.quantize(x, "e5m2").scales is None


RECIPES = ("infir2", "mxfp8", "deepseek_v3", "torchao_rowwise", "nvfp4", "te_current", "halo1_fp8")
SLOTS = ("fprop.x", "fprop.w", "dgrad.dy", "dgrad.w", "wgrad.dy", "wgrad.x")


FROM_CODES = {  # second orientations that are made from the codes of the first
    ("deepseek_v3", "wgrad.x"),
    ("halo1_fp8", "dgrad.w"),
    ("halo1_fp8", "wgrad.x"),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_labels_are_specs(recipe: str) -> None:
    x = generator(11).normal(size=(64, 256)).astype(np.float32)
    for slot in SLOTS:
        if (recipe, slot) in FROM_CODES:
            continue
        spec = fp8lab.QuantSpec(f"{recipe}:{slot}")
        assert fp8lab.QuantSpec(spec.label) == spec
        assert repr(spec) == f"QuantSpec('{spec.label}')"
        ours = fp8lab.quantize(x, f"{recipe}:{slot}", seed=3)
        theirs = fp8lab.quantize(x, spec.label, seed=3)
        assert np.array_equal(ours.codes, theirs.codes)
        assert np.array_equal(ours.scales, theirs.scales)


def test_operands_of_recipes_are_those_of_their_gemms() -> None:
    a = generator(12).normal(size=(8, 256)).astype(np.float32)
    b = generator(13).normal(size=(16, 256)).astype(np.float32)
    expected = fp8lab.gemm(a, b, "infir2:fprop")
    x, w = fp8lab.quantize(a, "infir2:fprop.x"), fp8lab.quantize(b, "infir2:fprop.w")
    by_codes = fp8lab.gemm(x.codes, w.codes, "infir2:fprop", scale_a=x.scales, scale_b=w.scales)
    assert np.array_equal(by_codes, expected)
    words = {"operand_a": "infir2:fprop.x", "operand_b": "infir2:fprop.w"}
    assert np.array_equal(fp8lab.gemm(a, b, "sm90_wgmma_fp8/promote:128", **words), expected)


@pytest.mark.parametrize(
    ("words", "keys", "saturated", "sqnr"),
    [
        ("1x128/pow2", {"tile": "1x128", "scale_format": "pow2"}, 0.0, 31.4),
        ("1x32/e8m0", {"tile": "1x32", "scale_format": "e8m0"}, 0.0, 31.4),
        ("mx32", {"tile": "mx32"}, 0.01, 30.5),
    ],
)
def test_a_power_of_two_that_nothing_is_said_about_suits_normal_data(
    words: str, keys: dict[str, str], saturated: float, sqnr: float
) -> None:
    x = generator(14).normal(size=(512, 1024)).astype(np.float32)
    spec = fp8lab.QuantSpec("e4m3fn/" + words)
    assert spec == fp8lab.QuantSpec(format="e4m3fn", **keys)
    statistics = fp8lab.quantize(x, spec).statistics
    assert statistics["saturation_fraction"] <= saturated
    assert statistics["sqnr_db"] > sqnr
    ocp = fp8lab.quantize(x, "e4m3fn/1x32/e8m0/ocp_floor")
    assert (words == "mx32") == np.array_equal(fp8lab.quantize(x, spec).codes, ocp.codes)


def run_program(*arguments: object) -> None:
    words = [os.environ["FP8LAB_PROGRAM"], *map(str, arguments)]
    subprocess.run(words, check=True, capture_output=True, timeout=100)


@pytest.mark.parametrize(
    "spec", ["e4m3fn/1x128/pow2", "e5m2/row", "e2m1/mx32/stochastic", "infir2:fprop.w"]
)
@pytest.mark.parametrize("transpose", [False, True])
def test_quantize_is_the_program(tmp_path: Path, spec: str, transpose: bool) -> None:
    x = generator().normal(size=(150, 130)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    flags = ["--transpose"] if transpose else []
    out = tmp_path / "codes.npy"
    flags += ["--seed=5"] if "stochastic" in spec else []
    run_program("quantize", tmp_path / "x.npy", "--spec", spec, "--out", out, *flags)
    result = fp8lab.quantize(x, spec, transpose=transpose, seed=5)
    assert np.array_equal(result.codes, np.load(out))
    assert np.array_equal(result.scales, np.load(tmp_path / "codes.scale.npy"))


# --- GEMM -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["infir2:fprop", "sm90_wgmma_fp8/fast/fp32", "sm90_bf16"])
def test_gemm_is_the_program(tmp_path: Path, spec: str) -> None:
    a = generator(2).normal(size=(24, 256)).astype(np.float32)
    b = generator(3).normal(size=(40, 256)).astype(np.float32)
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    files = ["--a", tmp_path / "a.npy", "--b", tmp_path / "b.npy", "--out", tmp_path / "d.npy"]
    run_program("gemm", "--spec", spec, *files)
    assert np.array_equal(fp8lab.gemm(a, b, spec), np.load(tmp_path / "d.npy"))


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        ("cublaslt_h200:tensor", {"alpha": 0.75, "beta": -2.0}),
        ("cublaslt_h200:row/fast/fp32", {"bias": True}),
        ("cublaslt_h200:1x128x128x128/split_k=2", {}),
        ("cublaslt_h200:tensor/e4m3fn", {"d_scale": 0.125, "operand_b": "e5m2/tensor"}),
        ("cublaslt_h200:bf16/fp16", {"alpha": 0.3, "beta": 1.0, "bias": True}),
    ],
)
def test_library_calls_are_the_program(tmp_path: Path, spec: str, options: dict[str, Any]) -> None:
    draw = generator(9)
    shapes = {"a": (32, 1024), "b": (48, 1024), "c": (32, 48), "bias": (32,)}
    arrays = {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    options = dict(options)
    flags: list[Any] = []
    for name in ("a", "b", *(["c"] if "beta" in options else []), *options):
        if name in arrays:
            flags += [f"--{name}", tmp_path / f"{name}.npy"]
        else:
            flags.append(f"--{name.replace('_', '-')}={options[name]}")
    run_program("gemm", "--spec", spec, *flags, "--out", tmp_path / "d.npy")
    if options.pop("bias", False):
        options["bias"] = arrays["bias"]
    if "beta" in options:
        options["c"] = arrays["c"]
    ours = fp8lab.gemm(arrays["a"], arrays["b"], spec, **options)
    theirs = np.load(tmp_path / "d.npy")
    assert ours.dtype == theirs.dtype and np.array_equal(ours, theirs)


def test_a_compensated_clamp_gives_back_what_it_took(tmp_path: Path) -> None:
    draw = generator(10)
    x = draw.integers(-20, 21, (16, 64)).astype(np.float32)
    x[draw.random(x.shape) < 0.02] = 1000.0
    w = draw.integers(-9, 10, (8, 64)).astype(np.float32)
    words = {"operand_a": "int8/static:1/clamp:0.95:compensated", "operand_b": "int8/static:1"}
    assert np.array_equal(fp8lab.gemm(x, w, "ideal_exact/fp32", **words), x @ w.T)
    words["operand_a"] = "int8/static:1/clamp:0.95:compensated:quantized"
    q = fp8lab.quantize(w, "int8/static:1")
    by_codes = fp8lab.gemm(x, q.codes, "ideal_exact/fp32", scale_b=q.scales, **words)
    assert np.array_equal(by_codes, x @ w.T)
    words["operand_a"] = "int8/static:1/clamp:0.95"
    assert not np.array_equal(fp8lab.gemm(x, w, "ideal_exact/fp32", **words), x @ w.T)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "w.npy", w)
    files = ["--a", tmp_path / "x.npy", "--b", tmp_path / "w.npy", "--out", tmp_path / "d.npy"]
    flags = ["--operand-a", "int8/static:1/clamp:0.95:compensated", "--operand-b", "int8/static:1"]
    run_program("gemm", "--spec", "ideal_exact/fp32", *files, *flags)
    assert np.array_equal(np.load(tmp_path / "d.npy"), x @ w.T)


@pytest.mark.parametrize("names", [("e4m3fn", "e4m3fn"), ("e5m2", "e4m3fn")])
def test_gemm_is_the_group_of_the_specification(names: tuple[str, str]) -> None:
    draw = generator(4)
    tops = [0x7E if name == "e4m3fn" else 0x7B for name in names]
    a, b = (
        (draw.integers(0, top + 1, (3, 96)) | draw.integers(0, 2, (3, 96)) << 7).astype(np.uint8)
        for top in tops
    )
    a[0] &= 0x87  # subnormals and small numbers
    operands = {"operand_a": names[0], "operand_b": names[1]}
    fast = fp8lab.gemm(a, b, "sm90_wgmma_fp8/fast/fp32", **operands)
    promoted = fp8lab.gemm(a, b, "sm90_wgmma_fp8/promote:32/fp32", **operands)
    for i in range(3):
        for j in range(3):
            chained = separate = np.float32(0)
            for k in range(0, 96, 32):
                slices = a[i, k : k + 32], b[j, k : k + 32]
                chained = tensor_core_model.wgmma_fp8(*slices, names, chained)
                separate += tensor_core_model.wgmma_fp8(*slices, names, np.float32(0))
            assert fast[i, j] == chained
            assert promoted[i, j] == separate
    assert not np.array_equal(fast, promoted)


def test_recipes_beside_an_installed_package(tmp_path: Path) -> None:
    shutil.copytree(Path(fp8lab.__file__).parent, tmp_path / "fp8lab")
    recipes = tmp_path / "fp8lab" / "experiments" / "recipes"
    recipes.mkdir(parents=True)
    built_in = Path(__file__).resolve().parents[2] / "experiments" / "recipes/infir2/infir2.toml"
    text = built_in.read_text().replace('name = "infir2"', 'name = "mine"')
    (recipes / "mine.toml").write_text(text)
    code = "import fp8lab, numpy as np; x = np.ones((16, 128), np.float32); "
    code += "print(fp8lab.gemm(x, x, 'mine:fprop')[0, 0])"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=60)
    assert done.stdout == "128.0\n", done.stderr


def test_gemm_bias_and_accumulate() -> None:
    a = generator(5).normal(size=(4, 64)).astype(np.float32)
    b = generator(6).normal(size=(8, 64)).astype(np.float32)
    start = generator(7).normal(size=(4, 8)).astype(np.float32)
    bias = generator(8).normal(size=8).astype(np.float32)
    words = "sm90_wgmma_fp8/promote:32/fp32"
    plain = fp8lab.gemm(a, b, words)
    assert np.array_equal(fp8lab.gemm(a, b, words, accumulate=start), plain + start)
    assert np.array_equal(fp8lab.gemm(a, b, words, bias=bias), plain + bias)


def test_arrays_need_not_be_contiguous_or_aligned() -> None:
    x = generator().normal(size=(64, 96)).astype(np.float32)
    expected = fp8lab.quantize(x, "e4m3fn/1x32/pow2")
    padded = np.zeros(x.nbytes + 1, np.uint8)
    unaligned = padded[1:].view(np.float32).reshape(x.shape)
    unaligned[:] = x
    wide = np.zeros((128, 192), np.float32)
    wide[::2, ::2] = x
    for other in (np.asfortranarray(x), wide[::2, ::2], unaligned):
        result = fp8lab.quantize(other, "e4m3fn/1x32/pow2")
        assert np.array_equal(result.codes, expected.codes)
        assert np.array_equal(result.scales, expected.scales)
        assert np.array_equal(fp8lab.encode(other), fp8lab.encode(x))
    transposed = fp8lab.quantize(x.T, "e4m3fn/1x32/pow2")
    assert np.array_equal(
        transposed.codes, fp8lab.quantize(x, "e4m3fn/1x32/pow2", transpose=True).codes
    )


def test_two_threads_at_once() -> None:
    a = generator(9).normal(size=(96, 1024)).astype(np.float32)
    b = generator(10).normal(size=(128, 1024)).astype(np.float32)
    expected = fp8lab.gemm(a, b, "infir2:fprop", threads=1)

    def repeat(_: int) -> bool:
        same = True
        for threads in (1, 2, 1):
            same &= np.array_equal(fp8lab.gemm(a, b, "infir2:fprop", threads=threads), expected)
        return same

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(repeat, range(4)))


def test_other_threads_run_while_the_emulator_computes() -> None:
    a = generator(15).normal(size=(512, 4096)).astype(np.float32)
    call: list[float] = []

    def multiply() -> None:
        call.append(time.perf_counter())
        fp8lab.gemm(a, a, "infir2:fprop", threads=1)
        call.append(time.perf_counter())

    ticks = []
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(multiply)
        while not work.done():
            ticks.append(time.perf_counter())
    begin, end = call
    third = (end - begin) / 3
    assert any(begin + third < tick < end - third for tick in ticks)


# --- refusals -------------------------------------------------------------------------------------

X = np.ones((4, 32), np.float32)
CODES = np.ones((4, 32), np.uint8)
FAST = "sm90_wgmma_fp8/fast/fp32"
CALL = "cublaslt_h200:tensor"
Y = np.ones((16, 32), np.float32)


def scales(*values: float) -> Array:
    return np.array([values], np.float32).T


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fp8lab.encode(X.astype(np.float64)), "x: elements are float64"),
        (lambda: fp8lab.encode(X.astype(">f4")), "byte order"),
        (lambda: fp8lab.encode([1.0]), "a NumPy array is needed, not list"),
        (lambda: fp8lab.encode(CODES), "x: holds codes"),
        (lambda: fp8lab.encode(X, "e4m3"), "unknown format 'e4m3'"),
        (lambda: fp8lab.encode(X, rounding="up"), "unknown rounding 'up'"),
        (lambda: fp8lab.encode(X, overflow="wrap"), "unknown overflow 'wrap'"),
        (lambda: fp8lab.decode(X), "codes: elements are float32"),
        (lambda: fp8lab.decode(CODES, "bf16"), "accepted: uint16 for bf16"),
        (lambda: fp8lab.quantize(X[0], "e4m3fn"), "x: shape (32)"),
        (lambda: fp8lab.quantize(X[:0], "e4m3fn"), "x: shape (0, 32)"),
        (lambda: fp8lab.quantize(CODES, "e4m3fn"), "x: values are u8"),
        (lambda: fp8lab.quantize(X, "e4m3fn/1x0"), "unknown word '1x0'"),
        (lambda: fp8lab.quantize(X, "e4m3fn/row/row"), "says the tile already"),
        (lambda: fp8lab.quantize(X, "e4m3fn/row/ceil"), "'ceil' has no effect"),
        (lambda: fp8lab.quantize(X, "e4m3fn/delayed"), "delayed scaling needs the amax history"),
        (lambda: fp8lab.quantize(X, "infir2:x"), "unknown slot 'x'"),
        (lambda: fp8lab.quantize(X, "deepseek_v3:wgrad.x"), "is requantized from the codes"),
        (lambda: fp8lab.quantize(X, "e4m3fn", threads=-1), "thread"),
        (
            lambda: fp8lab.quantize(X, fp8lab.QuantSpec(format="e4m3fn", scale_source="delayed")),
            "delayed scaling needs the amax history",
        ),
        (lambda: fp8lab.QuantSpec(tile="row"), "'format' is missing"),
        (lambda: fp8lab.QuantSpec(format="e4m3fn", tiles="row"), "tiles"),
        (lambda: fp8lab.QuantSpec(format="e4m3fn", tile=3), "tile"),
        (lambda: fp8lab.QuantSpec(format="e4m3fn", tile=None), "'tile' is neither a word"),
        (lambda: fp8lab.QuantSpec(format="e4m3fn", scale_rounding="ceil"), "no effect"),
        (lambda: fp8lab.QuantSpec(format="e4m3fn", weight_source="bf16"), "weight_source"),
        (lambda: fp8lab.dequantize(CODES, None, "e4m3fn/row"), "needs scales"),
        (lambda: fp8lab.dequantize(CODES, X, "e4m3fn/row"), "scales: scales are f32 (4, 32)"),
        (lambda: fp8lab.gemm(X, X[:, :16], FAST), "must have the same K"),
        (lambda: fp8lab.gemm(X, X, "sm80/fast"), "unknown accumulator"),
        (lambda: fp8lab.gemm(X, X, FAST, scale_a=X[:, :1], operand_a="e4m3fn/row"), "uint8 codes"),
        (lambda: fp8lab.gemm(CODES, X, FAST, operand_a="e4m3fn/row"), "needs scales"),
        (lambda: fp8lab.gemm(X, X, FAST, bias=np.zeros(3, np.float32)), "shape (4,)"),
        (lambda: fp8lab.gemm(X, X, FAST, accumulate=np.zeros((4, 3), np.float32)), "shape (4, 4)"),
        (
            lambda: fp8lab.gemm(X, X, "sm90_wgmma_fp8", accumulate=np.zeros((4, 4), np.float32)),
            "an fp32 output",
        ),
        (lambda: fp8lab.gemm(X, X, "sm90_wgmma_fp8", operand_a="fp32"), "accumulator"),
        (lambda: fp8lab.gemm(X, X, FAST, alpha=2.0), "for specs cublaslt_h200"),
        (lambda: fp8lab.gemm(X, X, "cublaslt_h200:mx"), "unknown mode 'mx'"),
        (lambda: fp8lab.gemm(Y, Y, CALL, accumulate=Y), "accepted: c with beta"),
        (lambda: fp8lab.gemm(Y, Y, CALL, beta=1.0), "need each other"),
        (lambda: fp8lab.gemm(Y, Y, CALL, d_scale=2.0), "e4m3fn or e5m2 output only"),
        (lambda: fp8lab.gemm(Y, Y, CALL, bias=np.zeros(3, np.float32)), "shape (16,)"),
        (lambda: fp8lab.gemm(Y, Y, CALL, operand_a="e4m3fn/row"), "e4m3fn/row"),
        (
            lambda: fp8lab.gemm(Y, Y, CALL, operand_a="e4m3fn/tensor/clamp:0.9:compensated"),
            "a clamp without compensation",
        ),
        (
            lambda: fp8lab.gemm(CODES, X, FAST, operand_b="e4m3fn/clamp:0.9:compensated"),
            "a: holds codes",
        ),
        (lambda: fp8lab.gemm(Y[:15], Y, CALL), "M = 15; accepted: multiples of 16, and 1000"),
        (lambda: fp8lab.gemm(Y, Y[:15], CALL), "N = 15; accepted: multiples of 16"),
        (lambda: fp8lab.gemm(Y[:, :24], Y[:, :24], CALL), "K = 24; accepted: multiples of 16"),
        (lambda: fp8lab.decode(CODES + 32, "e2m1"), "element 0 is 0x21, but codes of e2m1 have 4"),
        (lambda: fp8lab.decode(np.uint16([0, 8192]), "e5m7"), "element 1 is 0x2000"),
        (lambda: fp8lab.dequantize(CODES + 63, None, "e3m2"), "element (0, 0) is 0x40"),
        (
            lambda: fp8lab.gemm(
                CODES, CODES * 16, "ideal_exact", operand_a="e2m1", operand_b="int4"
            ),
            "b: element (0, 0) is 0x10, but codes of int4 have 4 bits",
        ),
        (lambda: fp8lab.read_run("no/such/run.h5"), "no/such/run.h5"),
    ],
)
def test_bad_input_is_one_line(call: Any, message: str) -> None:
    with pytest.raises(fp8lab.Error) as caught:
        call()
    assert isinstance(caught.value, ValueError)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "given"),
    [
        ("e4m3fn/row/pow2", scales(1, 2.0**-127, 2.0**127, 0.006975)),
        ("e4m3fn/row/pow2", scales(1, 1, 1, -2)),
        ("e4m3fn/row/pow2", scales(1, 1, 1, 0)),
        ("e4m3fn/row/pow2", scales(1, 1, 1, np.nan)),
        ("e4m3fn/row/pow2", scales(1, 1, 1, np.inf)),
        ("e4m3fn/row/pow2", scales(1, 1, 1, 2.0**-128)),
        ("e4m3fn/row/pow2/ocp_floor/scale_factor:1.5", scales(1, 1.5, 0.75, 0.5)),
        ("e4m3fn/row/e8m0", scales(1, np.nan, 0.5, 3)),
        ("e4m3fn/row/e8m0", scales(1, 1, 1, 0)),
        ("e2m1/row/e4m3", scales(0, 448, np.nan, 449)),
        ("e2m1/row/e4m3", scales(0, 1, 1, -1)),
        ("e4m3fn/row/bf16", scales(1, 1.5, 0.0078125, 1.001)),
        ("e4m3fn/static:0.5", scales(0.25)),
        ("e2m1/1x32/nv_two_level", scales(0, 0.1, 0.2, 0.1017)),
        ("e2m1/1x32/nv_two_level", scales(0, 1, 1, -1)),
    ],
)
def test_scales_that_the_spec_cannot_store_are_refused(spec: str, given: Array) -> None:
    for call in (
        lambda: fp8lab.dequantize(CODES, given, spec),
        lambda: fp8lab.gemm(X, CODES, "ideal_exact", operand_b=spec, scale_b=given),
    ):
        with pytest.raises(fp8lab.Error, match="scale.*; accepted: ") as caught:
            call()
        assert "\n" not in str(caught.value)
    given[-1] = given[0] if "static" not in spec else 0.5
    assert fp8lab.dequantize(CODES, given, spec).shape == CODES.shape


SCALES = (
    "fp32",
    "pow2",
    "pow2/ceil",
    "e8m0",
    "e8m0/even",
    "e8m0/scale_overflow:nan",
    "bf16",
    "e4m3",
)
SCALES += ("nv_two_level", "nv_two_level/mae", "pow2/ocp_floor/scale_factor:1.3333334", "dec_div")


@pytest.mark.parametrize("words", SCALES)
@pytest.mark.parametrize("format", ["e4m3fn", "e5m2", "e2m1", "e3m2", "int4", "lns4g2", "logfmt5"])
def test_what_quantize_gives_dequantize_takes(format: str, words: str) -> None:
    draw = generator(21)
    x = (draw.normal(size=(33, 300)) * np.exp(3 * draw.normal(size=(33, 300)))).astype(np.float32)
    x[:, :5] *= 1e20
    x[3], x[7, 200], x[9, 130] = 0, np.inf, np.nan
    x[20] *= np.float32(1e-30)
    for tile in ("row", "1x32", "128x128"):
        spec = f"{format}/{tile}/{words}"
        try:
            q = fp8lab.quantize(x, spec, statistics=False)
        except fp8lab.Error:
            continue  # a format without such scales
        assert fp8lab.dequantize(q.codes, q.scales, spec).shape == x.shape


def test_everything_shown_is_documented() -> None:
    for name in fp8lab.__all__:
        if name != "__version__":
            assert getattr(fp8lab, name).__doc__, name
    with pytest.raises(AttributeError):
        fp8lab.no_such_name  # noqa: B018


# --- run files ------------------------------------------------------------------------------------


def test_run_files(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    make_example_run.make_example(tmp_path / "study")
    path = sorted((tmp_path / "study").rglob("run.h5"))[0]
    run = fp8lab.read_run(path)
    statistics = {name: fp8lab.read_statistic(path, name) for name in fp8lab.statistic_names()}
    with h5py.File(path, "r") as file:
        assert np.array_equal(run.metrics["loss"], file["metrics/loss"][:])
        assert np.array_equal(run.metrics["step"], file["metrics/step"][:])
        assert np.array_equal(run.tensors["step"], file["tensors/step"][:])
        assert run.meta["seed"] == file["meta"].attrs["seed"]
        for name, values in statistics.items():
            assert np.array_equal(values, file[f"tensors/{name}"][:]), name
    assert len(run.tensors["layer"]) == len(run.tensors["slot"])
    with pytest.raises(fp8lab.Error, match="unknown statistic 'sqnr'"):
        fp8lab.read_statistic(path, "sqnr")
    assert fp8lab.read_samples(path) == []


# --- ml_dtypes ------------------------------------------------------------------------------------


def every_half() -> Array:
    return np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).view(np.float16).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "other"),
    [("e4m3fn", "float8_e4m3fn"), ("e5m2", "float8_e5m2"), ("e3m4b3", "float8_e3m4"),
     ("e4m3b7", "float8_e4m3"), ("e4m3fnuz", "float8_e4m3fnuz"), ("e5m2fnuz", "float8_e5m2fnuz"),
     ("e4m3fnuzb11", "float8_e4m3b11fnuz"), ("e2m3", "float6_e2m3fn"), ("e2m1", "float4_e2m1fn"),
     ("e8m0", "float8_e8m0fnu"), ("bf16", "bfloat16")],
)  # fmt: skip
def test_codecs_of_ml_dtypes(name: str, other: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    dtype = np.dtype(getattr(ml_dtypes, other))
    x = every_half()
    x = x[np.isfinite(x)]
    with np.errstate(all="ignore"):
        theirs = x.astype(dtype)
        back = theirs.astype(np.float32)
    ours = fp8lab.encode(x, name, overflow="special")
    values = fp8lab.decode(theirs, name)
    assert np.array_equal(values, back, equal_nan=True)
    if name in ("bf16", "e8m0"):  # no operands of 8 bits
        return
    assert np.array_equal(fp8lab.dequantize(theirs[None], None, name)[0], back, equal_nan=True)
    another = "e5m2" if name == "e4m3fn" else "e4m3fn"
    with pytest.raises(fp8lab.Error, match=f"holds .* codes; accepted: codes of {another}"):
        fp8lab.dequantize(theirs[None], None, another)
    finite = np.isfinite(back)
    assert np.array_equal(ours[finite], theirs.view(ours.dtype)[finite])


def test_arrays_of_ml_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    x = generator(14).normal(size=(16, 64)).astype(np.float32)
    a = x.astype(ml_dtypes.float8_e4m3fn)
    b = x.astype(ml_dtypes.float8_e5m2)
    words = "sm90_wgmma_fp8/fast/fp32"
    expected = fp8lab.gemm(a.view(np.uint8), b.view(np.uint8), words, operand_b="e5m2")
    assert np.array_equal(fp8lab.gemm(a, b, words), expected)
    unsigned_zero = x.astype(ml_dtypes.float8_e4m3fnuz)
    codes = unsigned_zero.view(np.uint8)
    exact = fp8lab.gemm(codes, codes, "ideal_fp32", operand_a="e4m3fnuz", operand_b="e4m3fnuz")
    assert np.array_equal(fp8lab.gemm(unsigned_zero, unsigned_zero, "ideal_fp32"), exact)
    half = x.astype(ml_dtypes.bfloat16)
    assert np.array_equal(fp8lab.encode(half), fp8lab.encode(half.astype(np.float32)))
    assert np.array_equal(fp8lab.encode(half), fp8lab.encode(half.view(np.uint16)))
    with pytest.raises(fp8lab.Error, match="holds e5m2 codes"):
        fp8lab.gemm(a, b, words, operand_b="e4m3fn")
    one = np.ones((), np.float32)
    product = fp8lab.scaled_mm(a, b.T, one, one, out_dtype=ml_dtypes.bfloat16)
    assert product.dtype == ml_dtypes.bfloat16
    full = fp8lab.scaled_mm(a, b.T, one, one, out_dtype=np.float32)
    assert np.array_equal(product, full.astype(ml_dtypes.bfloat16))
    assert fp8lab.scaled_mm(a, b.T, one, one).dtype == ml_dtypes.float8_e4m3fn


@pytest.mark.parametrize("threads", [-1, 30_000, 100_000])
def test_threads_are_bounded(threads: int) -> None:
    x = np.ones((4, 32), np.float32)
    quantized = fp8lab.quantize(x, "e5m2")
    for call in (
        lambda: fp8lab.quantize(x, "e5m2", threads=threads),
        lambda: fp8lab.dequantize(quantized.codes, quantized.scales, "e5m2", threads=threads),
        lambda: fp8lab.gemm(x, x, "sm90_bf16", threads=threads),
    ):
        with pytest.raises(ValueError, match=f"threads: {threads}; accepted: 0"):
            call()


def test_idle_threads_sleep_and_the_environment_stays_as_it_was() -> None:
    """OpenMP's runtime prints the policy that it reads when the module is loaded."""
    code = (
        "import os, fp8lab; fp8lab.QuantSpec;"
        "print(os.environ['OMP_WAIT_POLICY'], os.environ.get('GOMP_SPINCOUNT'))"
    )
    environment = {k: v for k, v in os.environ.items() if k != "GOMP_SPINCOUNT"}
    environment |= {"OMP_DISPLAY_ENV": "verbose", "OMP_WAIT_POLICY": "active"}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in result.stderr
    assert "GOMP_SPINCOUNT = '5000'" in result.stderr
    assert result.stdout.split() == ["active", "None"]
