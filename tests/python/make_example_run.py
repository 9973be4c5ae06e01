#!/usr/bin/env python3
"""Writes synthetic run files and a study file in the layout of src/io/README.md.

The numbers come from a random generator and a few formulas. They describe no training run; they
exist so that the analysis package can be tested without one.

    make_example_run.py OUT_DIR

makes OUT_DIR/study.h5 and OUT_DIR/<arm>/run.h5 for several recipes and seeds. `write_run` with
`schema=FIRST_SCHEMA` leaves out what files of before did not have.
"""

from __future__ import annotations

import argparse
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Sequence

import h5py
import numpy as np
import numpy.typing as npt

FIRST_SCHEMA = "fp8lab-run-1"
SCHEMA = "fp8lab-run-2"
STUDY_SCHEMA = "fp8lab-study-2"
STAGES = ("pretrain", "cpt", "sft")
STAGE_STEPS = (40, 60, 40)
STEPS = sum(STAGE_STEPS)
LOG_EVERY = 20
TOKENS_PER_STEP = 1024
SLOTS = ("fprop.x", "fprop.w", "dgrad.dy", "dgrad.w", "wgrad.dy", "wgrad.x")


Tensors = tuple[tuple[str, str], ...]


def tensors_of(blocks: int) -> Tensors:
    """Layer and slot of every operand of a model."""
    modules = ("attention.qkv", "attention.o", "mlp.gate_up", "mlp.down")
    layers = [f"layers.{i}.{module}" for i in range(blocks) for module in modules]
    return tuple((layer, slot) for layer in layers for slot in SLOTS)


BLOCKS = 2
TENSORS = tensors_of(BLOCKS)
LAYERS = tuple(dict.fromkeys(layer for layer, _ in TENSORS))
SEEDS = (1, 2)


@dataclass(frozen=True)
class SyntheticRecipe:
    """A name and the size of the invented damage."""

    name: str
    label: str
    sqnr_db: float
    underflow: float
    gap: float  # nats/token reached at the end of the run
    scale_bits: float
    nan_step: int = 0  # 0: none
    unknown_amax: bool = False  # delayed scaling that knows no amax at the first logged steps


@dataclass(frozen=True)
class StatedDesign:
    """What /design of a study file says."""

    margin: float = 0.01
    alpha: float = 0.05
    power: float = 0.9
    looks: int = 1
    stated: str = "2026-01-02T03:04:05Z"
    arms_begun: int = 0


RECIPES = (
    SyntheticRecipe("bf16", "bf16", 55.0, 0.0, 0.0, 0.0),
    SyntheticRecipe("infir2", "e4m3fn 1x128 pow2", 31.5, 0.0005, 0.004, 0.25),
    SyntheticRecipe("te_current", "e4m3fn tensor fp32", 29.0, 0.01, 0.02, 0.0001),
    SyntheticRecipe("e5m2_tensor", "e5m2 tensor fp32", 25.0, 0.001, 0.15, 0.0001, nan_step=130),
)

DELAYED = SyntheticRecipe(
    "te_delayed", "e4m3fn/tensor/fp32/delayed", 29.0, 0.002, 0.02, 0.0001, unknown_amax=True
)

# name: (units, te_name, te_factor)
STATISTICS: dict[str, tuple[str, str, float]] = {
    "amax": ("1", "cur_amax", 1.0),
    "rms": ("1", "", 1.0),
    "mse": ("1", "mse", 1.0),
    "sqnr_db": ("dB", "", 1.0),
    "cosine": ("1", "", 1.0),
    "bias": ("1", "", 1.0),
    "underflow_fraction": ("fraction", "underflows%", 100.0),
    "saturation_fraction": ("fraction", "overflows%", 100.0),
    "nonfinite_count": ("element", "", 1.0),
    "kurtosis": ("1", "", 1.0),
    "crest_factor": ("1", "", 1.0),
    "channel_outlier_ratio": ("1", "", 1.0),
    "scale_min": ("1", "scale_inv_min", 1.0),
    "scale_max": ("1", "scale_inv_max", 1.0),
    "scale_log2_spread": ("octave", "", 1.0),
    "zero_tile_fraction": ("fraction", "", 1.0),
    "top_channel": ("channel", "", 1.0),
    "top_channel_amax": ("1", "", 1.0),
    "exponent_histogram": ("fraction", "", 1.0),
}


