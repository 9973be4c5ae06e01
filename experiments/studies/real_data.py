"""Token shards for the studies real_*.toml: CPT text of two domains, questions as chats.

python3 experiments/studies/real_data.py --model SmolLM2-135M \
    --text peps.jsonl cpp_docs.jsonl --questions train.jsonl test.jsonl --out real

`--text` are JSON lines with `text`, perhaps packed (.xz): one domain a file, of which one document
in twenty (lines 10, 30, 50, ...) is held out, all but its first line. `--questions` are JSON lines
with `question` and `answer`: those trained on and those held out; they become a user's message and
the assistant's. Shards are those of `python3 -m fp8lab.tokens`, which must be importable, and of
the tokenizer and chat template of `--model`; every text begins with its `bos_token`, whatever
`add_bos_token` says there. They lie in `--out`, beside the JSON lines that they were made of.
"""

from __future__ import annotations

import argparse
import json
import lzma
import subprocess
import sys
from pathlib import Path

HELD_OUT_ONE_IN = 20
HELD_OUT_OFFSET = 10


def read_lines(path: Path) -> list[str]:
    """The lines of a file that are not blank."""
    data = path.read_bytes()
    text = (lzma.decompress(data) if path.suffix == ".xz" else data).decode("utf-8")
    return [line for line in text.split("\n") if line.strip()]


def split(lines: list[str]) -> tuple[list[str], list[str]]:
    """Documents to train on, and documents held out."""
    parts: tuple[list[str], list[str]] = ([], [])
    for number, line in enumerate(lines, start=1):
        parts[number % HELD_OUT_ONE_IN == HELD_OUT_OFFSET].append(line)
    return parts


def as_completion(line: str) -> str:
    """A text as what follows its first line. So its shard has a loss mask, which a mixture with
    questions and answers asks for."""
    title, end, rest = json.loads(line)["text"].partition("\n")
    return json.dumps({"prompt": title + end, "completion": rest})


def as_chat(line: str) -> str:
    """A question and its answer as messages."""
    record = json.loads(line)
    messages = [
        {"role": "user", "content": record["question"]},
        {"role": "assistant", "content": record["answer"]},
    ]
    return json.dumps({"messages": messages})


def begin_option(model: Path) -> list[str]:
    """The token in front of every text: the model's bos_token, if it names one."""
    file = model / "tokenizer_config.json"
    token = json.loads(file.read_text(encoding="utf-8")).get("bos_token") if file.exists() else None
    text = token.get("content") if isinstance(token, dict) else token
    return [] if text is None else [f"--begin={text}"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Token shards for the studies real_*.toml.")
    parser.add_argument("--model", type=Path, required=True, help="folder with tokenizer.json")
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="a domain a file")
    parser.add_argument("--questions", type=Path, nargs=2, required=True, help="train, held out")
    parser.add_argument("--out", type=Path, required=True, help="folder that gets the shards")
    arguments = parser.parse_args()
    if arguments.out.exists():
        parser.error(f"{arguments.out} exists; name another folder with --out")
    arguments.out.mkdir(parents=True)
    documents: dict[str, list[str]] = {}
    for path in arguments.text:
        domain = path.name.split(".")[0]
        train, held_out = split(read_lines(path))
        documents[f"{domain}_train"] = train
        documents[f"{domain}_held_out"] = [as_completion(line) for line in held_out]
    for path, part in zip(arguments.questions, ("train", "held_out"), strict=True):
        documents[f"gsm8k_{part}"] = [as_chat(line) for line in read_lines(path)]
    for name, lines in documents.items():
        file = arguments.out / f"{name}.jsonl"
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        command = [sys.executable, "-m", "fp8lab.tokens", str(file)]
        command += ["--tokenizer", str(arguments.model), "--out", str(arguments.out)]
        command += begin_option(arguments.model)
        if subprocess.run(command, check=False).returncode != 0:
            raise SystemExit(f"{file}: no shards were made of it (the reason is above)")


if __name__ == "__main__":
    main()
