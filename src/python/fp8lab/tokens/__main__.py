"""Writes token shards of text, JSON lines, chats and Parquet, and trains a BPE when asked."""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from fp8lab.tokens.chat import CHATML, CHATML_TOKENS, ChatTemplate, read_text
from fp8lab.tokens.documents import Chat, Passage, Record, read_documents
from fp8lab.tokens.questions import encode_questions
from fp8lab.tokens.shards import NewFiles, ShardWriter, TokenError, hash_file
from fp8lab.tokens.tokenizer import BEGIN, END, Encoder, load_encoder, token_bytes, train_bpe

LONGEST_NAME = 200  # bytes, without the number and ending of a shard's name
CONFIG = "tokenizer_config.json"
OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE)


class _Parser(argparse.ArgumentParser):
    """Reports usage errors in one line, as the program does."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"fp8lab.tokens: {message} (--help tells more)\n")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _Parser(prog="fp8lab.tokens", description=__doc__)
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
    add(
        "--special",
        action="append",
        default=[],
        metavar="TOKEN",
        help="of a trained tokenizer, a special token more, such as '<|tool|>'",
    )
    add(
        "--chat-template",
        type=Path,
        metavar="FILE",
        help="for messages (default: the model's; ChatML for a trained tokenizer)",
    )
    first = parser.add_mutually_exclusive_group()
    first.add_argument(
        "--begin",
        metavar="TOKEN",
        help="token before every document (default: bos_token, none where add_bos_token is false)",
    )
    first.add_argument("--no-begin", action="store_true", help="no token before a document")
    add("--end", metavar="TOKEN", help="token after every document (default: eos_token)")
    add(
        "--questions",
        action="store_true",
        help='inputs are JSON lines of "prompt", "messages", or "question" and "choices": ids in '
        "their place",
    )
    add("--shard-tokens", type=int, default=1 << 27, help="a shard ends at this many")
    return parser.parse_args(arguments)


def _records(options: argparse.Namespace) -> Iterator[Record]:
    for path in options.inputs:
        yield from read_documents(path, options.format)


def _texts(records: Iterator[Record]) -> Iterator[str]:
    """Yields training texts of a BPE: of chats only roles and contents, without template text."""
    for record in records:
        if isinstance(record, Passage):
            yield record.prompt + record.response
            continue
        for message in record.messages:
            content = message.get("content")
            yield f"{message['role']}\n{content if isinstance(content, str) else ''}"


def _masked(options: argparse.Namespace) -> bool:
    """Returns true if any document has a prompt; then all shards get a loss mask."""
    return any(not isinstance(r, Passage) or r.prompt for r in _records(options))


def _encoder(options: argparse.Namespace) -> tuple[Encoder, dict[str, str]]:
    """Returns the encoder and its tokenizer_config.json."""
    if options.train_bpe is None:
        if options.special:
            raise TokenError("--special: for --train-bpe only")
        chosen = (options.begin, options.end, options.chat_template)
        encoder = load_encoder(options.tokenizer, *chosen, options.no_begin)
        return encoder, encoder.config
    if options.begin is not None or options.end is not None or options.no_begin:
        raise TokenError(
            f"--begin, --no-begin and --end: a trained tokenizer has {BEGIN} and {END}"
        )
    source = None if options.chat_template is None else read_text(options.chat_template)
    specials, end = list(options.special), END
    if source is None and any(isinstance(record, Chat) for record in _records(options)):
        source, end = CHATML, CHATML_TOKENS[1]
        specials = [*CHATML_TOKENS, *(token for token in specials if token not in CHATML_TOKENS)]
    config = {"bos_token": BEGIN, "eos_token": end}
    template = None
    if source is not None:
        template = ChatTemplate(source, dict(config))
        config["chat_template"] = source
    json_bytes = train_bpe(_texts(_records(options)), options.train_bpe, specials)
    return Encoder(json_bytes, BEGIN, end, template), config


def _hashes(options: argparse.Namespace) -> list[str]:
    return [f"{hash_file(path):016x}" for path in options.inputs]


def _manifest(
    options: argparse.Namespace, encoder: Encoder, hashes: list[str], shards: list[dict[str, Any]]
) -> dict[str, Any]:
    """Returns everything that determines the shards; independent of place and time."""
    t = encoder.tokenization
    return {
        "schema": "fp8lab-tokens-manifest-1",
        "inputs": [
            {"file": path.name, "hash": value} for path, value in zip(options.inputs, hashes)
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


def _name(options: argparse.Namespace) -> str:
    """Returns the common part of the shards' names. It must be a plain file name, so that nothing
    is written outside the folder."""
    name: str = options.inputs[0].stem if options.name is None else options.name
    fits = name.isprintable() and "/" not in name and not name.startswith(".")
    if not fits or not 0 < len(os.fsencode(name)) <= LONGEST_NAME:
        raise TokenError(
            f"--name {ascii(name[:80])}; accepted: the beginning of a file name, without '/' and "
            f"a dot in front, of at most {LONGEST_NAME} bytes"
        )
    return name


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Writes the shards, NAME.manifest.json, token_bytes.json, tokenizer.json and
    tokenizer_config.json (begin and end tokens, chat template); returns the manifest. A folder
    holds one tokenizer. On an error, removes the files written so far."""
    if options.shard_tokens < 2:
        raise TokenError("--shard-tokens: accepted: at least 2")
    name = _name(options)
    encoder, config = _encoder(options)
    table = token_bytes(encoder)
    masked = _masked(options)
    hashes = _hashes(options)
    out: Path = options.out
    with NewFiles(out) as files:
        present = out / "tokenizer.json"
        if present.exists() and not present.is_file():
            raise TokenError(f"{present}: is no regular file")
        if present.exists() and present.read_bytes() != encoder.json_bytes:
            raise TokenError(f"{present}: another tokenizer; accepted: another --out")
        if any(path.name.startswith(f"{name}-") for path in out.glob("*.tokens")):
            raise TokenError(f"{out}: holds shards of the name '{name}'")
        writer = ShardWriter(
            out,
            name,
            encoder.tokenization,
            masked=masked,
            shard_tokens=options.shard_tokens,
            write=files.write,
        )
        for index, (tokens, trained) in enumerate(encoder.encode(_records(options))):
            try:
                writer.add(tokens, trained)
            except TokenError as error:
                raise TokenError(f"document {index}: {error}") from error
        manifest = _manifest(options, encoder, hashes, writer.finish())
        files.write(present, encoder.json_bytes)
        if table is not None:
            files.write(out / "token_bytes.json", table)
        if config and (options.train_bpe is not None or not (out / CONFIG).exists()):
            files.write(out / CONFIG, (json.dumps(config, indent=2) + "\n").encode())
        text = json.dumps(manifest, indent=2) + "\n"
        files.write(out / f"{name}.manifest.json", text.encode())
        for path, before, after in zip(options.inputs, hashes, _hashes(options)):
            if before != after:
                raise TokenError(f"{path}: changed while it was read")
    return manifest


