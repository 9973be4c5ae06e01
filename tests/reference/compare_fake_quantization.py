#!/usr/bin/env python3
"""Compares what `fp8lab assess` says a recipe costs with fake quantization in PyTorch.

    export PYTHONPATH=src/python
    python3 -m fp8lab.tokens experiments/texts/numerics.txt --tokenizer MODEL --out shards
    fp8lab assess MODEL --data shards/numerics-00000.tokens --out assessed --recipe infir2 ...
    python3 tests/reference/compare_fake_quantization.py MODEL \\
        --data shards/numerics-00000.tokens --facts assessed/facts.json

Needs torch, transformers, scipy and xxhash. MODEL is a folder of Hugging Face, of a family whose
layers transformers writes with torch.nn.Linear (Llama, Qwen2, Qwen3). The tokens that `assess` has
read, packed as it packs them, go through transformers in BF16, whose linear layers, `lm_head` where
the rule says so, get quantized operands and FP32 sums (fake_quantization.py). It must give

  bf16        the loss of `assess` without quantization within 0.2 % of transformers' in BF16,
  each rule   the gap to that loss, paired by token, within the 95 % interval that `assess` prints.

The interval says which documents were drawn. Beside it stands the difference of the two gaps with
an interval of its own, over the same documents: what sums, and roundings that fall otherwise, move.

Greedy tokens are compared too, and reported: `fp8lab generate` completes the first tokens of some
documents; one pass of transformers over prompt and completion says which tokens it takes after the
same ones. Where it takes another, the gap is how far its logit of fp8lab's token lies below.

Exit status 1 when a figure is beyond its bound.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "src/python"), str(ROOT / "analysis")]

from fake_quantization import RULES, fake_quantized  # noqa: E402
from fp8lab.tokens.shards import read_shard  # noqa: E402
from fp8lab_analysis.judge.assessment import (  # noqa: E402
    Assessment,
    Estimate,
    clustered_ratio,
    percent,
    signed,
)

BF16_BOUND = 0.002  # of the loss
Doubles = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Sequence:
    """Pieces of documents. A token attends to its own piece, where places start at 0."""

    tokens: Ids
    targets: Ids
    places: Ids
    documents: Ids  # index into the order in which documents are read


def packed(documents: list[Ids], sequences: int, length: int) -> list[Sequence]:
    """Every token but the last of each document, which predicts nothing, one document after the
    other, cut into sequences."""
    columns: list[list[Ids]] = [[], [], [], []]
    room = 0
    for index, document in enumerate(documents):
        begin = 0
        while begin < document.size - 1:
            room = room or length
            end = min(document.size - 1, begin + room)
            piece = document[begin : end + 1]
            columns[0].append(piece[:-1])
            columns[1].append(piece[1:])
            columns[2].append(np.arange(end - begin))
            columns[3].append(np.full(end - begin, index))
            room -= end - begin
            begin = end
    flat = [np.concatenate(column).astype(np.int64) for column in columns]
    if flat[0].size < sequences * length:
        raise SystemExit(f"{flat[0].size} tokens are fewer than {sequences} x {length}")
    return [
        Sequence(*(column[i * length : (i + 1) * length] for column in flat))
        for i in range(sequences)
    ]


def mask_of(sequence: Sequence, dtype: torch.dtype) -> torch.Tensor:
    """(1, 1, length, length): 0 where a token sees another, else the lowest number."""
    begin = torch.from_numpy(np.arange(sequence.places.size) - sequence.places)
    at = torch.arange(begin.numel())
    seen = (at[None, :] <= at[:, None]) & (at[None, :] >= begin[:, None])
    mask = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
    return mask[None, None]


@torch.no_grad()
def document_sums(model: Any, sequences: list[Sequence], documents: int) -> Doubles:
    """Losses in nats, summed over the tokens of each document."""
    sums = np.zeros(documents)
    for sequence in sequences:
        logits = model(
            input_ids=torch.from_numpy(sequence.tokens)[None].to(model.device),
            position_ids=torch.from_numpy(sequence.places)[None].to(model.device),
            attention_mask=mask_of(sequence, model.dtype).to(model.device),
            use_cache=False,
        ).logits[0]
        targets = torch.from_numpy(sequence.targets).to(model.device)
        losses = torch.nn.functional.cross_entropy(
            logits.to(torch.float32), targets, reduction="none"
        )
        np.add.at(sums, sequence.documents, losses.cpu().numpy().astype(np.float64))
    return sums


def load(folder: Path, dtype: torch.dtype, device: str = "cpu") -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager"
    )
    return model.eval().to(device)


# --- fp8lab ---------------------------------------------------------------------------------------


def generate(options: argparse.Namespace, prompts: list[Ids]) -> list[list[int]]:
    """Greedy tokens of fp8lab under bf16."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "prompts.jsonl"
        file.write_text("".join(json.dumps({"prompt": p.tolist()}) + "\n" for p in prompts))
        command = [options.program, "generate", str(options.model), "--prompts", str(file)]
        command += ["--recipe", "bf16", "--json"]
        for name in ("max-new-tokens", "min-new-tokens"):
            command += [f"--{name}", str(options.new_tokens)]
        environment = {**os.environ, "FP8LAB_PYTHON": sys.executable}
        said = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, env=environment
        ).stdout
    return [json.loads(line)["tokens"] for line in said.splitlines()]


