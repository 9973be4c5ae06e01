#!/usr/bin/env python3
"""The messages of the program about bad input: tests/golden/messages.txt.

    python3 tests/golden/make_messages.py build/program/src/fp8lab > tests/golden/messages.txt

Each case is a command line and the files that it reads; the program must end it with status 2 and
one line on standard error. tests/end_to_end/test_messages.py compares the file with the program.
"""

from __future__ import annotations

import json
import os
import shlex
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

Files = dict[str, str | bytes]

STAGE = '[[stages]]\nname = "s"\nsteps = 30\n'
STUDY = 'base = "run.toml"\n'
AXIS = '[[axis]]\nkey = "recipe"\nvalues = ["bf16"]\n'
RECIPE = 'name = "r"\n'
LLAMA: dict[str, object] = {
    "model_type": "llama",
    "vocab_size": 272,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
}
GPT2: dict[str, object] = {
    "model_type": "gpt2",
    "vocab_size": 272,
    "n_embd": 64,
    "n_layer": 1,
    "n_head": 2,
    "n_positions": 128,
    "activation_function": "gelu_new",
}


@dataclass(frozen=True)
class Case:
    """Words of a command line, and the files beside it."""

    words: str
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    about: str = ""  # what the files say, where the command does not


def npy(header: str, data: bytes = b"", version: tuple[int, int] = (1, 0)) -> bytes:
    text = header.encode() + b"\n"
    size = struct.pack("<H" if version[0] == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes(version) + size + text + data


def matrix(rows: int, cols: int) -> bytes:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {cols})}}"
    return npy(header, struct.pack(f"<{rows * cols}f", *range(rows * cols)))


