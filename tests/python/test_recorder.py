"""The flight recorder and `fp8lab replay`: hooks, the arithmetic of recorded GEMMs, planted faults.

The libraries are stand-ins with the signatures of the real ones (stand_in_torch.py). Tests named
"real" use torch itself and are skipped without it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hopper_gemm
import numpy as np
import pytest
import stand_in_torch as torch

pytest.importorskip("fp8lab", reason="the package fp8lab is not built")
from fp8lab import recorder  # noqa: E402

Array = np.ndarray[Any, Any]
Planted = Callable[["Operands"], Any]


class Operands:
    """A GEMM with large scale differences between neighbouring tiles, and mostly positive products,
    so that sums grow and the accumulator matters."""

    def __init__(self, m: int, n: int, k: int, tiles: tuple[str, str], seed: int = 3) -> None:
        random = np.random.default_rng(seed)
        self.shape, self.tiles = (m, n, k), tiles
        self.formats = "e4m3fn", "e4m3fn"
        self.codes = [self.draw(random, rows, k) for rows in (m, n)]
        self.scales = [
            random.uniform(0.5, 8, self.grid(tile, rows, k)).astype(np.float32) / 64
            for tile, rows in zip(tiles, (m, n), strict=True)
        ]

    @staticmethod
    def draw(random: np.random.Generator, rows: int, k: int) -> Array:
        """Codes up to 448 whose largest magnitudes are common, one in eight of them negative."""
        codes = random.integers(0x28, 0x7F, (rows, k)).astype(np.uint8)
        return np.where(random.random((rows, k)) < 1 / 8, codes | 0x80, codes).astype(np.uint8)

    @staticmethod
    def grid(tile: str, rows: int, k: int) -> tuple[int, int]:
        return {"tensor": (1, 1), "row": (rows, 1), "1x128": (rows, -(-k // 128)),
                "128x128": (-(-rows // 128), -(-k // 128))}[tile]  # fmt: skip

    def result(
        self, codes: Any = None, scales: Any = None, formats: Any = None, fast: bool = False
    ) -> Array:
        a, b = codes or self.codes
        given = tuple(scales or self.scales)
        return hopper_gemm.gemm(a, b, given, self.tiles, formats or self.formats, fast)


def write(path: Path, gemm: Operands, d: Array, **about: str) -> Path:
    """Writes a record as the recorder does."""
    m, n, k = gemm.shape
    words = {"fp8lab": "gemm-1", "api": "torch._scaled_mm", "m": str(m), "n": str(n), "k": str(k),
             "format_a": gemm.formats[0], "format_b": gemm.formats[1], "tile_a": gemm.tiles[0],
             "tile_b": gemm.tiles[1], "out": "bfloat16", "fast": "false", "device": "cuda:0",
             "step": "0", "earlier_scales": "[]"} | about  # fmt: skip
    tensors = {"a": ("U8", gemm.codes[0]), "scale_a": ("F32", gemm.scales[0]),
               "b": ("U8", gemm.codes[1]), "scale_b": ("F32", gemm.scales[1]),
               "d": ("BF16" if d.dtype == np.uint16 else "F32", d)}  # fmt: skip
    header: dict[str, Any] = {"__metadata__": words}
    data = b""
    for name, (kind, array) in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": kind, "shape": list(array.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}  # fmt: skip
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def replay(*words: object) -> subprocess.CompletedProcess[str]:
    command = [os.environ["FP8LAB_PROGRAM"], "replay", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def verdict(path: Path) -> dict[str, Any]:
    done = replay(path, "--json")
    assert done.returncode in (0, 3), done.stderr
    (found,) = json.loads(done.stdout)["gemms"]
    assert found["right"] == (done.returncode == 0)
    return dict(found)


# --- right results --------------------------------------------------------------------------------

BLOCKS = ("1x128", "128x128")


@pytest.mark.parametrize(
    ("tiles", "fast", "label"),
    [
        (("tensor", "tensor"), False, "sm90_wgmma_fp8/promote:128/f32"),
        (("tensor", "tensor"), True, "sm90_wgmma_fp8/fast/f32"),
        (("row", "row"), False, "sm90_wgmma_fp8/promote:128/f32"),
        (("1x128", "1x128"), False, "sm90_wgmma_fp8/promote:128/f32/b_then_a"),
        (BLOCKS, False, "sm90_wgmma_fp8/promote:128/f32/product_first"),
    ],
)
def test_the_arithmetic_is_found(
    tmp_path: Path, tiles: tuple[str, str], fast: bool, label: str
) -> None:
    gemm = Operands(24, 144, 640, tiles)
    d = hopper_gemm.to_bf16(gemm.result(fast=fast))
    found = verdict(write(tmp_path / "x.safetensors", gemm, d, fast=str(fast).lower()))
    assert found["right"] and found["faults"] == []
    assert label in found["same"]
    assert not any(word in "".join(found["same"]) for word in ("cdna3", "ideal", "sm89"))


def test_float32_results_single_out_the_order_of_scales(tmp_path: Path) -> None:
    gemm = Operands(24, 40, 640, ("1x128", "1x128"))
    found = verdict(write(tmp_path / "x.safetensors", gemm, gemm.result()))
    assert found["same"] == [
        "sm90_wgmma_fp8/promote:128/f32/b_then_a",
        "sm90_wgmma_fp8/promote:128/f32/a_then_b as D^T",
    ]


def test_split_k_is_found(tmp_path: Path) -> None:
    gemm = Operands(16, 24, 1024, ("tensor", "tensor"))
    for codes in gemm.codes:  # sums of very different sizes, so that their order matters
        codes[:, np.arange(1024) // 128 % 2 == 1] -= 0x28
    unscaled = [np.ones((1, 1), np.float32)] * 2
    parts = [
        gemm.result([codes[:, first : first + 512] for codes in gemm.codes], unscaled)
        for first in (0, 512)
    ]
    d = (parts[0] + parts[1]) * (gemm.scales[0] * gemm.scales[1])
    found = verdict(write(tmp_path / "x.safetensors", gemm, d))
    assert "sm90_wgmma_fp8/promote:128/f32/split_k:2" in found["same"]


# --- planted faults -------------------------------------------------------------------------------


def regrouped(scales: Array) -> Array:
    """The memory of the grid read with rows and columns exchanged."""
    return scales.reshape(scales.shape[::-1]).T.copy()


def nibbles(codes: Array) -> Array:
    """Values of E2M1 in the first half of each row's bytes, as e4m3fn codes."""
    half = codes[:, : codes.shape[1] // 2]
    pairs = np.stack([half & 15, half >> 4], axis=2).reshape(codes.shape)
    magnitudes = np.array([0x00, 0x30, 0x38, 0x3C, 0x40, 0x44, 0x48, 0x4C], np.uint8)
    return magnitudes[pairs & 7] | (pairs >> 3 << 7)


def one_scale(gemm: Operands, side: int, change: Callable[[Array], Array]) -> list[Array]:
    return [change(s) if i == side else s for i, s in enumerate(gemm.scales)]


FAULTS: dict[str, tuple[tuple[str, str], Planted]] = {
    "scale_b transposed": (BLOCKS, lambda g: g.result(scales=one_scale(g, 1, regrouped))),
    "scale_a transposed": (BLOCKS, lambda g: g.result(scales=one_scale(g, 0, regrouped))),
    "scale_b of the neighbouring tile with larger k": (
        BLOCKS, lambda g: g.result(scales=one_scale(g, 1, lambda s: np.roll(s, -1, axis=1)))),
    "scale_a of the neighbouring tile below": (
        BLOCKS, lambda g: g.result(scales=one_scale(g, 0, lambda s: np.roll(s, -1, axis=0)))),
    "scale_a of the neighbouring tile above": (
        ("row", "row"), lambda g: g.result(scales=one_scale(g, 0, lambda s: np.roll(s, 1, 0)))),
    "scale_b divided by instead of multiplied with": (
        BLOCKS, lambda g: g.result(scales=one_scale(g, 1, lambda s: 1 / s))),
    "both scales divided by instead of multiplied with": (
        ("row", "row"), lambda g: g.result(scales=[1 / s for s in g.scales])),
    "scale_a left out": (
        ("tensor", "tensor"), lambda g: g.result(scales=one_scale(g, 0, np.ones_like))),
    "b read as FP4 (e2m1)": (
        BLOCKS, lambda g: g.result(codes=[g.codes[0], nibbles(g.codes[1])])),
    "a read as FP4 (e2m1)": (
        ("tensor", "tensor"), lambda g: g.result(codes=[nibbles(g.codes[0]), g.codes[1]])),
    "a read as e5m2": (
        ("row", "row"), lambda g: g.result(
            codes=[g.codes[0] & 0xFB, g.codes[1]], formats=("e5m2", "e4m3fn"))),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named(tmp_path: Path, name: str) -> None:
    tiles, planted = FAULTS[name]
    gemm = Operands(24, 256, 512, tiles)
    if name == "a read as e5m2":  # without the codes that are NaN there
        gemm.codes[0] &= 0xFB
    right = verdict(write(tmp_path / "r.safetensors", gemm, hopper_gemm.to_bf16(gemm.result())))
    assert right["right"]
    found = verdict(write(tmp_path / "x.safetensors", gemm, hopper_gemm.to_bf16(planted(gemm))))
    assert found["faults"] == [name] and not found["right"]
    assert any(label.startswith("sm90_wgmma_fp8/promote:128") for label in found["same"])
    text = replay(tmp_path / "x.safetensors").stdout
    assert f"fault: {name}" in text


def test_codes_that_are_nan_in_the_wrong_format_hide_no_fault(tmp_path: Path) -> None:
    gemm = Operands(24, 256, 512, ("row", "row"))
    gemm.codes[0] &= 0xFB
    d = hopper_gemm.to_bf16(gemm.result(formats=("e5m2", "e4m3fn")))
    gemm.codes[0][::3, 7] = 0x7E  # 448 in E4M3, NaN in E5M2
    d[::3] = 0x7FC0
    assert verdict(write(tmp_path / "x.safetensors", gemm, d))["faults"] == ["a read as e5m2"]


def test_a_dropped_promotion_is_named_with_its_k(tmp_path: Path) -> None:
    gemm = Operands(16, 24, 4096, ("tensor", "tensor"))
    d = hopper_gemm.to_bf16(gemm.result(fast=True))
    found = verdict(write(tmp_path / "x.safetensors", gemm, d))
    assert found["faults"] == ["promotion dropped"]
    assert found["divergence"]["k_begin"] % 128 == 0 and found["divergence"]["k_begin"] >= 128
    asked = verdict(write(tmp_path / "y.safetensors", gemm, d, fast="true"))
    assert asked["right"]


@pytest.mark.parametrize("ago", [1, 2])
def test_a_stale_scale_is_named(tmp_path: Path, ago: int) -> None:
    """The codes were made with the new scale and multiplied with that of a step before."""
    gemm = Operands(24, 32, 512, ("tensor", "tensor"))
    now = [float(scale[0, 0]) for scale in gemm.scales]
    earlier = [[1.7 * now[0], now[1]], [1.3 * now[0], now[1]]]  # oldest first
    stale = np.full((1, 1), earlier[-ago][0], np.float32)
    d = hopper_gemm.to_bf16(gemm.result(scales=[stale, gemm.scales[1]]))
    path = write(tmp_path / "x.safetensors", gemm, d, earlier_scales=json.dumps(earlier))
    plural = "call" if ago == 1 else "calls"
    assert verdict(path)["faults"] == [f"scale_a is stale: that of {ago} {plural} before"]


@pytest.mark.parametrize("factor", [0, 2])
def test_the_first_wrong_element_has_its_k(tmp_path: Path, factor: int) -> None:
    """A tile of the result lacks, or has twice, the products of one step along K."""
    gemm = Operands(48, 64, 1024, BLOCKS)
    d = gemm.result()
    part = [codes[:, 384:512] for codes in gemm.codes]
    scales = [gemm.scales[0][:, 3:4], gemm.scales[1][:, 3:4]]
    step = hopper_gemm.gemm(part[0], part[1], (scales[0], scales[1]), gemm.tiles)
    d[16:24, 32:48] += (factor - 1) * step[16:24, 32:48]
    found = verdict(write(tmp_path / "x.safetensors", gemm, hopper_gemm.to_bf16(d)))
    wrong = found["wrong"]
    assert (wrong["row"], wrong["col"]) == (16, 32)
    assert 8 * 16 * 0.9 < wrong["count"] <= 8 * 16  # some of the products are hardly any
    assert (wrong["k_begin"], wrong["k_end"]) == (384, 512)
    assert abs(wrong["factor"] - factor) < 0.05
    assert f"[384, 512) are in it {factor} times" in replay(tmp_path / "x.safetensors").stdout


def test_a_single_wrong_element_is_shown(tmp_path: Path) -> None:
    gemm = Operands(24, 32, 512, ("row", "row"))
    d = gemm.result()
    d[5, 7] = np.nan
    found = verdict(write(tmp_path / "x.safetensors", gemm, hopper_gemm.to_bf16(d)))
    assert (found["wrong"]["row"], found["wrong"]["col"], found["wrong"]["count"]) == (5, 7, 1)
    assert found["wrong"]["k_begin"] == found["wrong"]["k_end"]  # not located


def test_other_sums_are_right_within_their_rounding(tmp_path: Path) -> None:
    gemm = Operands(24, 32, 512, ("tensor", "tensor"))
    a, b = (hopper_gemm.values(c, "e4m3fn") * s[0, 0] for c, s in zip(gemm.codes, gemm.scales))
    backwards = np.zeros((24, 32), np.float32)  # in FP32, with the last product first
    for k in reversed(range(512)):
        backwards += np.outer(a[:, k], b[:, k]).astype(np.float32)
    path = write(tmp_path / "x.safetensors", gemm, backwards)
    found = verdict(path)
    assert found["right"] and found["same"] == [] and found["error"] < 1e-5
    assert "right within its rounding" in replay(path).stdout


# --- the recorder, on stand-ins -------------------------------------------------------------------


@pytest.fixture(name="stand_ins")
def fixture_stand_ins(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    found = torch.modules()
    for name, module in found.items():
        monkeypatch.setitem(sys.modules, name, module)
    return found


def tensors(gemm: Operands) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    a, b = (torch.Tensor(codes, torch.float8_e4m3fn) for codes in gemm.codes)
    return a, b, *(torch.Tensor(scale, torch.float32) for scale in gemm.scales)


def call_scaled_mm(modules: dict[str, Any], gemm: Operands) -> Any:
    a, b, scale_a, scale_b = tensors(gemm)
    return modules["torch"]._scaled_mm(a, b.T, scale_a, scale_b.T, out_dtype=torch.bfloat16)


def call_general_gemm(modules: dict[str, Any], gemm: Operands) -> Any:
    by_rows = gemm.tiles != ("tensor", "tensor")
    a, b = (torch.quantized(c, s, "Float8E4M3", by_rows) for c, s in zip(gemm.codes, gemm.scales))
    module = modules["transformer_engine.pytorch.module.linear"]
    return module.general_gemm(b, a, use_split_accumulator=True)[0]


def call_deep_gemm(modules: dict[str, Any], gemm: Operands) -> Any:
    a, b, scale_a, scale_b = tensors(gemm)
    d = torch.Tensor(np.zeros(gemm.shape[:2], np.uint16), torch.bfloat16)
    modules["deep_gemm"].fp8_gemm_nt((a, scale_a), (b, scale_b), d)
    return d


def call_torchao(modules: dict[str, Any], gemm: Operands) -> Any:
    a, b, scale_a, scale_b = tensors(gemm)
    module = modules["torchao.prototype.blockwise_fp8_training.kernels"]
    return module.triton_fp8_gemm_1x128_128x128(a, b.T, scale_a, scale_b.T)


@pytest.mark.parametrize(
    ("call", "tiles"),
    [
        (call_scaled_mm, ("tensor", "tensor")),
        (call_scaled_mm, ("row", "row")),
        (call_scaled_mm, BLOCKS),
        (call_general_gemm, ("tensor", "tensor")),
        (call_general_gemm, BLOCKS),
        (call_deep_gemm, BLOCKS),
        (call_torchao, BLOCKS),
    ],
)
def test_calls_are_recorded_and_replayed(
    stand_ins: dict[str, Any], tmp_path: Path, call: Any, tiles: tuple[str, str]
) -> None:
    gemm = Operands(272, 144, 512, tiles)  # more rows than the window
    expected = hopper_gemm.to_bf16(gemm.result())
    originals = {name: dict(vars(module)) for name, module in stand_ins.items()}
    with recorder.Recorder(tmp_path) as recording:
        d = call(stand_ins, gemm)
        recording.step()
    assert np.array_equal(d.array, expected)
    assert {name: dict(vars(module)) for name, module in stand_ins.items()} == originals
    (row,) = json.loads((tmp_path / "calls.json").read_text())
    assert (row["m"], row["n"], row["k"]) == ("272", "144", "512") and row["calls"] == 1
    assert (row["tile_a"], row["tile_b"]) == tiles and row["fast"] == "false"
    (path,) = tmp_path.glob("*.safetensors")
    found = verdict(path)
    assert found["right"] and any("promote:128" in label for label in found["same"])


def test_did_fp8_run_at_all(stand_ins: dict[str, Any], tmp_path: Path) -> None:
    gemm = Operands(16, 32, 256, ("tensor", "tensor"))
    x = torch.Tensor(np.zeros((16, 64), np.uint16), torch.bfloat16)
    w = torch.Tensor(np.zeros((8, 64), np.uint16), torch.bfloat16)
    with recorder.Recorder(tmp_path, every=2, limit=2):
        for _ in range(5):
            call_scaled_mm(stand_ins, gemm)
        for _ in range(3):
            stand_ins["torch.nn.functional"].linear(x, w)
    assert len(list(tmp_path.glob("*.safetensors"))) == 2  # the first and the third of five
    lines = replay(tmp_path).stdout.splitlines()
    assert lines[0].split() == ["calls", "api", "m", "n", "k", "a", "b", "tile_a", "tile_b", "out",
                                "fast"]  # fmt: skip
    assert lines[1].split() == ["5", "torch._scaled_mm", "16", "32", "256", "e4m3fn", "e4m3fn",
                                "tensor", "tensor", "bfloat16", "false"]  # fmt: skip
    assert lines[2].split() == ["3", "torch.nn.functional.linear", "16", "8", "64", "bfloat16",
                                "bfloat16", "-", "-", "bfloat16", "-"]  # fmt: skip


def test_scales_of_earlier_steps_are_kept(stand_ins: dict[str, Any], tmp_path: Path) -> None:
    """The second GEMM of a step is multiplied with its scale of the step before."""
    first, second = (Operands(16, 32, 256, ("tensor", "tensor"), seed) for seed in (1, 2))
    with recorder.Recorder(tmp_path, every=1) as recording:
        old = second.scales[0].copy()
        for step in range(3):
            call_scaled_mm(stand_ins, first)
            call_scaled_mm(stand_ins, second)
            recording.step()
            second.scales[0] *= np.float32(1.5)  # in place, as delayed scaling does
    path = sorted(tmp_path.glob("*.safetensors"))[5]
    record = bytearray(path.read_bytes())
    header = json.loads(record[8 : 8 + int.from_bytes(record[:8], "little")])
    scales = [pair[0] for pair in json.loads(header["__metadata__"]["earlier_scales"])]
    assert np.allclose(scales, [old[0, 0], 1.5 * old[0, 0]])


def test_what_cannot_be_read_is_counted(stand_ins: dict[str, Any], tmp_path: Path) -> None:
    gemm = Operands(16, 32, 256, BLOCKS)
    a, b = (torch.quantized(c, s, "Float8E4M3", True) for c, s in zip(gemm.codes, gemm.scales))
    with recorder.Recorder(tmp_path):
        module = stand_ins["transformer_engine.pytorch.cpp_extensions"]
        module.general_gemm(b, a, layout="NT")
    (row,) = json.loads((tmp_path / "calls.json").read_text())
    assert row["tile_a"] == "not read: layout NT" and not list(tmp_path.glob("*.safetensors"))


class Opaque:
    """A tensor of which every question raises."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name} outside a graph")


def rows_of(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((folder / "calls.json").read_text())
    return rows


def test_arguments_by_keyword_in_any_order_are_read(
    stand_ins: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scaled_mm(input: Any, mat2: Any, scale_a: Any, scale_b: Any, *, out: Any = None) -> Any:
        out.array[...] = torch._scaled_mm(input, mat2, scale_a, scale_b).array
        return out

    monkeypatch.setattr(stand_ins["torch"], "_scaled_mm", scaled_mm)
    gemm = Operands(16, 32, 256, BLOCKS)
    a, b, scale_a, scale_b = tensors(gemm)
    x, w = (torch.Tensor(np.zeros((n, 64), np.uint16), torch.bfloat16) for n in (16, 8))
    out, d = (torch.Tensor(np.zeros((16, 32), np.uint16), torch.bfloat16) for _ in range(2))
    with recorder.Recorder(tmp_path):
        stand_ins["torch.nn.functional"].linear(weight=w, input=x)
        stand_ins["torch"]._scaled_mm(
            out=out, scale_b=scale_b.T, mat2=b.T, scale_a=scale_a, input=a
        )
        stand_ins["deep_gemm"].fp8_gemm_nt(d=d, b=(b, scale_b), a=(a, scale_a))
    assert [(row["m"], row["n"], row["k"]) for row in rows_of(tmp_path)] == [
        ("16", "8", "64"), ("16", "32", "256"), ("16", "32", "256")]  # fmt: skip
    files = list(tmp_path.glob("*.safetensors"))
    assert len(files) == 2 and all(verdict(path)["right"] for path in files)


def test_a_reader_that_raises_disturbs_nothing(
    stand_ins: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    functional = stand_ins["torch.nn.functional"]
    monkeypatch.setattr(functional, "linear", lambda input, weight, bias=None: "the result")
    gemm = Operands(16, 32, 256, ("row", "row"))
    with recorder.Recorder(tmp_path):
        assert functional.linear(Opaque(), Opaque()) == "the result"
        assert functional.linear(1, weight=2) == "the result"
        call_scaled_mm(stand_ins, gemm)  # is seen all the same
        with pytest.raises(TypeError, match="missing"):  # an error of the program itself
            functional.linear()
    rows = rows_of(tmp_path)
    assert [row["calls"] for row in rows] == [1, 1, 1]
    assert rows[0]["tile_a"] == "not read: no numel outside a graph"
    assert rows[1]["tile_a"].startswith("not read: ") and rows[2]["tile_a"] == "row"


def test_a_full_disk_disturbs_nothing(
    stand_ins: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gemm = Operands(16, 32, 256, ("row", "row"))
    tried = []

    def full(path: Path, data: bytes) -> int:
        tried.append(path)
        raise OSError("no space left on device")

    with recorder.Recorder(tmp_path, every=1):
        monkeypatch.setattr(Path, "write_bytes", full)
        results = [call_scaled_mm(stand_ins, gemm).array for _ in range(3)]
    assert all(np.array_equal(d, hopper_gemm.to_bf16(gemm.result())) for d in results)
    assert len(tried) == 1
    assert [(row["tile_a"], row["calls"]) for row in rows_of(tmp_path)] == [
        ("not read: no space left on device", 1), ("row", 2)]  # fmt: skip


def test_an_interrupt_passes_and_the_next_call_is_seen(
    stand_ins: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gemm = Operands(16, 32, 256, ("row", "row"))
    with recorder.Recorder(tmp_path) as recording:
        with monkeypatch.context() as change, pytest.raises(KeyboardInterrupt):
            change.setattr(recording, "see", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            call_scaled_mm(stand_ins, gemm)
        call_scaled_mm(stand_ins, gemm)
    assert [row["calls"] for row in rows_of(tmp_path)] == [1]


def test_the_recorder_is_short_and_stands_alone() -> None:
    source = Path(recorder.__file__).read_text()
    assert len(source.splitlines()) <= 200
    assert "import fp8lab" not in source and "from fp8lab import _" not in source


# --- refusals and damage --------------------------------------------------------------------------


def test_refusals(tmp_path: Path) -> None:
    gemm = Operands(16, 32, 256, ("row", "row"))
    d = hopper_gemm.to_bf16(gemm.result())
    for about, message in (
        ({"fp8lab": "gemm-9"}, "not a GEMM of fp8lab.recorder"),
        ({"tile_a": "1x128"}, "tile 1x128 needs (16, 2)"),
        ({"tile_b": "round"}, "'tile_b' is 'round'"),
        ({"format_a": "e9m9"}, "'format_a' is 'e9m9'"),
        ({"k": "512"}, "in a GEMM of 16 rows and K = 512"),
        ({"m": "-3"}, "'m' is '-3'"),
        ({"earlier_scales": "[1]"}, "no list of pairs"),
    ):
        done = replay(write(tmp_path / "x.safetensors", gemm, d, **about))
        assert done.returncode == 2 and message in done.stderr, (about, done.stderr)
    done = replay(write(tmp_path / "x.safetensors", gemm, d[:8]))
    assert done.returncode == 2 and "the operands give (16, 32)" in done.stderr
    # A tensor that takes no part in the product.
    path = write(tmp_path / "x.safetensors", gemm, d)
    size = int.from_bytes(path.read_bytes()[:8], "little")
    header, data = json.loads(path.read_bytes()[8 : 8 + size]), path.read_bytes()[8 + size :]
    header["residual"] = {
        "dtype": "U8",
        "shape": [8],
        "data_offsets": [len(data), len(data) + 8],
    }
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data + bytes(8))
    done = replay(path)
    assert done.returncode == 2 and "'residual' is no tensor of a recorded" in done.stderr
    (tmp_path / "nothing").mkdir()
    for words, message in (
        ([], "is missing"),
        ([tmp_path / "nothing"], "has no records"),
        ([tmp_path / "y"], "y"),
    ):
        done = replay(*words)
        assert done.returncode == 2 and message in done.stderr


def test_truncated_records_are_refused(tmp_path: Path) -> None:
    gemm = Operands(16, 32, 256, ("row", "row"))
    path = write(tmp_path / "x.safetensors", gemm, hopper_gemm.to_bf16(gemm.result()))
    whole = path.read_bytes()
    for size in range(0, len(whole), 997):
        path.write_bytes(whole[:size])
        assert replay(path).returncode == 2


# --- torch itself ---------------------------------------------------------------------------------


def test_real_scaled_mm_is_recorded(tmp_path: Path) -> None:
    real = pytest.importorskip("torch", reason="torch is not installed")
    real.manual_seed(0)
    x, w = real.randn(32, 512), real.randn(48, 512)
    scales = [value.abs().max() / 448 for value in (x, w)]
    a, b = ((v / s).to(real.float8_e4m3fn) for v, s in zip((x, w), scales))
    with recorder.Recorder(tmp_path):
        d = real._scaled_mm(a, b.t(), scales[0], scales[1], out_dtype=real.bfloat16)
        real.nn.functional.linear(x, w)
    (path,) = tmp_path.glob("*.safetensors")
    found = verdict(path)
    assert found["right"] and found["error"] < 0.01 and d.shape == (32, 48)
    rows = json.loads((tmp_path / "calls.json").read_text())
    assert [row["api"] for row in rows] == ["torch._scaled_mm", "torch.nn.functional.linear"]