# --- comparisons ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gap:
    """What one rule costs, relative to the loss without quantization."""

    rule: str
    ours: Estimate  # of fp8lab assess
    theirs: Estimate  # of PyTorch
    difference: Estimate  # theirs - ours

    @property
    def is_within(self) -> bool:
        """PyTorch's gap lies in the interval of `assess`; not where that has none."""
        return abs(self.theirs.value - self.ours.value) <= self.ours.half

    def to_json(self) -> dict[str, Any]:
        """Fractions of the loss."""
        names = {"fp8lab": self.ours, "pytorch": self.theirs, "difference": self.difference}
        return {
            "rule": self.rule,
            **{name: [estimate.value, estimate.half] for name, estimate in names.items()},
            "within": self.is_within,
        }


def gap_of(rule: str, ours: Doubles, theirs: Doubles) -> Gap:
    """From (2, documents): sums without quantization, and under the rule."""
    costs = [(sums[1] - sums[0], sums[0]) for sums in (ours, theirs)]
    (cost, base), (their_cost, their_base) = costs
    # Ratios of sums over the same documents: their difference, to first order in what they share.
    scale = float(base.sum() / their_base.sum())
    return Gap(
        rule,
        clustered_ratio(cost, base),
        clustered_ratio(their_cost, their_base),
        clustered_ratio(their_cost * scale - cost, base),
    )


@dataclass
class Greedy:
    """Tokens of fp8lab beside what transformers takes after the same ones."""

    tokens: int = 0
    same: int = 0
    first: list[int] = field(default_factory=list)  # tokens of a completion before another one
    gaps: list[float] = field(default_factory=list)  # logits, where another is taken

    @torch.no_grad()
    def add(self, model: Any, prompt: Ids, completion: list[int]) -> None:
        """One completion."""
        ids = torch.tensor([[*prompt.tolist(), *completion]], device=model.device)
        logits = model(ids, use_cache=False).logits[0, prompt.size - 1 : -1]
        logits = logits.to("cpu", torch.float32)
        taken = torch.tensor(completion)
        gaps = (logits.max(dim=-1).values - logits.gather(1, taken[:, None])[:, 0]).tolist()
        self.tokens += len(completion)
        self.same += sum(gap == 0.0 for gap in gaps)
        self.gaps += [gap for gap in gaps if gap > 0.0]
        self.first.append(next((i for i, gap in enumerate(gaps) if gap > 0.0), len(gaps)))

    def sentence(self, of: str) -> str:
        """For the terminal."""
        text = f"greedy, {of}: {self.same} of {self.tokens} tokens are the likeliest there too"
        if self.gaps:
            text += (
                f"; of the other {len(self.gaps)} the logit is lower by {max(self.gaps):.3f} at "
                f"most, by {float(np.median(self.gaps)):.3f} in the median; equal from the start: "
                f"{', '.join(map(str, self.first))}"
            )
        return text


def compare_greedy(options: argparse.Namespace, models: dict[str, Any]) -> dict[str, Greedy]:
    """By name of a model of transformers."""
    documents = [document.astype(np.int64) for document in read_shard(options.data).documents()]
    prompts = [d[: options.prompt_tokens] for d in documents[: options.prompts]]
    completions = generate(options, prompts)
    found = {name: Greedy() for name in models}
    for prompt, completion in zip(prompts, completions, strict=True):
        for name, model in models.items():
            found[name].add(model, prompt, completion)
    return found


def read_arguments(words: list[str] | None) -> argparse.Namespace:
    description = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("model", type=Path, help="folder of Hugging Face")
    parser.add_argument("--data", type=Path, required=True, help="the shard that assess has read")
    parser.add_argument("--facts", type=Path, required=True, help="facts.json of assess")
    parser.add_argument("--device", default="cpu", help="of PyTorch: cpu or cuda")
    parser.add_argument("--program", default="fp8lab", help="that completes prompts")
    parser.add_argument("--prompts", type=int, default=8, help="completions; 0: none")
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--json", type=Path, help="figures, for machines")
    return parser.parse_args(words)


