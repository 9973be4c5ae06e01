"""A GGUF file as a Hugging Face folder that the program, Python and transformers load.

    python -m fp8lab.gguf MODEL.gguf FOLDER

Weights of the architectures llama, qwen2, qwen3 and gpt2, in F32, F16, BF16 and every block type
that the package `gguf` dequantizes; the tokenizer with its special tokens and chat template. The
folder is there whole or not at all. src/python/README.md has what is refused. Needs the packages
gguf and tokenizers; not the compiled module.
"""

from __future__ import annotations

from fp8lab.gguf.folder import Summary, convert

__all__ = ["Summary", "convert"]