def add(
    group: h5py.Group,
    name: str,
    data: Any,
    units: str,
    te: tuple[str, float] = ("", 1.0),
    description: str = "synthetic",
) -> None:
    """One chunked, shuffled, compressed dataset that can grow along its first axis."""
    array = np.asarray(data)
    chunks = tuple([16] + [max(n, 1) for n in array.shape[1:]])
    dataset = group.create_dataset(
        name,
        data=array,
        chunks=chunks,
        shuffle=True,
        compression="gzip",
        fletcher32=True,
        maxshape=(None,) + array.shape[1:],
    )
    dataset.attrs["units"] = units
    dataset.attrs["description"] = description
    if te[0]:
        dataset.attrs["te_name"] = te[0]
        dataset.attrs["te_factor"] = te[1]


def add_fixed(group: h5py.Group, name: str, data: Any, units: str) -> None:
    """A dataset of one value per tensor or arm."""
    chunks = tuple(max(extent, 1) for extent in np.shape(data))
    dataset = group.create_dataset(name, data=data, chunks=chunks, fletcher32=True)
    dataset.attrs["units"] = units
    dataset.attrs["description"] = "synthetic"


def text(values: Sequence[str], size: int = 0) -> npt.NDArray[Any]:
    """Fixed-length UTF-8 strings."""
    encoded = [value.encode() for value in values]
    length = size or max([len(value) for value in encoded] + [1])
    return np.array(encoded, dtype=h5py.string_dtype("utf-8", length))


def stage_of_step() -> npt.NDArray[np.int32]:
    return np.repeat(np.arange(len(STAGES), dtype=np.int32), STAGE_STEPS)


def loss_curve(recipe: SyntheticRecipe, seed: int) -> npt.NDArray[np.float64]:
    """A falling curve per stage; the recipe's gap grows after pretraining, which is shared."""
    noise = np.random.default_rng(seed).normal(0.0, 0.02, STEPS)
    damage = np.random.default_rng(1000 + seed).normal(0.0, 0.002, STEPS)
    pieces = [
        start + drop * np.exp(-np.arange(steps) / (steps / 3.0))
        for steps, start, drop in zip(STAGE_STEPS, (2.6, 1.6, 0.5), (3.0, 0.9, 0.7))
    ]
    progress = np.clip((np.arange(STEPS) - STAGE_STEPS[0]) / (STEPS - STAGE_STEPS[0]), 0.0, 1.0)
    loss = np.concatenate(pieces) + noise + recipe.gap * progress
    if recipe.gap > 0.0:
        loss += damage * (progress > 0.0)
    if recipe.gap > 0.1:
        loss[95:98] += (0.6, 1.1, 0.4)
    if recipe.nan_step:
        loss[recipe.nan_step - 1 :] = np.nan
    return np.asarray(loss, dtype=np.float64)


def netstring(value: str) -> bytes:
    return f"{len(value.encode())}:{value}".encode()


def seal_meta(file: h5py.File) -> None:
    """The checksum over the attributes of /meta; to be made anew after any of them is changed."""
    attributes = file["meta"].attrs
    whole = b""
    for name in sorted(attributes):
        value = attributes[name]
        if name == "checksum":
            continue
        listed = isinstance(value, np.ndarray)
        content = b"".join(map(netstring, value)).decode() if listed else str(value)
        whole += netstring(name) + netstring(content)
    attributes["checksum"] = hashlib.sha256(whole).hexdigest()


