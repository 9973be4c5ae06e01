"""Makes token shards (`kind = "tokens"` of a run file) from text, JSON lines, chats and Parquet.

    python -m fp8lab.tokens train.jsonl --out shards --train-bpe 2048
    python -m fp8lab.tokens chats.jsonl --out shards --train-bpe 2048   # messages, as ChatML
    python -m fp8lab.tokens chats.jsonl --out shards --tokenizer FOLDER_OF_THE_MODEL

The same input gives the same bytes. src/data/README.md describes the records, the turns of a chat
that are trained on, and the file layouts. Needs NumPy, xxhash and tokenizers, jinja2 for chat
templates and pyarrow for Parquet, not the shared library.
"""

from __future__ import annotations

from fp8lab.packages import require_when_run

require_when_run("fp8lab.tokens", "numpy")

from fp8lab.tokens.shards import Shard, ShardWriter, TokenError, read_shard  # noqa: E402

__all__ = ["Shard", "ShardWriter", "TokenError", "read_shard"]
