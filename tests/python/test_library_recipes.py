"""Recipe objects of TransformerEngine and torchao, here stand-ins with the same fields."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

fp8lab = pytest.importorskip("fp8lab", reason="the package fp8lab is not built")

from fp8lab import library_recipes  # noqa: E402

SLOTS = ("fprop.x", "fprop.w", "dgrad.dy", "dgrad.w", "wgrad.dy", "wgrad.x")


def stand_in(kind: str, **fields: Any) -> Any:
    return type(kind, (SimpleNamespace,), {})(**fields)


def quantizers(recipe: str) -> dict[str, Any]:
    return {slot: fp8lab.QuantSpec(f"{recipe}:{slot}") for slot in SLOTS}


def products(recipe: str) -> dict[str, Any]:
    """Products of operands for which schedules and output types differ."""
    draw = np.random.default_rng(3)
    a, b = (np.exp2(draw.uniform(-4, 4, (16, 1024))).astype(np.float32) for _ in range(2))
    given = {"operand_a": "e4m3fn/tensor/fp32", "operand_b": "e4m3fn/tensor/fp32"}
    return {
        role: fp8lab.gemm(a, b, f"{recipe}:{role}", **given) for role in ("fprop", "dgrad", "wgrad")
    }


def file_of(tmp_path: Path, source: Any) -> str:
    path = tmp_path / "read.toml"
    path.write_text(library_recipes.toml_of(source, "read"))
    return str(path)


FORMAT = {name: SimpleNamespace(name=name) for name in ("HYBRID", "E4M3", "E5M2")}


def parameters(**fields: Any) -> Any:
    return SimpleNamespace(**fields)


def delayed(**fields: Any) -> Any:
    known = dict(
        margin=0,
        fp8_format=FORMAT["HYBRID"],
        amax_history_len=1024,
        amax_compute_algo="max",
        scaling_factor_compute_algo=None,
    )
    return stand_in("DelayedScaling", **{**known, **fields})


def current(**fields: Any) -> Any:
    plain, split = parameters(power_2_scale=False, amax_epsilon=0.0), parameters
    known = dict(
        fp8_format=FORMAT["HYBRID"],
        fp8_quant_fwd_inp=plain,
        fp8_quant_fwd_weight=plain,
        fp8_quant_bwd_grad=plain,
        fp8_gemm_fprop=split(use_split_accumulator=False),
        fp8_gemm_dgrad=split(use_split_accumulator=True),
        fp8_gemm_wgrad=split(use_split_accumulator=True),
    )
    return stand_in("Float8CurrentScaling", **{**known, **fields})


def block(power: bool = True, **fields: Any) -> Any:
    scaled, split = parameters(power_2_scale=power, amax_epsilon=0.0), parameters
    known = dict(
        fp8_format=FORMAT["E4M3"],
        fp8_quant_fwd_inp=scaled,
        fp8_quant_fwd_weight=scaled,
        fp8_quant_bwd_grad=scaled,
        x_block_scaling_dim=1,
        w_block_scaling_dim=2,
        grad_block_scaling_dim=1,
        fp8_gemm_fprop=split(use_split_accumulator=True),
    )
    return stand_in("Float8BlockScaling", **{**known, **fields})


def cast(kind: str = "dynamic", granularity: str = "tensorwise", target: Any = None) -> Any:
    return parameters(
        scaling_type=SimpleNamespace(name=kind.upper()),
        scaling_granularity=SimpleNamespace(name=granularity.upper()),
        target_dtype=target,
    )


def torchao(granularity: str, power: bool, grad: Any = None, **fields: Any) -> Any:
    known = dict(
        cast_config_input=cast(granularity=granularity),
        cast_config_weight=cast(granularity=granularity),
        cast_config_grad_output=cast(granularity=granularity, target=grad),
        cast_config_input_for_grad_weight=None,
        cast_config_weight_for_grad_input=None,
        cast_config_grad_output_for_grad_weight=None,
        gemm_config_output=parameters(use_fast_accum=True),
        gemm_config_grad_input=parameters(use_fast_accum=False),
        gemm_config_grad_weight=parameters(use_fast_accum=False),
        round_scales_to_power_of_2=power,
    )
    return stand_in("Float8LinearConfig", **{**known, **fields})


SAME = {
    "te_delayed": delayed(),
    "te_current": current(),
    "mxfp8": stand_in("MXFP8BlockScaling", margin=0, fp8_format=FORMAT["E4M3"]),
    "infir2": block(),
    "infir2_fp32scale": block(power=False),
    "nvfp4": stand_in("NVFP4BlockScaling", disable_rht=False),
    "nvfp4_no_rht": stand_in("NVFP4BlockScaling", disable_rht=True),
    "nvfp4_nearest": stand_in("NVFP4BlockScaling", disable_stochastic_rounding=True),
    "nvfp4_1d": stand_in("NVFP4BlockScaling", disable_2d_quantization=True),
    "torchao_tensorwise": torchao("tensorwise", False),
    "torchao_rowwise": torchao("axiswise", True, grad="torch.float8_e4m3fn"),
    "torchao_rowwise_gw_hp": torchao(
        "axiswise",
        True,
        grad="torch.float8_e4m3fn",
        cast_config_weight_for_grad_input=cast(),
        cast_config_input_for_grad_weight=cast("disabled"),
        cast_config_grad_output_for_grad_weight=cast("disabled"),
    ),
}


FORWARD = {
    "mxfp8_bf16_backward": stand_in(
        "MXFP8BlockScaling",
        margin=0,
        fp8_format=FORMAT["E4M3"],
        backward_override="high_precision",
    ),
    "mxfp8_dequantized_backward": stand_in(
        "MXFP8BlockScaling", margin=0, fp8_format=FORMAT["E4M3"], backward_override="dequantized"
    ),
    "nvfp4_row_dequantized_backward": stand_in(
        "NVFP4BlockScaling",
        row_scaled_activation=True,
        disable_2d_quantization=True,
        backward_override="dequantized",
    ),
    "nvfp4_row_four_over_six": stand_in(
        "NVFP4BlockScaling",
        row_scaled_activation=True,
        disable_2d_quantization=True,
        nvfp4_4over6="all",
        backward_override="dequantized",
    ),
}


def words_of(recipe: str, slot: str) -> str:
    """The label of an operand, or what the library says of one that codes are read for."""
    try:
        return fp8lab.QuantSpec(f"{recipe}:{slot}").label
    except fp8lab.Error as error:
        return str(error).replace(recipe, "RECIPE")


@pytest.mark.parametrize("recipe", FORWARD)
def test_backward_override_and_forward_options_are_recipes(recipe: str, tmp_path: Path) -> None:
    read = file_of(tmp_path, FORWARD[recipe])
    for slot in SLOTS:
        assert words_of(read, slot) == words_of(recipe, slot)
    dequantized = "this slot is dequantized" in words_of(read, "wgrad.x")
    assert dequantized == (FORWARD[recipe].backward_override == "dequantized")


def test_forward_options_become_keys(tmp_path: Path) -> None:
    source = stand_in(
        "NVFP4BlockScaling",
        nvfp4_4over6="weights",
        nvfp4_4over6_err_mode="MSE",
        backward_override="high_precision",
    )
    read = file_of(tmp_path, source)
    assert words_of(read, "fprop.x") == "e2m1/1x16/nv_two_level"
    assert words_of(read, "fprop.w") == "e2m1/16x16/nv_two_level/mse"
    assert words_of(read, "dgrad.w") == words_of(read, "wgrad.x") == "bf16"


@pytest.mark.parametrize("recipe", SAME)
def test_defaults_are_the_recipes_of_this_repository(recipe: str, tmp_path: Path) -> None:
    read = file_of(tmp_path, SAME[recipe])
    found, expected = quantizers(read), quantizers(recipe)
    assert {slot: spec.label for slot, spec in found.items()} == {
        slot: spec.label for slot, spec in expected.items()
    }
    assert found == expected
    if "nv" in recipe or "gw_hp" in recipe:
        return  # their units take other operands
    theirs = products(recipe)
    for role, product in products(read).items():
        assert np.array_equal(product, theirs[role]), role


@pytest.mark.parametrize(
    ("source", "slot", "key", "value"),
    [
        (delayed(amax_history_len=16), "fprop.x", "history", 16),
        (delayed(amax_compute_algo="most_recent"), "wgrad.x", "amax_algorithm", "most_recent"),
        (delayed(margin=2), "dgrad.dy", "margin", 2),
        (delayed(fp8_format=FORMAT["E4M3"]), "dgrad.dy", "format", "e4m3fn"),
        (
            current(fp8_quant_bwd_grad=parameters(power_2_scale=True, amax_epsilon=0.0)),
            "wgrad.dy",
            "scale_format",
            "pow2",
        ),
        (
            current(fp8_quant_fwd_inp=parameters(power_2_scale=False, amax_epsilon=1e-6)),
            "fprop.x",
            "amax_epsilon",
            1e-6,
        ),
        (block(grad_block_scaling_dim=2), "dgrad.dy", "tile", "128x128"),
        (block(fp8_format=FORMAT["HYBRID"]), "dgrad.dy", "format", "e5m2"),
    ],
)
def test_fields_become_keys(source: Any, slot: str, key: str, value: Any, tmp_path: Path) -> None:
    spec = quantizers(file_of(tmp_path, source))[slot]
    assert getattr(spec, key) == pytest.approx(value)


def test_accumulators_follow_the_object(tmp_path: Path) -> None:
    fast = current(fp8_gemm_dgrad=parameters(use_split_accumulator=False))
    found, plain = products(file_of(tmp_path, fast)), products("te_current")
    assert np.array_equal(found["fprop"], plain["fprop"])
    assert not np.array_equal(found["dgrad"], plain["dgrad"])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (delayed(amax_compute_algo=max), "DelayedScaling.amax_compute_algo = 'a function'"),
        (delayed(scaling_factor_compute_algo=max), "scaling_factor_compute_algo"),
        (delayed(fp8_format=SimpleNamespace(name="E3M4")), "accepted: HYBRID, E4M3, E5M2"),
        (current(backward_override="dequantized"), "backward_override = 'dequantized'"),
        (current(fp8_dpa=True), "fp8_dpa = True; accepted: False"),
        (current(fp8_mha=True), "fp8_mha = True; accepted: False"),
        (
            stand_in("NVFP4BlockScaling", row_scaled_activation=True),
            "row_scaled_activation = True; accepted: False",
        ),
        (
            stand_in(
                "NVFP4BlockScaling",
                nvfp4_4over6="all",
                nvfp4_4over6_e4m3_use_256="none",
                backward_override="dequantized",
            ),
            "nvfp4_4over6_e4m3_use_256 = 'none'; accepted: 'all'",
        ),
        (block(x_block_scaling_dim=3), "x_block_scaling_dim = 3; accepted: 1 or 2"),
        (
            block(fp8_quant_fwd_weight=parameters(power_2_scale=False, amax_epsilon=0.0)),
            "power_2_scale of fp8_quant_fwd_inp, fp8_quant_fwd_weight, fp8_quant_bwd_grad differ",
        ),
        (
            torchao("axiswise", True, cast_config_weight=cast("delayed")),
            "cast_config_weight.scaling_type = 'delayed'; accepted: dynamic, disabled",
        ),
        (
            torchao("axiswise", True, cast_config_input=cast("disabled")),
            "one operand of fprop is disabled; accepted: both",
        ),
        (stand_in("FancyScaling"), "a recipe of type FancyScaling; accepted: DelayedScaling"),
    ],
)
def test_what_a_recipe_cannot_say_is_refused(source: Any, message: str) -> None:
    with pytest.raises(fp8lab.Error) as refusal:
        library_recipes.toml_of(source)
    assert message in str(refusal.value)