def write_meta(file: h5py.File, recipe: SyntheticRecipe, seed: int, schema: str) -> None:
    meta = file.create_group("meta")
    strings = {
        "schema": schema,
        "run_name": f"{recipe.name}-seed{seed}",
        "recipe_name": recipe.name,
        "recipe_text": f'name = "{recipe.name}"\nsummary = "synthetic example"\n',
        "recipe_resolved": f"every operand: {recipe.label}\n",
        "recipe_hash": f"{abs(hash_text(recipe.name)):016x}",
        "config_text": f'name = "{recipe.name}-seed{seed}"\nseed = {seed}\n',
        "config_hash": f"{hash_text(recipe.name + str(seed)):016x}",
        "data_hash": f"{hash_text('data'):016x}",
        "initial_weights_hash": f"{hash_text('weights' + str(seed)):016x}",
        "code_version": "0.1.0",
        "backend": "cpu",
        "device": "synthetic example, no device",
        "math_profile": "exact",
        "simd_target": "portable",
        "optimizer_states": "m=f32 v=f32 master=f32",
        "extra.hdf5": h5py.version.hdf5_version,
        "extra.note": "synthetic numbers for tests of the analysis package",
    }
    for key, value in strings.items():
        meta.attrs[key] = value
    meta.attrs["seed"] = np.uint64(seed)
    meta.attrs["parameter_count"] = np.int64(1_400_000)
    meta.attrs.create("stage_names", list(STAGES), dtype=h5py.string_dtype())
    if schema == FIRST_SCHEMA:
        return
    identity = {name: f"{hash_text(name):016x}" for name in ("configuration", "recipe")}
    for stage in STAGES:
        name = f"training data of stage {stage}"
        identity[name] = f"{hash_text(name):016x}"
    for key, entries in (("names", identity), ("hashes", identity.values())):
        meta.attrs.create(f"identity_{key}", list(entries), dtype=h5py.string_dtype())
    seal_meta(file)


def hash_text(value: str) -> int:
    """FNV-1a, so that the example does not depend on Python's hash seed."""
    result = 0xCBF29CE484222325
    for byte in value.encode():
        result = (result ^ byte) * 0x100000001B3 % 2**64
    return result


def write_metrics(file: h5py.File, recipe: SyntheticRecipe, seed: int) -> int:
    """Returns the number of steps done."""
    rng = np.random.default_rng(2000 + seed)
    done = recipe.nan_step or STEPS
    loss = loss_curve(recipe, seed)[:done]
    steps = np.arange(1, done + 1, dtype=np.int64)
    group = file.create_group("metrics")
    add(group, "step", steps, "step")
    add(group, "stage", stage_of_step()[:done], "index")
    add(group, "tokens", steps * TOKENS_PER_STEP, "token")
    add(group, "loss", loss, "nats/token")
    norm = np.abs(rng.normal(1.0, 0.15, done)) * (1.0 + 2.0 * np.exp(-steps / 10.0))
    add(group, "grad_norm", np.where(np.isnan(loss), np.nan, norm), "1")
    add(group, "learning_rate", 1e-3 * np.minimum(1.0, steps / 10.0), "1")
    add(group, "seconds", 0.35 * steps, "s")
    hashes = file.create_group("hashes")
    values = [hash_text(f"{recipe.name}{seed}{step}") for step in steps]
    add(hashes, "weights", np.array(values, dtype=np.uint64), "hash")
    return done


def eval_rows(recipe: SyntheticRecipe, seed: int, done: int) -> list[tuple[int, int, float, float]]:
    """(step, stage, loss, exact match) every 20 steps and at the end of each stage."""
    loss = loss_curve(recipe, seed)
    ends = np.cumsum(STAGE_STEPS)
    rows = []
    for step in range(20, done + 1, 20):
        stage = int(np.searchsorted(ends, step))
        last = step in ends and stage > 0
        match = round(max(0.0, (0.2, 0.35, 0.62)[stage] - recipe.gap), 3) if last else -1.0
        rows.append((step, stage, float(loss[step - 1]) + 0.03, match))
    return rows


