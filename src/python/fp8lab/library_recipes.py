"""Recipes of TransformerEngine and torchao as recipes of fp8lab, by the fields of their objects.

    text = fp8lab.library_recipes.toml_of(Float8CurrentScaling())      # a recipe file
    fp8lab.torch.convert(model, Float8LinearConfig.from_recipe_name("rowwise"))

Neither library is imported. What a recipe file cannot say is refused by the name of the field.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fp8lab.errors import Error

_KEPT = ("lm_head", "embed", "norm", "attention.core")
Table = dict[str, Any]


def _word(value: Any) -> str:
    """The last word of an enum's member, a dtype or a text, in lower case."""
    return str(getattr(value, "name", value)).rpartition(".")[2].lower()


def _refuse(source: Any, field: str, value: Any, accepted: str) -> Error:
    return Error(f"{type(source).__name__}.{field} = {value!r}; accepted: {accepted}")


def _require(source: Any, field: str, *accepted: Any) -> Any:
    """Returns a field that may be absent, and has one of these values."""
    value = getattr(source, field, accepted[0])
    if value not in accepted:
        raise _refuse(source, field, value, " or ".join(map(repr, accepted)))
    return value


def _formats(source: Any) -> dict[str, Table]:
    """The formats of forward and backward pass, of fp8_format."""
    word = _word(source.fp8_format)
    forward = {"hybrid": "e4m3fn", "e4m3": "e4m3fn", "e5m2": "e5m2"}
    if word not in forward:
        raise _refuse(source, "fp8_format", word, "HYBRID, E4M3, E5M2")
    backward = "e5m2" if word == "hybrid" else forward[word]
    return {"default": {"format": forward[word]}, "dy": {"format": backward}}


def _schedules(source: Any, defaults: tuple[bool, bool, bool]) -> dict[str, Table]:
    """What use_split_accumulator of the three GEMMs means on Hopper."""
    tables: dict[str, Table] = {}
    for role, default in zip(("fprop", "dgrad", "wgrad"), defaults):
        parameters = getattr(source, f"fp8_gemm_{role}", None)
        split = getattr(parameters, "use_split_accumulator", default)
        tables[role] = {"schedule": "promote:128" if split else "fast"}
    return tables


_QUANTIZED = {"x": "fp8_quant_fwd_inp", "w": "fp8_quant_fwd_weight", "dy": "fp8_quant_bwd_grad"}


def _scales(source: Any, power_2: bool) -> dict[str, Table]:
    """Scale format and least amax of x, w and dy."""
    tables: dict[str, Table] = {}
    for tensor, field in _QUANTIZED.items():
        parameters = getattr(source, field, None)
        is_power = getattr(parameters, "power_2_scale", power_2)
        table: Table = {"scale_format": "pow2" if is_power else "fp32"}
        if is_power:
            table["scale_rounding"] = "enc_floor"
        epsilon = float(getattr(parameters, "amax_epsilon", 0.0))
        if epsilon:
            table["amax_epsilon"] = epsilon
        tables[tensor] = table
    return tables


def _merged(*parts: dict[str, Table]) -> dict[str, Table]:
    merged: dict[str, Table] = {}
    for part in parts:
        for name, table in part.items():
            merged.setdefault(name, {}).update(table)
    return merged


_BACKWARD = (None, "high_precision", "dequantized")  # of backward_override


def _delayed(source: Any) -> tuple[str, dict[str, Table], dict[str, Table]]:
    if callable(source.amax_compute_algo):
        raise _refuse(source, "amax_compute_algo", "a function", "'max' or 'most_recent'")
    _require(source, "scaling_factor_compute_algo", None)
    _require(source, "backward_override", None)
    history = {
        "history": int(source.amax_history_len),
        "amax_algorithm": _require(source, "amax_compute_algo", "max", "most_recent"),
        "margin": int(source.margin),
    }
    return "te_delayed", _merged({"default": history}, _formats(source)), {}


def _current(source: Any) -> tuple[str, dict[str, Table], dict[str, Table]]:
    _require(source, "backward_override", None)
    slots = _merged(_formats(source), _scales(source, False))
    return "te_current", slots, _schedules(source, (False, True, True))


