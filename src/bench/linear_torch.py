"""fp8lab.torch: bits and time on a GPU, and the time of a small model on the CPU.

    python src/bench/linear_torch.py bits                # exit status 3 if a bit differs
    python src/bench/linear_torch.py time --json FILE
    OMP_WAIT_POLICY=passive python src/bench/linear_torch.py cpu

`bits` and `time` need torch with CUDA and the package fp8lab with its CUDA backend. `bits` runs
linear layers on both devices, over recipes, shapes, types, streams and three steps, and compares
y, dx, dw and the gradient of the bias. `time` measures forward and backward pass of six decoder
layers in BF16, of the shapes of Llama 2 7B and Qwen2.5 7B: BF16, convert("infir2"), and a linear
layer of torch._scaled_mm with a scale for each row, as torchao's recipe rowwise has; eager and
under torch.compile. `cpu` needs transformers, and measures training steps of SmolLM2-135M in FP32
and converted, in processor time too: other programs disturb it less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fp8lab.torch

RECIPES = (
    "infir2",
    "infir2_fp32scale",
    "te_current",
    "te_delayed",
    "deepseek_v3",
    "torchao_rowwise",
    "torchao_tensorwise",
    "mxfp8",
    "nvfp4",
    "coat",
    "halo1_fp8",
    "switchback_int8",
    "bf16",
)
SHAPES = ((64, 128, 128), (37, 160, 224), (1, 160, 64), (300, 528, 272), (1024, 2048, 1408))
TYPES = ((torch.bfloat16, torch.bfloat16), (torch.bfloat16, torch.float32), (torch.float32,) * 2)

MODELS = {
    "llama2-7b": dict(hidden=4096, inner=11008, heads=32, kv_heads=32),
    "qwen2.5-7b": dict(hidden=3584, inner=18944, heads=28, kv_heads=4),
}
LAYERS = 6


# --- bits -----------------------------------------------------------------------------------------


def passes(
    recipe: str, shape: tuple[int, int, int], types: tuple[Any, Any], device: str
) -> Iterator[dict[str, Tensor]]:
    """y and gradients of three steps of two micro-batches, on the host."""
    rows, width, out = shape
    activation, weight = types
    draw = torch.Generator().manual_seed(rows)
    layer = nn.Linear(width, out)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw) / 16)
    module = fp8lab.torch.convert(nn.Sequential(layer).to(weight), recipe).to(device)
    for _ in range(3):
        for micro_batch in range(2):
            spread = torch.exp2(torch.randint(-6, 7, (rows, 1), generator=draw).float())
            x = (torch.randn(rows, width, generator=draw) * spread).to(device, activation)
            dy = torch.randn(rows, out, generator=draw).to(device, activation)
            x.requires_grad_()
            module.zero_grad()
            with torch.autocast(device, activation, enabled=activation != weight):
                y = module(x)
            y.backward(dy)
            weight_gradient, bias_gradient = layer.weight.grad, layer.bias.grad
            found = {"y": y, "dx": x.grad, "dw": weight_gradient, "dbias": bias_gradient}
            yield {name: value.detach().cpu() for name, value in found.items()}
        fp8lab.torch.end_step(module)


def bits_of(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int16 if tensor.dtype == torch.bfloat16 else torch.int32)


def compare_bits() -> int:
    """Prints a line for each recipe; returns the number of elements that differ."""
    different = 0
    side = torch.cuda.Stream()
    for recipe in RECIPES:
        elements = wrong = 0
        refused = ""
        for shape in SHAPES:
            for types in TYPES:
                try:
                    expected = list(passes(recipe, shape, types, "cpu"))
                    found = list(passes(recipe, shape, types, "cuda"))
                    side.wait_stream(torch.cuda.current_stream())
                    with torch.cuda.stream(side):
                        found += list(passes(recipe, shape, types, "cuda"))
                except fp8lab.torch.Error as error:
                    refused = str(error)
                    continue
                for ours, theirs in zip(found, expected + expected, strict=True):
                    for name in theirs:
                        unequal = bits_of(ours[name]) != bits_of(theirs[name])
                        elements += unequal.numel()
                        count = int(unequal.sum())
                        if count and not wrong:
                            print(f"  first: {recipe} {shape} {types} {name}")
                        wrong += count
        if elements == 0:
            raise SystemExit(f"linear_torch: {recipe} was compared nowhere: {refused}")
        note = f"; refused: {refused}" if refused else ""
        print(f"{recipe:20} {elements:12} elements, {wrong} differ{note}", flush=True)
        different += wrong
    return different


# --- time -----------------------------------------------------------------------------------------


class Decoder(nn.Module):
    """A decoder layer: attention with grouped queries and SwiGLU, each behind an RMSNorm."""

    def __init__(self, hidden: int, inner: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, hidden // heads
        width = kv_heads * self.size
        self.norm, self.mlp_norm = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.qkv_proj = nn.Linear(hidden, hidden + 2 * width, bias=False)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)
        self.gate_up_proj = nn.Linear(hidden, 2 * inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, hidden = x.shape
        parts = self.qkv_proj(self.norm(x)).view(batch, length, -1, self.size).transpose(1, 2)
        q, k, v = parts.split([self.heads, self.kv_heads, self.kv_heads], 1)
        grouped = self.heads != self.kv_heads
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        x = x + self.o_proj(mixed.transpose(1, 2).reshape(batch, length, hidden))
        gate, up = self.gate_up_proj(self.mlp_norm(x)).chunk(2, -1)
        return x + self.down_proj(F.silu(gate) * up)


def _rows(values: Tensor) -> tuple[Tensor, Tensor]:
    """E4M3 codes and scales (rows, 1) of the rows."""
    scale = values.abs().amax(1, keepdim=True).float().clamp(min=1e-12) / 448
    return (values.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale


def _rowwise(a: Tensor, b: Tensor) -> Tensor:
    """A (m, k) B (n, k)^T through E4M3 with a scale for each row."""
    (codes_a, scale_a), (codes_b, scale_b) = _rows(a), _rows(b)
    return torch._scaled_mm(
        codes_a,
        codes_b.t(),
        scale_a=scale_a,
        scale_b=scale_b.t(),
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )


class Rowwise(torch.autograd.Function):
    """The three products of a linear layer by torch._scaled_mm."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return _rowwise(x, w)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        dx = _rowwise(dy, w.t().contiguous())
        return dx, _rowwise(dy.t().contiguous(), x.t().contiguous())


class RowwiseLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return Rowwise.apply(x.reshape(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)


def _with_rowwise(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = RowwiseLinear
    return model


VARIANTS: dict[str, tuple[Callable[[nn.Module], nn.Module], bool]] = {
    "bf16": (lambda model: model, False),
    "bf16 compiled": (lambda model: model, True),
    "infir2": (lambda model: fp8lab.torch.convert(model, "infir2"), False),
    "infir2 compiled": (lambda model: fp8lab.torch.convert(model, "infir2"), True),
    "_scaled_mm rowwise compiled": (_with_rowwise, True),
}


def seconds_of(name: str, model: str, tokens: int, repeats: int) -> list[float]:
    """Seconds of forward and backward passes, after three that are not counted."""
    prepare, is_compiled = VARIANTS[name]
    torch.manual_seed(1)
    with torch.device("cuda"):
        layers = nn.Sequential(*(Decoder(**MODELS[model]) for _ in range(LAYERS)))
        layers = prepare(layers.to(torch.bfloat16))
        x = torch.randn(tokens // 4096, 4096, MODELS[model]["hidden"], dtype=torch.bfloat16)
    torch._dynamo.reset()
    run = torch.compile(layers, fullgraph=True) if is_compiled else layers
    x.requires_grad_()
    dy = torch.randn_like(x)
    seconds = []
    for step in range(repeats + 3):
        layers.zero_grad()
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        began.record()
        run(x).backward(dy)
        ended.record()
        torch.cuda.synchronize()
        if step >= 3:
            seconds.append(began.elapsed_time(ended) / 1000)
    return seconds


def measure(tokens: list[int], repeats: int) -> list[dict[str, Any]]:
    """Prints a line for each variant; returns what was measured."""
    results = []
    for model in MODELS:
        for count in tokens:
            base = None
            for name in VARIANTS:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                times = seconds_of(name, model, count, repeats)
                median = statistics.median(times)
                base = base or median
                peak = torch.cuda.max_memory_allocated()
                print(
                    f"{model:12} {count:6} tokens  {name:28} {1000 * median:8.2f} ms  "
                    f"{base / median:5.2f} of BF16 eager  {peak / 1e9:5.1f} GB",
                    flush=True,
                )
                results.append(
                    {
                        "model": model,
                        "tokens": count,
                        "variant": name,
                        "seconds": times,
                        "peak_bytes": peak,
                    }
                )
    return results


# --- the processor --------------------------------------------------------------------------------


def measure_cpu(tokens: int, repeats: int) -> list[dict[str, Any]]:
    """Seconds of training steps of SmolLM2-135M from random weights, after one that is not
    counted, and processor seconds of all threads."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
        use_cache=False,
    )
    results: list[dict[str, Any]] = []
    for name in ("fp32", "infir2"):
        torch.manual_seed(1)
        model = transformers.LlamaForCausalLM(config)
        if name != "fp32":
            fp8lab.torch.convert(model, name)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
        batch = torch.randint(config.vocab_size, (1, tokens))
        seconds, processor = [], []
        for step in range(repeats + 1):
            began, used = time.perf_counter(), time.process_time()
            model(input_ids=batch, labels=batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step > 0:
                seconds.append(time.perf_counter() - began)
                processor.append(time.process_time() - used)
        result = {"variant": name, "tokens": tokens, "seconds": seconds, "processor": processor}
        results.append(result)
        base = results[0]
        print(
            f"{name:8} {statistics.median(seconds):7.2f} s a step, "
            f"{statistics.median(seconds) / statistics.median(base['seconds']):5.2f} of FP32; "
            f"processor {statistics.median(processor):7.2f} s, "
            f"{statistics.median(processor) / statistics.median(base['processor']):5.2f} of FP32",
            flush=True,
        )
    return results


def main() -> int:
    """Compares or measures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("bits", "time", "cpu"))
    parser.add_argument("--tokens", type=int, nargs="+", help="4096 8192 16384; of cpu: 256")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    on_gpu = options.what != "cpu"
    device = torch.cuda.get_device_name() if on_gpu else f"{torch.get_num_threads()} threads"
    print(f"{device}, torch {torch.__version__}", flush=True)
    if options.what == "bits":
        different = compare_bits()
        print(f"{different} elements differ")
        return 3 if different else 0
    if on_gpu:
        results = measure(options.tokens or [4096, 8192, 16384], options.repeats)
    else:
        results = measure_cpu((options.tokens or [256])[0], options.repeats)
    if options.json:
        whole = {"device": device, "torch": torch.__version__}
        options.json.write_text(json.dumps({**whole, "results": results}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