def write_eval(file: h5py.File, recipe: SyntheticRecipe, seed: int, done: int) -> None:
    rows = eval_rows(recipe, seed, done)
    group = file.create_group("eval")
    add(group, "step", np.array([row[0] for row in rows], dtype=np.int64), "step")
    add(group, "stage", np.array([row[1] for row in rows], dtype=np.int32), "index")
    add(group, "loss", np.array([row[2] for row in rows]), "nats/token")
    add(group, "exact_match", np.array([row[3] for row in rows]), "fraction")
    count = np.array([64 if row[3] >= 0.0 else 0 for row in rows], dtype=np.int64)
    add(group, "exact_match_count", count, "problem")


def write_scores(file: h5py.File, recipe: SyntheticRecipe, seed: int, done: int) -> None:
    """Loss by source at every evaluation, pass@4 where answers are checked."""
    rows = []
    for step, stage, loss, match in eval_rows(recipe, seed, done):
        rows.append((step, stage, "loss/problems.jsonl", loss, 4096))
        if match >= 0.0:
            rows.append((step, stage, "pass@4", min(1.0, 1.5 * match), 64))
    group = file.create_group("scores")
    add(group, "step", np.array([row[0] for row in rows], dtype=np.int64), "step")
    add(group, "stage", np.array([row[1] for row in rows], dtype=np.int32), "index")
    add(group, "name", text([row[2] for row in rows], 96), "name")
    add(group, "value", np.array([row[3] for row in rows]), "1")
    add(group, "count", np.array([row[4] for row in rows], dtype=np.int64), "1")


DOCUMENTS = 12


def document_sums(recipe: SyntheticRecipe, loss: float) -> tuple[Any, Any]:
    """Tokens and nats of every document, whose mean is `loss`. What a recipe adds goes with the
    document, alike for all seeds."""
    tokens = np.arange(20, 20 + 7 * DOCUMENTS, 7)
    added = np.random.default_rng(17).normal(0.0, 0.3, DOCUMENTS)
    own = np.random.default_rng(hash_text(recipe.name) % 2**32)
    added += recipe.gap * own.normal(0.0, 0.2, DOCUMENTS)
    return tokens, tokens * (loss + added - np.average(added, weights=tokens))


def write_documents(file: h5py.File, recipe: SyntheticRecipe, seed: int, done: int) -> None:
    """Losses by document at the end of every stage."""
    ends = np.cumsum(STAGE_STEPS)
    rows = [row for row in eval_rows(recipe, seed, done) if row[0] in ends]
    count, whole = DOCUMENTS * len(rows), np.arange(DOCUMENTS)
    sums = [document_sums(recipe, loss) for _, _, loss, _ in rows]
    texts = [hash_text(f"held-out text of {STAGES[stage]}") for _, stage, _, _ in rows]
    group = file.create_group("documents")
    add(group, "step", np.repeat([row[0] for row in rows], DOCUMENTS).astype(np.int64), "step")
    add(group, "stage", np.repeat([row[1] for row in rows], DOCUMENTS).astype(np.int32), "index")
    add(group, "in_bf16", np.zeros(count, dtype=np.uint8), "flag")
    add(group, "text", np.repeat(np.array(texts, dtype=np.uint64), DOCUMENTS), "hash")
    add(group, "count", np.full(count, DOCUMENTS, dtype=np.int64), "document")
    add(group, "source", np.zeros(count, dtype=np.int32), "index")
    add(group, "document", np.tile(whole[::-1], len(rows)).astype(np.int64), "index")
    tokens, nats = ([one[i] for one in sums] for i in range(2))
    add(group, "tokens", np.array(tokens, dtype=np.int64).reshape(-1), "token")
    add(group, "nats", np.array(nats, dtype=np.float64).reshape(-1), "nats")