def _mx(source: Any) -> tuple[str, dict[str, Table], dict[str, Table]]:
    _require(source, "margin", 0)
    backward = _require(source, "backward_override", *_BACKWARD)
    base = {None: "mxfp8", "high_precision": "mxfp8_bf16_backward"}
    if backward is None:
        return "mxfp8", _formats(source), {}
    forward = {"default": _formats(source)["default"]}
    return base.get(backward, "mxfp8_dequantized_backward"), forward, {}


def _block(source: Any) -> tuple[str, dict[str, Table], dict[str, Table]]:
    _require(source, "backward_override", None)
    tiles: dict[str, Table] = {}
    dimensions = {"x": ("x", 1), "w": ("w", 2), "dy": ("grad", 1)}
    for tensor, (word, default) in dimensions.items():
        dimension = int(getattr(source, f"{word}_block_scaling_dim", default))
        if dimension not in (1, 2):
            raise _refuse(source, f"{word}_block_scaling_dim", dimension, "1 or 2")
        tiles[tensor] = {"tile": "1x128" if dimension == 1 else "128x128"}
    slots = _merged(_formats(source), _scales(source, True), tiles)
    powers = {table["scale_format"] for name, table in slots.items() if "scale_format" in table}
    if len(powers) > 1:
        fields = ", ".join(_QUANTIZED.values())
        raise Error(f"Float8BlockScaling: power_2_scale of {fields} differ; accepted: one value")
    base = "infir2" if powers == {"pow2"} else "infir2_fp32scale"
    return base, slots, _schedules(source, (True, True, True))


def _nvfp4_forward(source: Any, backward: str) -> tuple[str, dict[str, Table], dict[str, Table]]:
    """NVFP4 in the forward pass alone."""
    is_row = bool(getattr(source, "row_scaled_activation", False))
    x: Table = {"outer_scale": "row" if is_row else "tensor"}
    w: Table = {}
    if not getattr(source, "disable_2d_quantization", False):
        w.update(tile="16x16", scale_format="nv_two_level")
    chosen = _require(source, "nvfp4_4over6", "none", "weights", "activations", "all")
    if chosen != "none":
        _require(source, "nvfp4_4over6_e4m3_use_256", "all", chosen)
        error = _word(getattr(source, "nvfp4_4over6_err_mode", "MAE"))
        if error not in ("mae", "mse"):
            raise _refuse(source, "nvfp4_4over6_err_mode", error, "MAE, MSE")
        for scope, table in (("activations", x), ("weights", w)):
            if chosen in ("all", scope):
                table["four_over_six"] = error
    slots = {"fprop.x": x, "fprop.w": w}
    if backward == "high_precision":
        plain = {"orientation_source": "high_precision"}
        slots.update({"dgrad.w": plain, "wgrad.x": plain})
    return "nvfp4_row_dequantized_backward", slots, {}


def _nvfp4(source: Any) -> tuple[str, dict[str, Table], dict[str, Table]]:
    backward = _require(source, "backward_override", *_BACKWARD)
    if backward is not None:
        return _nvfp4_forward(source, backward)
    # Both are for the forward pass; how they go with the gradients' transforms is not published.
    _require(source, "row_scaled_activation", False)
    _require(source, "nvfp4_4over6", "none")
    slots: dict[str, Table] = {}
    if getattr(source, "disable_rht", False):
        slots["wgrad.x"], slots["wgrad.dy"] = {"transform": "none"}, {"transform": "none"}
    if getattr(source, "disable_stochastic_rounding", False):
        slots["dy"] = {"rounding": "nearest"}
    if getattr(source, "disable_2d_quantization", False):
        slots["w"] = {"tile": "1x16"}
    return "nvfp4", slots, {}


