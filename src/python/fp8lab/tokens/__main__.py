"""Writes token shards of text, JSON lines, chats and Parquet, and trains a BPE when asked."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fp8lab.tokens.documents import Passage, Record, read_documents
from fp8lab.tokens.questions import encode_questions
from fp8lab.tokens.shards import ShardWriter, TokenError, hash_file, write_atomically
from fp8lab.tokens.tokenizer import BEGIN, END, Encoder, load_encoder, token_bytes, train_bpe


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fp8lab.tokens", description=__doc__)
    add = parser.add_argument
    add("inputs", nargs="+", type=Path, help="files: .txt, .md, .jsonl, .json, .parquet")
    add("--out", required=True, type=Path, help="folder of the shards")
    add("--name", help="first part of the shards' names (default: the first input's)")
    add(
        "--format", choices=["text", "jsonl", "parquet"], help="of all inputs, whatever their names"
    )
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--tokenizer", type=Path, help="tokenizer.json, or a model's folder")
    chosen.add_argument("--train-bpe", type=int, metavar="VOCABULARY", help="train on the inputs")
    add("--begin", help="token before every document (default: bos_token)")
    add("--end", help="token after every document (default: eos_token)")
    add(
        "--questions",
        action="store_true",
        help='inputs are JSON lines of "prompt" or "question" and "choices": ids in their place',
    )
    add("--shard-tokens", type=int, default=1 << 27, help="a shard ends at this many")
    return parser.parse_args(arguments)


def _records(options: argparse.Namespace) -> Iterator[Record]:
    for path in options.inputs:
        yield from read_documents(path, options.format)


def _texts(records: Iterator[Record]) -> Iterator[str]:
    for record in records:
        if not isinstance(record, Passage):
            raise TokenError(f"{record.where}: messages need the tokenizer of their template")
        yield record.prompt + record.response


def _masked(options: argparse.Namespace) -> bool:
    """Whether any document has a prompt: then all shards get a loss mask."""
    return any(not isinstance(r, Passage) or r.prompt for r in _records(options))


def _encoder(options: argparse.Namespace) -> Encoder:
    if options.train_bpe is None:
        return load_encoder(options.tokenizer, options.begin, options.end)
    if options.begin is not None or options.end is not None:
        raise TokenError(f"--begin and --end: a trained tokenizer has {BEGIN} and {END}")
    return Encoder(train_bpe(_texts(_records(options)), options.train_bpe), BEGIN, END)


def _manifest(
    options: argparse.Namespace, encoder: Encoder, shards: list[dict[str, Any]]
) -> dict[str, Any]:
    """Everything that the shards follow from, and nothing that depends on where or when."""
    t = encoder.tokenization
    return {
        "schema": "fp8lab-tokens-manifest-1",
        "inputs": [
            {"file": path.name, "hash": f"{hash_file(path):016x}"} for path in options.inputs
        ],
        "tokenizer": {
            "hash": f"{t.tokenizer_hash:016x}",
            "vocabulary": t.vocabulary,
            "begin": t.begin,
            "end": t.end,
        },
        "tokens": sum(shard["tokens"] for shard in shards),
        "trained_tokens": sum(shard["trained_tokens"] for shard in shards),
        "documents": sum(shard["documents"] for shard in shards),
        "shards": shards,
    }


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Writes the shards, NAME.manifest.json, tokenizer.json and token_bytes.json; returns the
    manifest. A folder holds one tokenizer."""
    if options.shard_tokens < 2:
        raise TokenError("--shard-tokens: accepted: at least 2")
    encoder = _encoder(options)
    options.out.mkdir(parents=True, exist_ok=True)
    present = options.out / "tokenizer.json"
    if present.exists() and present.read_bytes() != encoder.json_bytes:
        raise TokenError(f"{present}: another tokenizer; accepted: another --out")
    name = options.name or options.inputs[0].stem
    if list(options.out.glob(f"{name}-*.tokens")):
        raise TokenError(f"{options.out}: holds shards of the name '{name}'")
    table = token_bytes(encoder)
    manifest = _manifest(options, encoder, _write_shards(options, encoder, name))
    write_atomically(present, encoder.json_bytes)
    if table is not None:
        write_atomically(options.out / "token_bytes.json", table)
    if options.train_bpe is not None:
        config = json.dumps({"bos_token": BEGIN, "eos_token": END}, indent=2) + "\n"
        write_atomically(options.out / "tokenizer_config.json", config.encode())
    text = json.dumps(manifest, indent=2) + "\n"
    write_atomically(options.out / f"{name}.manifest.json", text.encode())
    return manifest


def _write_shards(options: argparse.Namespace, encoder: Encoder, name: str) -> list[dict[str, Any]]:
    """All shards or none: those before a bad record are removed again."""
    writer = ShardWriter(
        options.out,
        name,
        encoder.tokenization,
        masked=_masked(options),
        shard_tokens=options.shard_tokens,
    )
    try:
        for tokens, trained in encoder.encode(_records(options)):
            writer.add(tokens, trained)
        return writer.finish()
    except TokenError:
        for record in writer.records:
            (options.out / record["file"]).unlink()
        raise


def write_questions(options: argparse.Namespace) -> dict[str, int]:
    """Writes the inputs with ids, and token_bytes.json; returns the number of records of each."""
    if options.tokenizer is None:
        raise TokenError("--questions: needs the --tokenizer of a model")
    encoder = _encoder(options)
    options.out.mkdir(parents=True, exist_ok=True)
    counts = encode_questions(options.inputs, encoder, options.out)
    table = token_bytes(encoder)
    if table is not None:
        write_atomically(options.out / "token_bytes.json", table)
    return counts


def main(arguments: Sequence[str] | None = None) -> int:
    """0: written; 2: bad input, one line on standard error."""
    options = _parse(arguments)
    try:
        if options.questions:
            for name, count in write_questions(options).items():
                print(f"{options.out / name}: {count} records")
            return 0
        manifest = run(options)
    except TokenError as error:
        print(f"fp8lab.tokens: {error}", file=sys.stderr)
        return 2
    print(
        f"{options.out}: {manifest['documents']} documents, {manifest['tokens']} tokens, "
        f"{manifest['trained_tokens']} trained on, in {len(manifest['shards'])} shards, "
        f"tokenizer {manifest['tokenizer']['hash']} with {manifest['tokenizer']['vocabulary']} ids"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