def statistics(
    recipe: SyntheticRecipe, rows: int, seed: int, tensors: Tensors
) -> dict[str, npt.NDArray[Any]]:
    """Mutually plausible statistics for `rows` logged steps and every tensor."""
    rng = np.random.default_rng(3000 + seed)
    shape = (rows, len(tensors))
    gradient = np.array([slot.endswith("dy") for _, slot in tensors])
    rms = np.where(gradient, 1e-5, 0.5) * np.exp(rng.normal(0.0, 0.2, shape))
    crest = 6.0 + 10.0 * rng.random(shape)
    sqnr = recipe.sqnr_db - 3.0 * gradient + rng.normal(0.0, 0.7, shape)
    underflow = recipe.underflow * np.where(gradient, 5.0, 1.0) * (0.5 + rng.random(shape))
    amax = rms * crest
    scale = amax / 448.0
    spread = 3.0 * rng.random(shape)
    exponents = np.arange(64) - 40.0
    centre = np.log2(rms)[:, :, None] - 0.5
    histogram = np.exp(-0.5 * ((exponents - centre) / 2.0) ** 2)
    histogram /= histogram.sum(axis=2, keepdims=True)
    ranks = np.exp(-0.3 * np.arange(8))
    return {
        "amax": amax,
        "rms": rms,
        "mse": rms**2 * 10.0 ** (-sqnr / 10.0),
        "sqnr_db": sqnr,
        "cosine": 1.0 - 0.5 * 10.0 ** (-sqnr / 10.0),
        "bias": rng.normal(0.0, 1e-4, shape),
        "underflow_fraction": underflow,
        "saturation_fraction": np.zeros(shape),
        "nonfinite_count": np.zeros(shape),
        "kurtosis": 3.0 + crest / 2.0,
        "crest_factor": crest,
        "channel_outlier_ratio": 2.0 + rng.random(shape),
        "scale_min": scale * 2.0**-spread,
        "scale_max": scale,
        "scale_log2_spread": spread,
        "zero_tile_fraction": np.zeros(shape),
        "top_channel": rng.integers(0, 256, shape + (8,)).astype(np.int32),
        "top_channel_amax": amax[:, :, None] * ranks,
        "exponent_histogram": histogram,
    }


def without_history(recipe: SyntheticRecipe, rows: int, tensors: Tensors) -> npt.NDArray[np.uint8]:
    """1 in the first logged step, and for the gradients also in the second."""
    marks = np.zeros((rows, len(tensors)), dtype=np.uint8)
    if recipe.unknown_amax:
        marks[:1] = 1
        marks[1:2] = [slot.endswith("dy") for _, slot in tensors]
    return marks


def write_tensors(
    file: h5py.File,
    recipe: SyntheticRecipe,
    seed: int,
    done: int,
    schema: str,
    tensors: Tensors,
) -> None:
    group = file.create_group("tensors")
    add_fixed(group, "layer", text([layer for layer, _ in tensors]), "name")
    add_fixed(group, "slot", text([slot for _, slot in tensors]), "name")
    add_fixed(group, "format", text([recipe.label] * len(tensors)), "name")
    add_fixed(
        group, "scale_bits_per_element", np.full(len(tensors), recipe.scale_bits), "bit/element"
    )
    steps = np.arange(LOG_EVERY, done + 1, LOG_EVERY, dtype=np.int64)
    add(group, "step", steps, "step")
    marks = without_history(recipe, len(steps), tensors)
    for name, values in statistics(recipe, len(steps), seed, tensors).items():
        units, te_name, te_factor = STATISTICS[name]
        if name == "underflow_fraction":  # what a scale of one makes of small gradients
            values = np.where(marks, 0.9, values)
        add(group, name, values, units, (te_name, te_factor))
    hashes = np.random.default_rng(seed).integers(1, 2**63, (len(steps), len(tensors)))
    add(group, "hash", hashes.astype(np.uint64), "hash")
    if schema != FIRST_SCHEMA:
        add(group, "without_history", marks, "flag")


DETECTORS = ("outlier_channels", "kurtosis", "amax_lag", "gradient_norm")


