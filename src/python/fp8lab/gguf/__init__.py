"""Converts a GGUF file to a Hugging Face folder that the program, Python and transformers load.

    python -m fp8lab.gguf MODEL.gguf FOLDER

Converts weights of the architectures llama, qwen2, qwen3 and gpt2 in F32, F16, BF16 and every block
type that the package `gguf` dequantizes, and the tokenizer with its special tokens and chat
template. The folder is written completely or not at all. src/python/README.md lists what is
refused. Needs the packages gguf and tokenizers, not the shared library.
"""

from __future__ import annotations

from fp8lab.packages import require_when_run

require_when_run("fp8lab.gguf", "numpy")

from fp8lab.gguf.folder import Summary, convert  # noqa: E402

__all__ = ["Summary", "convert"]
