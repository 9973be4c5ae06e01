"""Reads the folders of `fp8lab convert` with the libraries whose dialects they are in.

    export FP8LAB_PROGRAM=build/program/src/fp8lab PYTHONPATH=tests/end_to_end
    python3 tests/reference/read_quantized_folders.py

needs torch, safetensors, transformers, compressed-tensors, torchao and nvidia-modelopt. Compares
each weight that a library dequantizes with tests/end_to_end/quantized_files.py, in the library's
own type, and prints a line for each target.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from model_files import write_folder
from program import run
from quantized_files import CONFIG, TARGETS, gaussian_model, read_weights
from safetensors import safe_open
from safetensors.torch import load_file

Weights = Iterator[tuple[str, Any]]


def by_transformers(folder: Path) -> Weights:
    from transformers import AutoModelForCausalLM, FineGrainedFP8Config

    model = AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=FineGrainedFP8Config(dequantize=True), dtype=torch.float32
    )
    yield from model.state_dict().items()


def by_compressed_tensors(folder: Path) -> Weights:
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig

    config = QuantizationConfig.model_validate(
        json.loads((folder / "config.json").read_text())["quantization_config"]
    )
    scheme = config.config_groups["group_0"]
    compressor = BaseCompressor.get_value_from_registry(config.format)
    modules: dict[str, dict[str, Any]] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        module, leaf = name.rsplit(".", 1)
        modules.setdefault(module, {})[leaf] = tensor
    for module, tensors in modules.items():
        if "weight_scale" in tensors:
            tensors = compressor.decompress(tensors, scheme)
        yield module + ".weight", tensors["weight"]


def by_torchao(folder: Path) -> Weights:
    from torchao.prototype.safetensors.safetensors_support import unflatten_tensor_state_dict

    with safe_open(folder / "model.safetensors", "pt") as file:
        metadata = dict(file.metadata())
    tensors, left = unflatten_tensor_state_dict(load_file(folder / "model.safetensors"), metadata)
    assert not left, left
    for name, tensor in tensors.items():
        yield name, tensor if type(tensor) is torch.Tensor else tensor.dequantize()


def by_modelopt(folder: Path) -> Weights:
    from modelopt.torch.quantization.qtensor import FP8QTensor, MXFP8QTensor, NVFP4QTensor

    tensors = load_file(folder / "model.safetensors")
    algorithm = json.loads((folder / "hf_quant_config.json").read_text())["quantization"][
        "quant_algo"
    ]
    for name, codes in tensors.items():
        scale = tensors.get(name + "_scale")
        if name.endswith(("_scale", "_scale_2")):
            continue
        if scale is None:
            yield name, codes
        elif "NVFP4" in algorithm:
            shape = torch.Size([codes.shape[0], 2 * codes.shape[1]])
            stored = NVFP4QTensor(shape, torch.float32, codes)
            second = tensors[name + "_scale_2"]
            yield name, stored.dequantize(scale=scale, double_scale=second, block_sizes={-1: 16})
        elif algorithm == "MXFP8":
            yield name, MXFP8QTensor(codes.shape, torch.float32, codes).dequantize(scale=scale)
        else:
            # A scale a row is kept as a vector; blocks with extents of 1 between.
            blocks = {-1: 128, -2: 128} if scale.ndim == 4 else None
            wide = scale[:, None] if scale.ndim == 1 else scale[:, 0, :, 0] if blocks else scale
            stored = FP8QTensor(codes.shape, torch.float32, codes)
            yield name, stored.dequantize(scale=wide, block_sizes=blocks)


def by_torch(folder: Path) -> Weights:
    """FNUZ codes, whose values are those of torch.float8_e4m3fnuz."""
    config = json.loads((folder / "config.json").read_text())
    block = config["quantization_config"]["weight_block_size"]
    tensors = load_file(folder / "model.safetensors")
    for name, codes in tensors.items():
        scale = tensors.get(name + "_scale_inv")
        if name.endswith("_scale_inv"):
            continue
        if scale is None:
            yield name, codes
            continue
        assert codes.dtype == torch.float8_e4m3fnuz
        if block:
            scale = scale.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
            scale = scale[: codes.shape[0], : codes.shape[1]]
        yield name, codes.float() * scale


READERS = {
    "modelopt": by_modelopt,
    "fp8": by_transformers,
    "compressed-tensors": by_compressed_tensors,
    "torchao": by_torchao,
}


def difference(expected: np.ndarray[Any, Any], tensor: torch.Tensor) -> float:
    """The largest difference in units of the tensor's own type at that magnitude."""
    wide = torch.from_numpy(np.array(expected, np.float32))
    steps = torch.finfo(tensor.dtype).eps * wide.abs().clamp_min(1e-30)
    return float(((wide - tensor.float()).abs() / steps).max())


def main() -> int:
    failures = 0
    with tempfile.TemporaryDirectory() as place:
        source = write_folder(Path(place) / "bf16", gaussian_model(CONFIG), CONFIG)
        for target, options in TARGETS.items():
            folder = Path(place) / target.replace(":", "_")
            result = run("convert", source, folder, "--to", target, *options)
            assert result.returncode == 0, result.stderr
            reader = by_torch if "fnuz" in target else READERS[target.split(":")[0]]
            expected = read_weights(folder, target)
            try:
                found = dict(reader(folder))
            except Exception as error:  # pylint: disable=broad-except
                failures += 1
                print(f"{target}: {type(error).__name__}: {str(error)[:300]}")
                continue
            missing = expected.keys() - found.keys()
            worst = max(
                difference(expected[name], found[name]) for name in expected if name in found
            )
            types = {
                str(found[name].dtype).removeprefix("torch.") for name in expected if name in found
            }
            failures += bool(missing) or worst > 2
            print(
                f"{target}: {len(expected) - len(missing)} of {len(expected)} tensors, largest "
                f"difference {worst:.2f} units of {', '.join(sorted(types))}"
            )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