def same_sequences(options: argparse.Namespace, assessment: Assessment) -> list[Sequence]:
    """The sequences of `assess`, from the order in which it met the documents. Ends the program
    where the shard is not what it has read."""
    facts = assessment.facts
    if len(facts["sources"]) != 1 or facts["micro_batch_sequences"] != 1:
        raise SystemExit("accepted: facts of one source, and of --sequences-together 1")
    documents = [document.astype(np.int64) for document in read_shard(options.data).documents()]
    order = [index for _, index, _ in facts["documents"]]
    if max(order) >= len(documents):
        raise SystemExit(f"{options.data} has {len(documents)} documents: assess read another one")
    read = [documents[index] for index in order]
    sequences = packed(read, facts["sequences"], facts["sequence_length"])
    counted = np.bincount(np.concatenate([s.documents for s in sequences]), minlength=len(order))
    if counted.tolist() != assessment.tokens.tolist():
        raise SystemExit(
            "the tokens by document are not those of assess: accepted are its shard, "
            "and --form running_text"
        )
    return sequences


def compare_losses(assessment: Assessment, sequences: list[Sequence], models: Any) -> Any:
    """Prints and returns the losses without quantization by name, and what each rule adds."""
    count = assessment.tokens.size
    total = float(assessment.tokens.sum())
    losses = {"fp8lab": assessment.costs[0].loss}
    for name, model in models.items():
        losses[name] = float(document_sums(model, sequences, count).sum()) / total
    model = models["BF16"]
    with fake_quantized(model, None):
        base = document_sums(model, sequences, count)
    losses["BF16, FP32 sums"] = float(base.sum()) / total
    print(f"loss under bf16: fp8lab {losses['fp8lab']:.5f}")
    for name, loss in losses.items():
        if name != "fp8lab":
            print(f"  transformers in {name}: {loss:.5f}, {losses['fp8lab'] / loss - 1:+.3%}")
    print(f"\n{'gap under':18}{'fp8lab':>18}{'PyTorch':>11}{'difference':>18}  within")
    gaps = []
    for row, rule in enumerate(assessment.names):
        if rule not in RULES:
            continue
        with fake_quantized(model, RULES[rule]):
            sums = document_sums(model, sequences, count)
        gap = gap_of(rule, assessment.sums[[0, row]], np.stack([base, sums]))
        gaps.append(gap)
        theirs, within = signed(gap.theirs.value), "yes" if gap.is_within else "NO"
        line = f"{rule:18}{percent(gap.ours):>18}{theirs:>11}{percent(gap.difference):>18}"
        print(f"{line}  {within}", flush=True)
    return losses, gaps


def main(words: list[str] | None = None) -> int:
    """Exit status."""
    options = read_arguments(words)
    transformers.utils.logging.disable_progress_bar()
    assessment = Assessment.read(options.facts)
    if not set(assessment.names) & set(RULES):
        raise SystemExit(f"{options.facts}: accepted: at least one recipe of {', '.join(RULES)}")
    sequences = same_sequences(options, assessment)
    print(
        f"{options.model}: {assessment.tokens.sum():.0f} tokens of {assessment.tokens.size} "
        f"documents, {len(sequences)} x {sequences[0].tokens.size}"
    )
    models = {
        name: load(options.model, dtype, options.device)
        for name, dtype in (("BF16", torch.bfloat16), ("FP32", torch.float32))
    }
    losses, gaps = compare_losses(assessment, sequences, models)
    is_close = abs(losses["fp8lab"] / losses["BF16"] - 1.0) <= BF16_BOUND
    passed = is_close and all(gap.is_within for gap in gaps)
    greedy = compare_greedy(options, models) if options.prompts > 0 else {}
    for name, found in greedy.items():
        print(found.sentence(f"transformers in {name}"))
    if not is_close:
        print(f"the loss under bf16 is not within {BF16_BOUND:.1%} of that of transformers")
    if not all(gap.ours.is_known for gap in gaps):
        print("a gap has no interval: fewer than 5 documents, or a loss that is not finite")
    if options.json:
        result = {
            "losses": losses,
            "gaps": [gap.to_json() for gap in gaps],
            "greedy": {name: vars(found) for name, found in greedy.items()},
            "passed": passed,
        }
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
