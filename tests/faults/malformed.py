"""Malformed inputs: refused in one line that names the file; no crash, no hang, no great memory."""

from __future__ import annotations

import json
import random
import shlex
import struct
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

import grammar
from grammar import Document
from program import fault_of, refusal_fault
from runs import SHARDS, SOURCE, Context, Outcome, case_folder

ONE_STEP = ("--set", "stages.cpt.steps=1", "--set", "stages.sft.steps=1", "--threads", "1")


def judge(
    context: Context,
    folder: Path,
    document: Document,
    name: str,
    *words: str,
    also: Sequence[str] = (),
) -> Outcome:
    """Runs the program on the folder with `document` in place of the file `name`. A complaint has
    to name the file, or one of `also`."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(document.data)
    result = context.program.run(folder, *words)
    problem = fault_of(result)
    if not problem and result.code != 0:
        named = [text for text in (Path(name).name, *also) if text in result.err]
        problem = refusal_fault(result, named[0] if named else Path(name).name)
    note = f"{name}: {document.note}; {result.said()}"
    if problem:
        return Outcome("crashed", f"{problem}; {note}")
    if result.code == 0:
        return Outcome("wrong" if document.invalid else "right", note)
    return Outcome("refused", note)


def copied(context: Context) -> Path:
    return context.bytes.copy(case_folder(context, "input"))


def run_config(context: Context, rng: random.Random) -> Outcome:
    folder = copied(context)
    document = tomllib.loads((folder / "config.toml").read_text())
    broken = grammar.broken_toml(document, rng)
    train = ("train", "--config", "config.toml", "--threads", "1")
    how = ("--dry-run",) if rng.random() < 0.8 else ("--out", "run", *ONE_STEP[:4])
    # A model that does not fit the initial weights is told with these; a stage that is no longer
    # there with what is set in it.
    others = ("start/model.safetensors", "--set stages.")
    return judge(context, folder, broken, "config.toml", *train, *how, also=others)


def recipe(context: Context, rng: random.Random) -> Outcome:
    name = rng.choice(sorted((SOURCE / "experiments/recipes").rglob("*.toml")))
    document = tomllib.loads(name.read_text())
    if rng.random() < 0.15:
        document["override"] = [{"match": grammar.layer_pattern(rng)}]
        document["keep_high_precision"] = {"modules": [grammar.layer_pattern(rng)]}
        broken = Document(grammar.toml_text(document).encode(), False, "patterns of layers")
    else:
        broken = grammar.broken_toml(document, rng)
    how = rng.choice((("recipes", "check", "broken.toml"), ("recipes", "show", "./broken.toml")))
    return judge(context, folder_for(context), broken, "broken.toml", *how)


def study(context: Context, rng: random.Random) -> Outcome:
    folder = folder_for(context)
    (folder / "base.toml").write_text((context.study / "base.toml").read_text())
    document = tomllib.loads((context.study / "study.toml").read_text())
    document["arm"] = [{"name": "more", "set": {"seed": 2, "stages": {"cpt": {"steps": 3}}}}]
    broken = grammar.broken_toml(document, rng)
    words = ("ablate", "--study", "study.toml", "--list")
    return judge(context, folder, broken, "study.toml", *words, also=("fp8lab: study '",))


def folder_for(context: Context) -> Path:
    folder = case_folder(context, "input")
    folder.mkdir(parents=True)
    return folder


def assignment(context: Context, rng: random.Random) -> Outcome:
    """--set KEY=VALUE with random keys and values."""
    folder = copied(context)
    document = tomllib.loads((folder / "config.toml").read_text())
    path = list(rng.choice(grammar.leaves(document)))
    if path[0] == "stages":
        path[1] = rng.choice(("cpt", "sft", "*", "none"))
    if rng.random() < 0.3:
        path[rng.randrange(len(path))] = rng.choice(("", "zz", "a.b", ".", "\u00e9", "stages"))
    value = grammar.toml_value(grammar.random_value(rng))
    if rng.random() < 0.2:
        value = rng.choice((value[: rng.randrange(len(value) + 1)], "[" * 5000, "x\ny = 1", '"'))
    text = ".".join(map(str, path)) + rng.choice(("=", "=", "=", "")) + value
    words = (
        "train",
        "--config",
        "config.toml",
        "--dry-run",
        "--threads",
        "1",
        "--set",
        text[:100000],
    )
    result = context.program.run(folder, *(word.replace("\0", "") for word in words))
    problem = fault_of(result) or (refusal_fault(result) if result.code != 0 else "")
    if problem:
        return Outcome("crashed", f"{problem}; {result.said()}")
    return Outcome("right" if result.code == 0 else "refused", result.said())


def npy(context: Context, rng: random.Random) -> Outcome:
    how = rng.choice((("--spec", "e4m3fn/1x32"), ("--recipe", "infir2", "--slot", "fprop.x")))
    words = ("quantize", "x.npy", *how, "--threads", "1")
    return judge(context, folder_for(context), grammar.npy(rng), "x.npy", *words)


def gemm_operand(context: Context, rng: random.Random) -> Outcome:
    folder = folder_for(context)
    (folder / "b.npy").write_bytes(grammar.npy(rng).data)
    words = ("gemm", "--a", "a.npy", "--b", "b.npy", "--out", "d.npy", "--spec", "infir2:fprop")
    return judge(context, folder, grammar.npy(rng), "a.npy", *words, also=("b.npy",))


def weights(context: Context, rng: random.Random) -> Outcome:
    folder = copied(context)
    name = "start/model.safetensors"
    if rng.random() < 0.5:
        broken = grammar.safetensors(rng)
    else:
        broken = grammar.broken_binary((folder / name).read_bytes(), [(0, "<Q")], rng)
    words = rng.choice(
        (
            ("quantize", name, "--recipe", "infir2", "--threads", "1"),
            ("train", "--config", "config.toml", "--out", "run", *ONE_STEP),
            ("export", name, "out"),
        )
    )
    return judge(context, folder, broken, name, *words)


def model_config(context: Context, rng: random.Random) -> Outcome:
    folder = copied(context)
    document = json.loads((folder / "start/config.json").read_text())
    broken = grammar.broken_json(document, rng)
    words = rng.choice(
        (
            ("export", "start", "out"),
            ("eval", "start", "--data", "eval.jsonl", "--threads", "1", "--recipe", "bf16"),
        )
    )
    return judge(context, folder, broken, "start/config.json", *words, also=("start",))


def documents(context: Context, rng: random.Random) -> Outcome:
    """One bad line among good ones."""
    folder = copied(context)
    name = rng.choice(("cpt.jsonl", "sft.jsonl", "eval.jsonl", "questions.jsonl"))
    lines = (folder / name).read_bytes().splitlines()
    place = rng.randrange(len(lines))
    broken = grammar.broken_json(json.loads(lines[place]), rng)
    lines[place] = broken.data
    whole = Document(b"\n".join(lines) + b"\n", broken.invalid, f"line {place + 1}: {broken.note}")
    words = ("train", "--config", "config.toml", "--out", "run", *ONE_STEP)
    return judge(context, folder, whole, name, *words)


def prompts(context: Context, rng: random.Random) -> Outcome:
    """A file of prompts with one bad line, for a complete run."""
    folder = context.bytes.copy(case_folder(context, "input"), "whole")
    lines = [b'{"prompt": "one two"}', b'{"prompt": [5, 6, 7]}', b'{"prompt": "apples"}']
    place = rng.randrange(len(lines))
    broken = grammar.broken_json(json.loads(lines[place]), rng)
    lines[place] = broken.data
    whole = Document(b"\n".join(lines) + b"\n", broken.invalid, f"line {place + 1}: {broken.note}")
    words = ("generate", "run", "--prompts", "p.jsonl", "--max-new-tokens", "2", "--threads", "1")
    return judge(context, folder, whole, "p.jsonl", *words, also=("fp8lab: prompt ",))


SHARD_WORDS = [(8, "<I"), (12, "<I"), (16, "<Q"), (24, "<Q"), (32, "<I"), (36, "<I"), (44, "<I")]


def shard(context: Context, rng: random.Random) -> Outcome:
    folder = context.tokens.copy(case_folder(context, "input"))
    if rng.random() < 0.2:
        broken = grammar.broken_json(
            json.loads((folder / "shards/token_bytes.json").read_text()), rng
        )
        train = ("train", "--config", "config.toml", "--out", "run", *ONE_STEP)
        return judge(context, folder, broken, "shards/token_bytes.json", *train)
    data = (folder / SHARDS).read_bytes()
    broken = grammar.broken_binary(data, [*SHARD_WORDS, (128, "<Q"), (136, "<Q")], rng)
    words = rng.choice(
        (
            ("data", "inspect", SHARDS),
            ("data", "inspect", "--document", "1", "--json", SHARDS),
            ("train", "--config", "config.toml", "--out", "run", *ONE_STEP),
        )
    )
    return judge(context, folder, broken, SHARDS, *words)


def foreign_shard(context: Context, rng: random.Random) -> Outcome:
    """Token files of other programs, by their headers."""
    folder = folder_for(context)
    count = rng.choice((0, 1, 5, 40))
    kind = rng.randrange(3)
    if kind == 0:
        head = rng.choice(((20240520, 1, 2), (20240801, 7, 4), (20240520, 7, 2)))
        data = struct.pack("<3i", head[0], head[1], count).ljust(1024, b"\0")
        data += bytes(range(count)) * head[2]
        broken = grammar.broken_binary(data, [(0, "<I"), (4, "<I"), (8, "<I")], rng)
    elif kind == 1:
        data = b"BIN.TOK\n" + struct.pack("<6i", 2, 4, count, 99, 0, 1)
        data = data.ljust(1024, b"\0") + bytes(4 * count + (count + 7) // 8)
        broken = grammar.broken_binary(data, [(8 + 4 * i, "<I") for i in range(6)], rng)
    else:
        (folder / "x.bin").write_bytes(bytes(2 * count))
        data = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1, 2)
        data += struct.pack("<iqqq", count, 0, 0, 1)
        broken = grammar.broken_binary(data, [(9, "<Q"), (18, "<Q"), (26, "<Q"), (34, "<I")], rng)
        free = Document(broken.data, False, broken.note)
        return judge(context, folder, free, "x.idx", "data", "inspect", "x.bin", also=("x.bin",))
    free = Document(broken.data, False, broken.note)  # a shorter header may be that of another kind
    return judge(context, folder, free, "x.bin", "data", "inspect", "x.bin")


SPECS = (
    "e4m3fn", "e5m2", "1x128", "128x128", "row", "tensor", "pow2", "e8m0", "fp32", "enc_floor",
    "hadamard:full", "hadamard:32:drawn", "smooth:0.5", "clamp:0.99", "expand", "int8", "e2m1",
    "ieee", "nvfp4", "mxfp8", "stochastic", "static:0.5", "sm90_wgmma_fp8", "promote:128", "fast",
    "infir2:fprop", "cublaslt_h200:row", "", "-1", "1x0", "0x128", "1x99999999999", "nan", "1e999",
)  # fmt: skip
OPTIONS = (
    "--help", "--json", "--threads", "--seed", "--recipe", "--slot", "--spec", "--report", "--out",
    "--backend", "--set", "--data", "--form", "--top-k", "--temperature", "--samples",
    "--max-new-tokens",
    "--set", "--list", "--index", "--jobs", "--study", "--config", "--preset", "--dry-run",
    "--resume", "--dtype", "--shard-bytes", "--name", "--document", "--compare", "--transpose",
    "-h", "--", "-", "--zz", "--threads=", "--recipe=infir2", "--sequences", "--pass-at",
)  # fmt: skip
VALUES = (
    "0", "1", "-1", "2", "99999999999999999999", "1e9", "nan", "", "x", "cpu", "cuda", "truth",
    "infir2", "bf16", "fprop.x", "wgrad.dy", "config.toml", "x.npy", "whole", "start", "shards",
    "eval.jsonl", "nothing", "/dev/null", ".", "running_text", "seed=2", "a=b", "=", "list", "show",
    "inspect", "check", "quickstart", "f32", "\u4e16", "a\tb",
)  # fmt: skip
COMMANDS = ("train", "ablate", "recipes", "data", "quantize", "gemm", "eval", "generate", "export",
            "info", "report", "validate", "bench", "help", "zz", "")  # fmt: skip


def command_line(context: Context, rng: random.Random) -> Outcome:
    """Random words. What runs long or writes elsewhere is left out."""
    folder = copied(context)
    (folder / "x.npy").write_bytes(tiny_array())
    command = rng.choice(COMMANDS)
    words = [command]
    for _ in range(rng.randrange(6)):
        kind = rng.random()
        words.append(rng.choice(OPTIONS if kind < 0.45 else VALUES if kind < 0.85 else SPECS))
        if words[-1] == "--spec":
            words.append("/".join(rng.choice(SPECS) for _ in range(rng.randint(1, 4))))
    if command in ("validate", "bench") or (
        command in ("train", "ablate") and "quickstart" in words
    ):
        words = [command, "--zz", *words[1:]]
    result = context.program.run(folder, *words)
    problem = fault_of(result)
    if not problem and result.code != 0:
        problem = refusal_fault(result)
    said = f"{shlex.join(words)}; {result.said()}"
    if problem:
        return Outcome("crashed", f"{problem}; {said}")
    return Outcome("right" if result.code == 0 else "refused", said)


def spec(context: Context, rng: random.Random) -> Outcome:
    """Random quantizers on a small array."""
    folder = folder_for(context)
    (folder / "x.npy").write_bytes(tiny_array())
    text = "/".join(rng.choice(SPECS) for _ in range(rng.randint(1, 5)))
    result = context.program.run(folder, "quantize", "x.npy", "--spec", text, "--threads", "1")
    problem = fault_of(result) or (refusal_fault(result) if result.code != 0 else "")
    if problem:
        return Outcome("crashed", f"{problem}; {result.said()}")
    return Outcome("right" if result.code == 0 else "refused", result.said())


def tiny_array() -> bytes:
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (4, 128), }"
    header += b" " * (117 - len(header)) + b"\n"
    values = struct.pack("<512f", *((i * 37 % 101) / 7 - 7 for i in range(512)))
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + values


Way = Callable[[Context, random.Random], Outcome]
WAYS: tuple[tuple[Way, int], ...] = (
    (run_config, 5),
    (recipe, 4),
    (study, 3),
    (assignment, 3),
    (npy, 3),
    (gemm_operand, 1),
    (weights, 4),
    (model_config, 3),
    (documents, 4),
    (prompts, 1),
    (shard, 4),
    (foreign_shard, 2),
    (command_line, 4),
    (spec, 2),
)


def malformed(context: Context, rng: random.Random) -> Outcome:
    way = rng.choices([way for way, _ in WAYS], [share for _, share in WAYS])[0]
    outcome = way(context, rng)
    return Outcome(outcome.verdict, f"{way.__name__}: {outcome.note}")