_CASTS = {
    "fprop.x": ("cast_config_input", "", "e4m3fn"),
    "fprop.w": ("cast_config_weight", "", "e4m3fn"),
    "dgrad.dy": ("cast_config_grad_output", "", "e5m2"),
    "dgrad.w": ("cast_config_weight_for_grad_input", "cast_config_weight", "e4m3fn"),
    "wgrad.dy": ("cast_config_grad_output_for_grad_weight", "cast_config_grad_output", "e5m2"),
    "wgrad.x": ("cast_config_input_for_grad_weight", "cast_config_input", "e4m3fn"),
}
_GEMMS = {
    "fprop": ("gemm_config_output", True),
    "dgrad": ("gemm_config_grad_input", False),
    "wgrad": ("gemm_config_grad_weight", False),
}


def _cast(source: Any, slot: str) -> Table:
    """The quantizer of one operand of torchao."""
    field, instead, target = _CASTS[slot]
    cast = getattr(source, field, None) or getattr(source, instead)
    kind = _word(getattr(cast, "scaling_type", "dynamic"))
    if kind == "disabled":
        return {"format": "bf16"}
    if kind != "dynamic":
        raise _refuse(source, f"{field}.scaling_type", kind, "dynamic, disabled")
    granularity = _word(getattr(cast, "scaling_granularity", "tensorwise"))
    tiles = {"tensorwise": "tensor", "axiswise": "row"}
    if granularity not in tiles:
        raise _refuse(source, f"{field}.scaling_granularity", granularity, "TENSORWISE, AXISWISE")
    dtype = getattr(cast, "target_dtype", None)
    format_name = _word(dtype).removeprefix("float8_") if dtype is not None else target
    return {"format": format_name, "tile": tiles[granularity]}


def _torchao(source: Any) -> tuple[str, dict[str, Table], dict[str, Table]]:
    scale: Table = {"amax_epsilon": 1e-12, "scale_format": "fp32"}
    if getattr(source, "round_scales_to_power_of_2", False):
        scale.update(scale_format="pow2", scale_rounding="enc_floor")
    slots: dict[str, Table] = {"default": scale}
    slots.update((slot, _cast(source, slot)) for slot in _CASTS)
    gemms: dict[str, Table] = {}
    for role, (field, default) in _GEMMS.items():
        fast = getattr(getattr(source, field, None), "use_fast_accum", default)
        gemms[role] = {"schedule": "fast" if fast else "promote:128", "output": "bf16"}
        formats = {slots[slot]["format"] for slot in _CASTS if slot.startswith(role)}
        if formats == {"bf16"}:
            gemms[role].update(accumulator="sm90_bf16", schedule="fast")
        elif "bf16" in formats:
            raise Error(f"Float8LinearConfig: one operand of {role} is disabled; accepted: both")
    return (
        "torchao_rowwise" if scale["scale_format"] == "pow2" else "torchao_tensorwise",
        slots,
        gemms,
    )


_READERS: dict[str, Callable[[Any], tuple[str, dict[str, Table], dict[str, Table]]]] = {
    "DelayedScaling": _delayed,
    "Float8CurrentScaling": _current,
    "MXFP8BlockScaling": _mx,
    "Float8BlockScaling": _block,
    "NVFP4BlockScaling": _nvfp4,
    "Float8LinearConfig": _torchao,
}


def _value(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def toml_of(source: Any, name: str = "") -> str:
    """Returns the recipe file of a recipe object, by default with the name of its class."""
    kind = type(source).__name__
    if kind not in _READERS:
        raise Error(f"a recipe of type {kind}; accepted: {', '.join(_READERS)}")
    for attention in ("fp8_dpa", "fp8_mha"):  # for which there is recipe fp8_attention
        _require(source, attention, False)
    base, slots, gemms = _READERS[kind](source)
    lines = [
        f'base = "{base}"',
        f'name = "{name or kind}"',
        f'summary = "Read from an object of {kind}"',
    ]
    for group, tables in (("slots", slots), ("gemm", gemms)):
        for table, keys in tables.items():
            if keys:
                lines += ["", f"[{group}.{table}]"]
                lines += [f"{key} = {_value(value)}" for key, value in keys.items()]
    kept = ", ".join(f'"{module}"' for module in _KEPT)
    lines += ["", "[keep_high_precision]", f"modules = [{kept}]"]
    return "\n".join(lines) + "\n"
