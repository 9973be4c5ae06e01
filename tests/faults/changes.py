"""Files that change while a run reads them, and runs that move: the bits of the undisturbed run, or
a refusal after which the file that was put back gives them."""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import swaps
import weights  # first: it says where the next one is
import model_files
from program import Interrupt, fault_of, refusal_fault
from runs import (
    BYTES_INPUTS,
    SHARDS,
    TOKENS_INPUTS,
    TRAIN,
    Context,
    Fixture,
    Outcome,
    case_folder,
    refused_or_crashed,
)

Change = Callable[[Path, random.Random], None]


def overwrite(path: Path, rng: random.Random) -> None:
    """Other bytes in place, as `cp` and `rsync --inplace` write them."""
    data = bytearray(path.read_bytes())
    first = rng.choice((0, len(data) // 2, len(data) - 1))
    data[first:] = bytes(byte ^ rng.choice((1, 3)) for byte in data[first:])
    with path.open("r+b") as file:
        file.write(data)


def letters(path: Path, rng: random.Random) -> None:
    """Other words or numbers in place, which are as valid."""
    data = path.read_bytes()
    del rng
    if path.suffix == ".tokens":  # other ids behind the ends of documents (src/data/README.md)
        count, documents = struct.unpack_from("<QQ", data, 16)
        ids = range(128 + 8 * documents, 128 + 8 * documents + 2 * count, 2)
        other = bytearray(data)
        for place in ids:
            other[place] ^= 1
        changed = bytes(other)
    elif path.suffix == ".safetensors":
        changed = data[:-4] + struct.pack("<f", 0.25)
    else:
        changed = data.translate(bytes.maketrans(b"eoa1", b"oae2"))
    with path.open("r+b") as file:
        file.write(changed)


def cut(path: Path, rng: random.Random) -> None:
    size = path.stat().st_size
    os.truncate(path, rng.choice((0, 1, size // 2, size - 1, rng.randrange(size))))


def grow(path: Path, rng: random.Random) -> None:
    with path.open("ab") as file:
        file.write(path.read_bytes()[: rng.choice((1, 200, 10**6))])


def rename_over(path: Path, rng: random.Random) -> None:
    """Another file under the same name."""
    other = path.with_name("other")
    shutil.copy(path, other)
    rng.choice((overwrite, letters, cut, grow))(other, rng)
    other.rename(path)


def remove(path: Path, rng: random.Random) -> None:
    del rng
    path.unlink()


def touch(path: Path, rng: random.Random) -> None:
    """The same bytes written again."""
    del rng
    path.write_bytes(path.read_bytes())


CHANGES: tuple[Change, ...] = (
    overwrite, overwrite, letters, letters, cut, cut, grow, rename_over, remove, touch,
)  # fmt: skip


def under_a_run(context: Context, rng: random.Random) -> Outcome:
    """Training with a file changed at some moment after it has begun, that is once the run file
    with the identity of all inputs is there."""
    fixture: Fixture = rng.choice((context.bytes, context.tokens))
    state = rng.choice(("", "stopped"))
    folder = fixture.copy(case_folder(context, "change"), state)
    # More often what is read again, or all the time.
    name = rng.choice((*BYTES_INPUTS, "questions.jsonl", "rollout.toml"))
    if fixture is context.tokens:
        name = rng.choice((*TOKENS_INPUTS, SHARDS, SHARDS, SHARDS))
    change = rng.choice(CHANGES)
    kept = (folder / name).read_bytes()
    run_file = folder / "run/run.h5"
    began = run_file.stat().st_mtime_ns if state else 0
    seed, happened = rng.random(), list[bool]()

    def disturb() -> None:
        if run_file.exists() and run_file.stat().st_mtime_ns != began:
            happened.append(True)
            change(folder / name, random.Random(seed))

    part = rng.uniform(0.05, 0.9)
    at = max(1, int(part * fixture.stops)) if context.traced else None
    words = (*TRAIN, "--resume") if state else TRAIN
    moment = Interrupt(disturb, at, part * fixture.seconds)
    result = context.program.run(folder, *words, interrupt=moment)
    note = f"{change.__name__} of {name} at {part:.2f} of {state or 'fresh'}"
    note += f"{'' if happened else ' (too early)'}; {result.said()}"
    outcome = fixture.judge(folder, result)
    if outcome.verdict == "refused":
        (folder / name).write_bytes(kept)
        again = context.program.run(folder, *TRAIN, "--resume")
        then = fixture.judge(folder, again)
        if then.verdict != "right":
            return Outcome("crashed", f"with the file put back: {then.note}; {note}")
    return Outcome(outcome.verdict, f"{outcome.note}; {note}")


def cut_weights(context: Context, rng: random.Random) -> Outcome:
    """A model folder whose file is cut while a command reads it: it never was another model."""
    tensors = weights.base_tensors(rng.choice(("F32", "BF16")), "F32", "tensor")
    folder = case_folder(context, "cut")
    weights.write_model(folder, tensors, weights.CONFIG)
    # Pages of it, so that what has not been read yet is gone.
    way = rng.choice([way for way in weights.WAYS if way.answer in ("out", "linear", "run")])
    file = folder / "model/model.safetensors"
    size = rng.choice((0, 8, 5000, file.stat().st_size // 2))
    moment = Interrupt(lambda: os.truncate(file, size), None, rng.uniform(0.0, 0.04))
    result = context.program.run(folder, *way.words, interrupt=moment)
    note = f"cut to {size} bytes; {result.said()}"
    if fault_of(result):
        return Outcome("crashed", f"{fault_of(result)}; {note}")
    if result.code not in (0, 5):
        problem = refusal_fault(result, "model", (1, 2))
        return Outcome("crashed" if problem else "refused", f"{problem}; {note}")
    found = weights.answer(folder, way, result)
    beside = case_folder(context, "cut-not")
    weights.write_model(beside, tensors, weights.CONFIG)
    due = weights.answer(beside, way, context.program.run(beside, *way.words))
    return Outcome("right" if found == due else "wrong", note)


def change(context: Context, rng: random.Random) -> Outcome:
    return (under_a_run if rng.random() < 0.8 else cut_weights)(context, rng)


# --- runs that move -------------------------------------------------------------------------------

# What a complete run no longer needs.
OF_THE_START = {
    "bytes": ("config.toml", "run.toml", "sft.toml", "rollout.toml"),
    "tokens": ("config.toml", "rollout.toml"),
}
PLACES = ("elsewhere/run", "a b/c", "é", "x'y\"z", "-run", "deep/er/and/deeper/r")


def moved(context: Context, rng: random.Random) -> Outcome:
    """A complete run in another folder, the files that it was configured by changed or gone."""
    fixture = rng.choice((context.bytes, context.tokens))
    kind = "bytes" if fixture is context.bytes else "tokens"
    folder = fixture.copy(case_folder(context, "moved"))
    place = rng.choice(PLACES)
    (folder / place).parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(fixture.folder / "whole", folder / place)
    notes = [f"in {place}"]
    for name in rng.sample(OF_THE_START[kind], rng.randrange(len(OF_THE_START[kind]) + 1)):
        if name != "config.toml" and rng.random() < 0.4:
            swaps.other_recipe(name)(context, folder, rng)  # as valid, with other bits
            notes.append(f"another {name}")
            continue
        how = rng.choice((remove, cut, letters))
        how(folder / name, rng)
        notes.append(f"{how.__name__} of {name}")
    if kind == "tokens" and rng.random() < 0.3:  # what says the words of tokens, not the tokens
        os.utime(folder / SHARDS, (1, 1))
    source = f"./{place}" if place.startswith("-") else place
    what = rng.choice(("eval", "eval", "verify", "compare", "export", "generate"))
    if what == "eval":
        words: tuple[str, ...] = ("eval", source, "--json", "--threads", "1")
    elif what == "verify":
        words = ("verify", source, "--steps", "2", "--threads", "1")
    elif what == "compare":
        shutil.copytree(fixture.folder / "whole", folder / "whole")
        words = ("compare", source, "whole", "--threads", "1")
    elif what == "export":
        words = ("export", source, "out", "--dtype", "f32")
    else:
        (folder / "p.jsonl").write_text('{"prompt": [5, 6, 7]}\n')
        words = ("generate", source, "--prompts", "p.jsonl", "--max-new-tokens", "3", "--json")
        words += ("--threads", "1")
    result = context.program.run(folder, *words)
    note = f"{', '.join(notes)}; {result.said()}"
    if result.code != 0 or fault_of(result):
        outcome = refused_or_crashed(result)
        if what in ("verify", "compare") and result.code == 3:
            outcome = Outcome("wrong", "finds a difference")
        return Outcome(outcome.verdict, f"{outcome.note}; {note}")
    right = True
    if what == "eval":
        mine = '"source": ' + quoted(source)
        right = result.out == fixture.evaluation.replace('"source": "whole"', mine)
    elif what in ("export", "generate"):
        still = fixture.copy(case_folder(context, "unmoved"))
        shutil.copytree(fixture.folder / "whole", still / "whole")
        (still / "p.jsonl").write_text('{"prompt": [5, 6, 7]}\n')
        words = tuple("whole" if word == source else word for word in words)
        due = context.program.run(still, *words)
        right = due.code == 0 and due.out.replace("whole", source) == result.out
        if what == "export":
            written = [model_files.read_folder(f / "out") for f in (folder, still)]
            right = written[0] == written[1]
    return Outcome("right" if right else "wrong", note)


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