def write_questions(options: argparse.Namespace) -> dict[str, int]:
    """Writes the inputs with ids, and token_bytes.json; returns the records per input."""
    if options.tokenizer is None:
        raise TokenError("--questions: needs the --tokenizer of a model")
    encoder, _ = _encoder(options)
    table = token_bytes(encoder)
    with NewFiles(options.out) as files:
        encoded, notes = encode_questions(options.inputs, encoder, options.out)
        for target, lines in encoded.items():
            files.write(target, "".join(lines).encode())
        if table is not None:
            files.write(options.out / "token_bytes.json", table)
    for note in notes:
        print(f"fp8lab.tokens: note: {note}", file=sys.stderr)
    return {target.name: len(lines) for target, lines in encoded.items()}


def _summary(options: argparse.Namespace) -> str:
    if options.questions:
        counts = write_questions(options).items()
        return "\n".join(f"{options.out / name}: {count} records" for name, count in counts)
    manifest = run(options)
    size = manifest["tokenizer"]["vocabulary"]
    if options.train_bpe is not None:
        few = f"the text has pairs for {size} ids, not {options.train_bpe}; "
        print(
            f"fp8lab.tokens: note: {few if size < options.train_bpe else ''}"
            f"the model's vocabulary is [model] vocab_size = {size}",
            file=sys.stderr,
        )
    return (
        f"{options.out}: {manifest['documents']} documents, {manifest['tokens']} tokens, "
        f"{manifest['trained_tokens']} trained on, in {len(manifest['shards'])} "
        f"shard{'s' if len(manifest['shards']) != 1 else ''}, "
        f"tokenizer {manifest['tokenizer']['hash']} with {manifest['tokenizer']['vocabulary']} ids"
    )


def _refused(message: str, status: int) -> int:
    print(f"fp8lab.tokens: {message}", file=sys.stderr)
    return status


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code. 0: written; 2: bad input; 1: the machine failed (no space or memory
    left, or standard output not writable). For 1 and 2, prints one line on standard error."""
    options = _parse(arguments)
    try:
        summary = _summary(options)
    except TokenError as error:
        return _refused(" ".join(str(error).split()), 2)
    except MemoryError:
        return _refused("out of memory", 1)
    except OSError as error:
        place = error.filename or options.out
        reason = f"{place}: {error.strerror or error}"
        return _refused(reason, 1 if error.errno in OUT_OF_SPACE else 2)
    except KeyboardInterrupt:
        return _refused("interrupted; nothing is written", 130)
    try:
        print(summary, flush=True)
    except OSError as error:
        # At exit, the interpreter would try again to write the remaining output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _refused(f"standard output: {error.strerror}; the shards are written", 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