def safetensors(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def shard(tokens: int, documents: int, **fields: int) -> bytes:
    """The header of a token file (src/data/README.md) and nothing behind it."""
    usual = {"version": 1, "bits": 16, "vocabulary": 256, "begin": -1, "end": -1, "flags": 0}
    known = {**usual, **fields}
    head = b"fp8ltok\n"
    head += struct.pack("<IIQQ", known["version"], known["bits"], tokens, documents)
    head += struct.pack("<IiiI", *(known[k] for k in ("vocabulary", "begin", "end", "flags")))
    return head.ljust(128, b"\0")


def run_files() -> Iterator[Case]:
    """Keys of run files."""
    stress = STAGE + "[[stages.stress]]\n"
    outliers = stress + 'kind = "outlier_channels"\n'
    spike = stress + 'kind = "spike"\n'
    rope = STAGE + "[model.rope_scaling]\n"
    for text in (
        "sed = 1\n" + STAGE,
        'name = "x"\n',
        "= 1\n",
        STAGE + "stepz = 1\n",
        "[model]\nhidden = 1\n" + STAGE,
        "[optimizer]\nlr = 1\n" + STAGE,
        "[logging]\nevery = 1\n" + STAGE,
        "[attention]\nkv_tile = 24\n" + STAGE,
        STAGE + '[stages.data]\nfile = "x"\n',
        "seed = -1\n" + STAGE,
        "seed = 1.5\n" + STAGE,
        "seed = 2020-01-01\n" + STAGE,
        'seed = "one"\n' + STAGE,
        "model = 3\n" + STAGE,
        'model = "huge"\n' + STAGE,
        "stages = [1]\n",
        '[[stages]]\nbase = "rl"\n',
        "[[stages]]\nbase = 3\n",
        'backend = "tpu"\n' + STAGE,
        'backend = "cud"\n' + STAGE,
        "[model]\nhead_dim = 63\n" + STAGE,
        "[model]\nnum_key_value_heads = 3\n" + STAGE,
        "[model]\nhidden_size = 1000000\nintermediate_size = 1000000\n" + STAGE,
        rope,
        rope + 'rope_type = "longrope"\n',
        rope + 'rope_type = "linear"\nfactor = 0.5\n',
        "[optimizer]\nbeta1 = 1.0\n" + STAGE,
        "[optimizer]\nclip_norm = inf\n" + STAGE,
        '[optimizer]\nfirst_moment = "fp8"\n' + STAGE,
        '[optimizer]\nkind = "adam"\n' + STAGE,
        '[optimizer]\n[[optimizer.group]]\nmatch = "layers"\n' + STAGE,
        "[[stages]]\nsteps = 3\n",
        '[[stages]]\nname = "a b"\n',
        STAGE + STAGE,
        STAGE + "batch_sequences = 6\nmicro_batch_sequences = 4\n",
        STAGE + "sequence_length = 8192\n",
        STAGE + "batch_sequences = 8\n[parallel]\nshards = 3\n",
        STAGE + "[stages.learning_rate]\nwarmup_steps = 20\ndecay_steps = 11\n",
        STAGE + '[stages.learning_rate]\nkind = "cosine"\ndecay_steps = 11\n',
        STAGE + "[stages.planted_outliers]\nchannels = 4\n",
        stress,
        stress + 'kind = "spikes"\n',
        outliers,
        outliers + "gain = 3000.0\n",
        outliers + "gain = 2\nchannels = 257\n",
        outliers + 'gain = 2\nlayers = "layers.7"\n',
        spike + "at_step = 30\n",
        spike + "over_steps = 2\n",
        STAGE + '[stages.data]\nkind = "jsonl"\n',
        STAGE + '[stages.data]\nkind = "text"\npath = "x"\nform = "prompt_response"\n',
        STAGE + "[stages.data]\nrange = [0.5, 0.5]\n",
        STAGE + "[stages.data]\nsources = []\n",
        STAGE + '[stages.data]\nkind = "tokens"\npath = 3\n',
        STAGE + "[[stages.data.sources]]\nweight = 0\n",
        STAGE + "[stages.eval]\nexact_match = 3\n",
        STAGE + "[stages.eval.pass_at_k]\nk = [9]\nsamples = 4\n",
        "[a" + ".b" * 40 + "]\n",
        "a = " + "[" * 40 + "]" * 40 + "\n",
    ):
        yield Case("train --config run.toml --dry-run", {"run.toml": text})
    for text in ("stages.t.steps=1", "seed=one", "seed", "recipe.name=x", "model.bas=tiny", ".=1"):
        words = f"train --config run.toml --dry-run --set {text}"
        yield Case(words, {"run.toml": STAGE})
    for text in ("optimizer.lr=1", "stages.s.batch_size=2", "optimizer.max_grad_norm=1"):
        words = f"train --config run.toml --dry-run --set {text}"
        yield Case(words, {"run.toml": STAGE})
    yield Case("train --config study.toml", {"study.toml": STUDY + AXIS})
    yield Case("train --config r.toml", {"r.toml": RECIPE + '[slots.x]\nformat = "e4m3fn"\n'})
    yield Case("train --preset quickstart --recipe run.toml", {"run.toml": STAGE})
    yield Case("train --config none.toml")
    yield Case("train --config run.toml --scale 0", {"run.toml": STAGE})


def recipes() -> Iterator[Case]:
    """Keys of recipes."""
    x = "[slots.x]\n"
    for text in (
        RECIPE + "tile = 1\n",
        RECIPE + x + 'formt = "e4m3fn"\n',
        RECIPE + x + 'format = "e4m3"\n',
        RECIPE + x + 'format = "e8m0"\n',
        RECIPE + x + 'format = "e4m3fn"\ntile = "1x0"\nscale_source = "current"\n',
        RECIPE + x + 'format = "e4m3fn"\ntile = "1x128"\nscale_source = "delayed"\n',
        RECIPE + x + 'format = "bf16"\nscale_source = "current"\n',
        RECIPE + '[slots.dy]\nformat = "e5m3"\ntile = "1x128"\n',
        RECIPE + '[slots.dy]\nformat = "e5m3"\nscale_format = "pow2"\n',
        RECIPE + '[slots.default]\ntile = "1x128"\n[slots.dy]\nformat = "e5m3"\n',
        RECIPE + x + 'format = "e4m3fn"\nscale_source = "current"\nscale_rounding = "down"\n',
        RECIPE + x + 'weight_source = "fp32"\n',
        RECIPE + '[slots.fprop.x]\norientation_source = "requantized"\n',
        RECIPE + '[slots.y]\nformat = "e4m3fn"\n',
        RECIPE + '[gemm.fprop]\nschedule = "promote:4"\n',
        RECIPE + "[gemm.fprop]\nsplit_k = 65\n",
        RECIPE + '[gemm.fprop]\naccumulator = "sm91_wgmma"\n',
        RECIPE + "[gemm.fprop]\naccumulator = { products = 3 }\n",
        RECIPE + "[gemm.fprop]\naccumulator = { product = 32 }\n",
        RECIPE + '[gemm.fprop]\naccumulator = { products = "many" }\n',
        RECIPE + '[gemm.fprop]\noutput = "e4m3fn"\n',
        RECIPE + '[gemm.bprop]\noutput = "fp32"\n',
        RECIPE + '[[override]]\nmatch = "layers.0.mlp.dwn"\n',
        RECIPE + '[keep_high_precision]\nmodules = ["layer.0"]\n',
        RECIPE + 'base = "infir3"\n',
        RECIPE + "base = 3\n",
        RECIPE + x + 'format = "e4m3fn"\nfour_over_six = "mse"\n',
        RECIPE + x + 'format = "e4m3fn"\nrounding = "stochastic:64"\n',
        RECIPE + x + 'format = "lns8"\nrounding = "stochastic:8"\n',
        RECIPE + x + 'format = "e4m3fn"\nvia = "e5m2"\n',
        RECIPE + x + 'format = "logfmt8"\nvia = "fp16"\n',
        RECIPE + x + 'format = "e2m1"\ntile = "16x16"\nscale_format = "nv_two_level"\n'
        'outer_scale = "row"\n',
        RECIPE + x + 'transform = "hadamard:3"\n',
        "name = 3\n",
    ):
        yield Case("recipes check r.toml", {"r.toml": text})
    for words in ("recipes show infir3", "recipes show", "recipes shw infir2"):
        yield Case(words)
    far = (
        RECIPE + '[slots.default]\nformat = "e4m3fn"\n[[override]]\nmatch = "layers.99.mlp.down"\n'
    )
    yield Case("recipes check r.toml --model tiny", {"r.toml": far})
    yield Case("recipes check run.toml", {"run.toml": STAGE})


def studies() -> Iterator[Case]:
    """Keys of studies."""
    for text in (
        AXIS,
        'base = "none.toml"\n' + AXIS,
        'base = "none"\n' + AXIS,
        STUDY,
        STUDY + "arms = 1\n" + AXIS,
        STUDY + '[[axis]]\nkey = "recipe"\nvalues = []\n',
        STUDY + "[[axis]]\nvalues = [1]\n",
        STUDY + AXIS + '[[arm]]\nname = "bf16"\n',
        STUDY + AXIS + '[[arm]]\nname = "../x"\n',
        STUDY + AXIS + '[[arm]]\nname = "shared"\n',
        STUDY + AXIS * 65,
        STUDY + '[[axis]]\nkey = "recipe"\nvalues = ["infir3"]\n',
        STUDY + '[[axis]]\nkey = "sead"\nvalues = [1]\n',
        STUDY + 'baseline = "fp32"\n' + AXIS,
        STUDY + 'shared_stages = ["two"]\n' + AXIS,
        STUDY + "scale = 0\n" + AXIS,
    ):
        yield Case("ablate --study study.toml --list", {"study.toml": text, "run.toml": STAGE})
    files: Files = {"study.toml": STUDY + AXIS, "run.toml": STAGE}
    for words in ("--set recipe=bf16", "--set seed", "--index 1 --list", "--launcher slrm", ""):
        yield Case(f"ablate --study study.toml {words}", files) if words else Case(
            "ablate --study quickstrt --list"
        )
    yield Case("ablate --study run.toml", {"run.toml": STAGE})
    yield Case("ablate --study r.toml", {"r.toml": RECIPE + '[slots.x]\nformat = "e4m3fn"\n'})


def options() -> Iterator[Case]:
    """Words of command lines."""
    files: Files = {"run.toml": STAGE, "X.npy": matrix(2, 128), "W.npy": matrix(3, 64)}
    for words in (
        "trian",
        "infir2",
        "help confg",
        "train",
        "train --config run.toml --preset quickstart",
        "train --config run.toml --thread 2",
        "train --config run.toml --threads two",
        "train --config run.toml --backend tpu",
        "train --config run.toml --set seed=1 --set seed=2",
        "train --config run.toml --resume --seed",
        "train run.toml extra",
        "train --config run.toml --dry-run --step-descriptor 1",
        "quantize",
        "quantize X.npy",
        "quantize X.npy --spec e4m3fn/tensor --slot fprop.x",
        "quantize X.npy --recipe infir2",
        "quantize X.npy --recipe infir2 --slot fprop.y",
        "quantize X.npy --spec e4m3fn/tensor --partner W.npy",
        "quantize X.npy --spec e4m3fn/tensor --seed 1",
        "quantize X.npy --spec e4m3fn/tensor --out none/C.npy",
        "quantize X.npy --spec e4m3fn/tensor --out X.npy",
        "quantize X.npy --spec e4m3fn/tensor --out run.toml",
        "quantize X.npy --spec e4m3fn/tensor --worst 3",
        "gemm --a X.npy --b X.npy",
        "gemm --a X.npy --b W.npy --spec infir2:fprop --out D.npy",
        "gemm --a X.npy --b X.npy --spec sm90_bf16 --out D.npy --beta 1",
        "gemm --a X.npy --b X.npy --spec sm90_bf16 --out D.npy --d-scale 2",
        "init",
        "init runs",
        "init run run.toml",
        "report",
        "report none.h5",
        "report --export csv none.h5",
        "bench emulation --repeats 0",
        "validate",
        "validate codecs",
        "validate kernels --only nothing",
        "eval none",
        "eval run.toml",
        "generate none",
        "certify",
        "assess",
        "assess none --data X.npy",
        "whatif none",
        "attribute none",
        "verify none",
        "compare a",
        "compare a b c",
        "doctor none",
        "export none DIR",
        "data inspect",
        "data inspect run.toml",
        "data show run.toml",
        "presets show quickstrt",
        "models show tinny",
    ):
        yield Case(words, files)


def quantizers() -> Iterator[Case]:
    """Words of quantizers and GEMMs."""
    files: Files = {"X.npy": matrix(16, 128)}
    for spec in (
        "e4m3",
        "infir2",
        "infir2:fprop.y",
        "infir3:fprop.x",
        "e4m3fn/pow3",
        "e4m3fn/1x128/row",
        "e4m3fn/static:0",
        "e4m3fn/static:1/1x128",
        "e4m3fn/delayed/row",
        "e4m3fn/nearest",
        "e4m3fn/tensor/fp32/rceil",
        "bf16/tensor/pow2",
        "fp32/row",
        "e2m1/hadamard:3",
    ):
        yield Case(f"quantize X.npy --spec {spec}", files)
    for spec in (
        "sm90_wgmma_fp9",
        "infir2",
        "infir2:bprop",
        "sm90_wgmma_fp8/promote:4",
        "sm90_wgmma_fp8/promote:x",
        "sm90_wgmma_fp8/bf15",
        "custom(products=0)",
        "custom(product=32)",
        "custom(products)",
        "cublaslt_h200:tensr",
        "cublaslt_h200:tensor/fast/promote",
    ):
        words = ("gemm", "--a", "X.npy", "--b", "X.npy", "--spec", spec, "--out", "D.npy")
        yield Case(shlex.join(words), files)


def tensors() -> Iterator[Case]:
    """Files of matrices and weights."""
    head = "{{'descr': {}, 'fortran_order': {}, 'shape': {}}}"
    good = head.format("'<f4'", "False", "(2, 2)")
    for about, content in (
        ("not a .npy file", b"PK\x03\x04"),
        ("ends in the preamble", b"\x93NUMPY\x01"),
        ("version 9.0", npy(good, bytes(16), (9, 0))),
        ("header cut", b"\x93NUMPY\x01\x00\xff\x00{}"),
        ("float16", npy(head.format("'<f2'", "False", "(2, 2)"), bytes(8))),
        ("objects", npy(head.format("'|O'", "False", "(2, 2)"), bytes(8))),
        ("a record", npy(head.format("[('a', '<f4')]", "False", "(2, 2)"), bytes(8))),
        ("Fortran order", npy(head.format("'<f4'", "True", "(2, 2)"), bytes(16))),
        ("three dimensions", npy(head.format("'<f4'", "False", "(2, 2, 2)"), bytes(32))),
        ("no elements", npy(head.format("'<f4'", "False", "(0, 2)"))),
        ("data cut", npy(good, bytes(12))),
        ("data behind", npy(good, bytes(20))),
        ("a key too many", npy(good[:-1] + ", 'x': 1}", bytes(16))),
        ("a key too few", npy("{'descr': '<f4'}", bytes(16))),
        ("no dictionary", npy("[1, 2]", bytes(16))),
    ):
        yield Case("quantize X.npy --spec e4m3fn/tensor", {"X.npy": content}, about)
    yield Case("quantize none.npy --spec e4m3fn/tensor")
    one: dict[str, object] = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
    for about, weights in (
        ("eight bytes", bytes(8)),
        ("header longer than the file", struct.pack("<Q", 1000) + b"{}"),
        ("no JSON", safetensors(b"nothing ")),
        ("no object", safetensors(b"[1, 2]")),
        ("an unknown type", safetensors({"a": {**one, "dtype": "F99"}}, bytes(16))),
        (
            "offsets beyond the file",
            safetensors({"a": {**one, "data_offsets": [0, 32]}}, bytes(16)),
        ),
        ("shape and bytes differ", safetensors({"a": {**one, "shape": [3, 2]}}, bytes(16))),
        ("an unknown key", safetensors({"a": {**one, "x": 1}}, bytes(16))),
        ("a key is missing", safetensors({"a": {"dtype": "F32"}}, bytes(16))),
        ("an overlap", safetensors({"a": one, "b": one}, bytes(16))),
        ("bytes behind", safetensors({"a": one}, bytes(20))),
        ("no tensor of a model", safetensors({"a": one}, bytes(16))),
    ):
        config = json.dumps(LLAMA)
        files: Files = {
            "m/config.json": config,
            "m/model.safetensors": weights,
            "x.txt": "a text\n",
        }
        yield Case("eval m --data x.txt", files, about)


def models() -> Iterator[Case]:
    """config.json of transformers."""
    changes: tuple[tuple[dict[str, object], dict[str, object]], ...] = (
        (LLAMA, {"hidden_size": None}),
        (LLAMA, {"hidden_size": "64"}),
        (LLAMA, {"hidden_size": -1}),
        (LLAMA, {"model_type": "lama"}),
        (LLAMA, {"model_type": "t5"}),
        (LLAMA, {"hidden_act": "relu"}),
        (LLAMA, {"num_key_value_heads": 3}),
        (LLAMA, {"head_dim": 31}),
        (LLAMA, {"attention_bais": False}),
        (LLAMA, {"tie_word_embeddings": 1}),
        (LLAMA, {"rms_norm_eps": "small"}),
        (LLAMA, {"rope_scaling": {"rope_type": "longrope"}}),
        (LLAMA, {"rope_scaling": {"rope_type": "linear"}}),
        (LLAMA, {"model_type": "phi3", "rope_scaling": {"type": "linear", "factor": 2.0}}),
        (LLAMA, {"model_type": "gemma"}),
        (LLAMA, {"model_type": "gemma2", "hidden_act": "gelu_pytorch_tanh"}),
        (LLAMA, {"model_type": "gemma3_text", "hidden_act": "gelu", "rope_theta": 1e6}),
        (LLAMA, {"rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 2.0}}),
        (LLAMA, {"hidden_size": 1 << 20, "intermediate_size": 1 << 20}),
        (LLAMA, {"quantization_config": {"quant_method": "gptq"}}),
        (GPT2, {"n_head": 3}),
        (GPT2, {"activation_function": "relu"}),
        (GPT2, {"n_layers": 2}),
    )
    for base, change in changes:
        config = {k: v for k, v in {**base, **change}.items() if v is not None}
        files: Files = {
            "m/config.json": json.dumps(config),
            "m/model.safetensors": safetensors({}),
            "x.txt": "a text\n",
        }
        yield Case("eval m --data x.txt", files, json.dumps(change))
    for about, text in (("no JSON", "{"), ("a list", "[]"), ("a key twice", '{"a": 1, "a": 2}')):
        files = {"m/config.json": text, "m/model.safetensors": safetensors({})}
        yield Case("eval m --data x.txt", {**files, "x.txt": "a text\n"}, about)


def data() -> Iterator[Case]:
    """Files of texts and tokens."""
    jsonl = STAGE + '[stages.data]\nkind = "jsonl"\npath = "d.jsonl"\nform = "prompt_response"\n'
    for record in (
        "{",
        "3",
        '{"question": 3, "answer": "b"}',
        '{"question": "a"}',
        '{"text": "a", "weight": 0}',
        '{"messages": []}',
        '{"messages": [{"role": "user", "content": "a"}]}',
        '{"messages": [{"role": "robot", "content": "a"}]}',
        '{"messages": [{"role": "user"}]}',
        '{"messages": [{"role": "assistant", "content": "a", "weight": 2}]}',
        '{"messages": [{"role": "user", "content": "a"}], "history": [["a", "b"]]}',
        '{"other": 1}',
    ):
        files: Files = {"run.toml": jsonl, "d.jsonl": record + "\n"}
        yield Case("train --config run.toml --out out", files, record)
    for about, content in (
        ("no token file", b"nothing at all, and more of it"),
        ("version 2", shard(4, 1, version=2)),
        ("8 bits a token", shard(4, 1, bits=8)),
        ("an empty vocabulary", shard(4, 1, vocabulary=0)),
        ("a begin beyond the vocabulary", shard(4, 1, begin=256)),
        ("one token a document", shard(4, 4)),
        ("cut off", shard(4, 1)),
    ):
        yield Case("data inspect d.tokens", {"d.tokens": content}, about)
    yield Case("data inspect none.tokens")


CLASSES = (run_files, recipes, studies, options, quantizers, tensors, models, data)


def message(program: str, case: Case) -> str:
    """What the program says about a case, without its name."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("FP8LAB_", "OMP_"))}
    environment["HF_HUB_CACHE"] = "hub"
    with tempfile.TemporaryDirectory() as folder:
        for name, content in case.files.items():
            path = Path(folder, name)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        words = [program, *shlex.split(case.words)]
        result = subprocess.run(
            words, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
    # Phases of a loaded machine, and notes, are not about the input.
    said = [
        line.removeprefix("fp8lab: ")
        for line in result.stderr.splitlines()
        if not line.endswith(" ...") and not line.startswith("fp8lab: note: ")
    ]
    if result.returncode != 2 or len(said) != 1:
        raise ValueError(f"{case}: status {result.returncode}, {result.stderr}")
    return said[0].replace(os.path.realpath(folder), "FOLDER")


def section(program: str, cases: Callable[[], Iterator[Case]]) -> str:
    """A class of cases: of each the command, what its file says, and the message."""
    text = f"# {cases.__doc__}\n\n"
    for case in cases():
        files = [name for name in case.files if name in shlex.split(case.words)]
        told = case.about
        if not told and len(files) == 1 and isinstance(case.files[files[0]], str):
            told = json.dumps(case.files[files[0]])
        said = message(program, case)
        text += f"$ fp8lab {case.words}\n" + (f"  {told}\n" if told else "") + f"> {said}\n\n"
    return text


if __name__ == "__main__":
    for one in CLASSES:
        sys.stdout.write(section(str(Path(sys.argv[1]).resolve()), one))