def write_warnings(file: h5py.File, recipe: SyntheticRecipe, done: int) -> None:
    """Scores at every logged step. Of a run that breaks, the lag is above its threshold from the
    end of the first stage on."""
    rows = []
    for step in range(LOG_EVERY, done + 1, LOG_EVERY):
        for index, detector in enumerate(DETECTORS):
            late = detector == "amax_lag" and recipe.nan_step > 0 and step >= STAGE_STEPS[0]
            score = 1.5 if late else 0.1 * (1 + index)
            rows.append((step, detector, score, -1 if detector == "gradient_norm" else index, late))
    group = file.create_group("warnings")
    add(group, "step", np.array([row[0] for row in rows], dtype=np.int64), "step")
    add(group, "detector", text([row[1] for row in rows], 32), "name")
    add(group, "score", np.array([row[2] for row in rows]), "1")
    add(group, "value", np.array([8.0 * row[2] for row in rows]), "1")
    add(group, "tensor", np.array([row[3] for row in rows], dtype=np.int32), "index")
    add(group, "channel", np.full(len(rows), -1, dtype=np.int32), "channel")
    add(group, "count", np.array([int(row[4]) for row in rows], dtype=np.int64), "1")


def write_checkpoints(file: h5py.File, recipe: SyntheticRecipe, seed: int, done: int) -> None:
    """One at the end of every stage that was finished."""
    steps = [int(step) for step in np.cumsum(STAGE_STEPS) if step <= done]
    group = file.create_group("checkpoints")
    add(group, "step", np.array(steps, dtype=np.int64), "step")
    hashes = [hash_text(f"checkpoint {recipe.name}{seed}{step}") for step in steps]
    add(group, "hash", np.array(hashes, dtype=np.uint64), "hash")


def write_events(file: h5py.File, recipe: SyntheticRecipe) -> None:
    rows = [(STAGE_STEPS[0], "stress", "outlier_channels: 4 channels, gain 64")]
    sample: npt.NDArray[np.float32] = np.zeros(0, dtype=np.float32)
    if recipe.nan_step:
        rows.append((recipe.nan_step, "nan", "layers.1.mlp.down/dgrad.dy: 3 elements not finite"))
        sample = np.array([1.0, np.inf, -2.0, np.nan], dtype=np.float32)
    events = file.create_group("events")
    add(events, "step", np.array([row[0] for row in rows], dtype=np.int64), "step")
    add(events, "kind", text([row[1] for row in rows], 32), "name")
    add(events, "message", text([row[2] for row in rows], 256), "text")
    count = 1 if sample.size else 0
    samples = file.create_group("samples")
    add(samples, "step", np.full(count, recipe.nan_step, dtype=np.int64), "step")
    add(samples, "name", text(["layers.1.mlp.down/dgrad.dy"] * count, 128), "name")
    add(samples, "offset", np.zeros(count, dtype=np.int64), "element")
    add(samples, "length", np.full(count, sample.size, dtype=np.int64), "element")
    add(samples, "values", sample, "1")


def write_run(
    path: Path, recipe: SyntheticRecipe, seed: int, schema: str = SCHEMA, blocks: int = BLOCKS
) -> int:
    """Writes one run file; returns the number of steps done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w", libver="latest") as file:
        write_meta(file, recipe, seed, schema)
        done = write_metrics(file, recipe, seed)
        write_eval(file, recipe, seed, done)
        write_scores(file, recipe, seed, done)
        write_tensors(file, recipe, seed, done, schema, tensors_of(blocks))
        write_events(file, recipe)
        if schema != FIRST_SCHEMA:
            write_documents(file, recipe, seed, done)
            write_checkpoints(file, recipe, seed, done)
            write_warnings(file, recipe, done)
        final = [] if recipe.nan_step else [hash_text(f"{recipe.name}{seed}{done}")]
        add(file, "complete", np.array(final, dtype=np.uint64), "hash")
    return done


def write_design(file: h5py.File, design: StatedDesign) -> None:
    attributes = file.create_group("design").attrs
    for name in ("margin", "alpha", "power"):
        attributes[name] = np.float64(getattr(design, name))
    attributes["looks"] = np.int64(design.looks)
    attributes["arms_begun"] = np.int64(design.arms_begun)
    attributes["stated"] = design.stated


def write_study(
    path: Path,
    arms: list[tuple[SyntheticRecipe, int, int]],
    design: StatedDesign | None = None,
    names: list[str] | None = None,
) -> None:
    """study.h5 beside the folders of `arms` (recipe, seed, steps done), which `names` may name."""
    names = names or [f"{recipe.name}-seed{seed}" for recipe, seed, _ in arms]
    with h5py.File(path, "w", libver="latest") as file:
        meta = file.create_group("meta")
        for key, value in (
            ("schema", STUDY_SCHEMA),
            ("name", "example"),
            ("title", "Synthetic example for tests"),
            ("baseline", "bf16"),
            ("config_text", 'name = "example"\n'),
            ("config_hash", f"{hash_text('example'):016x}"),
        ):
            meta.attrs[key] = value
        meta.attrs.create("axis_keys", ["recipe", "seed"], dtype=h5py.string_dtype())
        if design is not None:
            write_design(file, design)
        runs = file.create_group("runs")
        for name in names:
            runs[name] = h5py.ExternalLink(f"{name}/run.h5", "/")
        write_arms(file.create_group("arms"), names, arms)
        axes = file.create_group("axes")
        for index, (key, cells) in enumerate(
            (
                ("recipe", [f'"{recipe.name}"' for recipe, _, _ in arms]),
                ("seed", [str(seed) for _, seed, _ in arms]),
            )
        ):
            add_fixed(axes, str(index), text(cells), "TOML")
            axes[str(index)].attrs["key"] = key


def write_arms(
    group: h5py.Group, names: list[str], arms: list[tuple[SyntheticRecipe, int, int]]
) -> None:
    twins = ["" if recipe.name == "bf16" else f"bf16-seed{seed}" for recipe, seed, _ in arms]
    twins = [twin if twin in names else "" for twin in twins]
    configs = [f"{hash_text(recipe.name + str(seed)):016x}" for recipe, seed, _ in arms]
    add_fixed(group, "name", text(names), "name")
    add_fixed(group, "run_file", text([f"{name}/run.h5" for name in names]), "path")
    add_fixed(group, "recipe", text([recipe.name for recipe, _, _ in arms]), "name")
    add_fixed(group, "config_hash", text(configs), "hash")
    add_fixed(group, "baseline_arm", text(twins), "name")
    add_fixed(group, "seed", np.array([seed for _, seed, _ in arms], dtype=np.uint64), "1")
    baselines = np.array([recipe.name == "bf16" for recipe, _, _ in arms])
    add_fixed(group, "is_baseline", baselines.astype(np.uint8), "flag")
    complete = np.array([not recipe.nan_step for recipe, _, _ in arms])
    add_fixed(group, "complete", complete.astype(np.uint8), "flag")
    add_fixed(group, "last_step", np.array([done for _, _, done in arms], dtype=np.int64), "step")
    hashes = [
        0 if recipe.nan_step else hash_text(f"{recipe.name}{seed}{done}")
        for recipe, seed, done in arms
    ]
    add_fixed(group, "final_weight_hash", np.array(hashes, dtype=np.uint64), "hash")


def make_example(
    out: Path,
    recipes: Sequence[SyntheticRecipe] = RECIPES,
    seeds: Sequence[int] = SEEDS,
    design: StatedDesign | None = None,
) -> Path:
    """Writes the example study below `out` and returns the path of study.h5."""
    arms = []
    for recipe in recipes:
        for seed in seeds:
            done = write_run(out / f"{recipe.name}-seed{seed}" / "run.h5", recipe, seed)
            arms.append((recipe, seed, done))
    write_study(out / "study.h5", arms, design)
    return out / "study.h5"


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes synthetic run files for tests.")
    parser.add_argument("out_dir", type=Path)
    print(make_example(parser.parse_args().out_dir))


if __name__ == "__main__":
    main()
