"""Tokenizers of the `tokenizers` library: loading, training, encoding, and the bytes of each id."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fp8lab.errors import where_looked
from fp8lab.tokens.chat import (
    ChatTemplate,
    load_chat_template,
    load_tokenizer_config,
    token_text,
)
from fp8lab.tokens.documents import Chat, Passage, Record
from fp8lab.tokens.shards import Tokenization, TokenError, hash_pieces, need
from fp8lab.tokens.template import Rendered

BEGIN, END = "<|begin|>", "<|end|>"
BATCH = 512
LARGEST_VOCABULARY = 1 << 24
"""Exclusive limit of token ids, sixty times the largest published ones."""
NO_TEMPLATE = (
    "messages need a chat template; accepted: --tokenizer FOLDER with tokenizer_config.json, or "
    "--chat-template FILE"
)
Encoded = tuple[list[int], list[bool]]
READS_SPECIAL = re.compile(r"<\|[^|<>\s]{1,40}\|>")
"""Matches the usual spelling of special tokens in published tokenizers."""
Place = Callable[[str, int], str]
"""Returns the place of a character from the text and the character's index."""


def _bytes_of_unicode() -> dict[str, int]:
    """Returns the inverse of GPT-2's printable alphabet for bytes (Radford et al. 2019,
    encoder.py)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + i): byte for i, byte in enumerate(others)})
    return alphabet


_BYTES = _bytes_of_unicode()


def train_bpe(texts: Iterable[str], vocabulary: int, specials: Sequence[str] = ()) -> bytes:
    """Trains a byte-level BPE of at most `vocabulary` ids; returns tokenizer.json. The first ids
    are BEGIN, END and `specials`. Every digit is a token, as in Qwen2, so that a number has one
    spelling. The same texts give the same bytes."""
    tokens = [BEGIN, END, *specials]
    if not 256 + len(tokens) <= vocabulary <= LARGEST_VOCABULARY:
        raise TokenError(
            f"--train-bpe {vocabulary}; accepted: at least {256 + len(tokens)}, for bytes and "
            f"specials, and at most {LARGEST_VOCABULARY}"
        )
    for token in tokens:
        if not token or tokens.count(token) > 1:
            raise TokenError(f"--special '{token}'; accepted: text, each once")
        try:
            token.encode()
        except UnicodeEncodeError as error:
            raise TokenError(f"--special {ascii(token)}: not UTF-8") from error
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    library = need("tokenizers", "training a BPE")
    pre = library.pre_tokenizers
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = pre.Sequence(
        [pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=tokens,
        initial_alphabet=sorted(pre.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return (str(tokenizer.to_str(pretty=False)) + "\n").encode()


class Encoder:
    """Encodes records to ids and masks. `json_bytes` is the text of tokenizer.json.

    `begin` and `end` are the tokens around every passage, None for no token; chats get neither,
    since their template determines the whole text. `config` is tokenizer_config.json. Raises
    TokenError if a token does not exist.
    """

    def __init__(
        self,
        json_bytes: bytes,
        begin: str | None,
        end: str | None,
        template: ChatTemplate | None = None,
        source: str = "tokenizer.json",
        config: dict[str, Any] | None = None,
    ) -> None:
        library = need("tokenizers", "encoding")
        try:
            self._tokenizer = library.Tokenizer.from_str(json_bytes.decode())
        except Exception as error:  # the library raises bare Exception
            reason = " ".join(str(error).split())[:300]
            raise TokenError(f"{source}: {reason}") from error
        self._template = template
        self.config = config or {}
        """The tokenizer_config.json to write next to `json_bytes`."""
        self._begin = self._special(begin)
        self._end = self._special(end)
        self.json_bytes = json_bytes
        document = json.loads(json_bytes)
        ids = self._tokenizer.get_vocab(with_added_tokens=True).values()
        if not ids or max(ids) >= LARGEST_VOCABULARY:
            raise TokenError(
                f"{source}: its largest token id is {max(ids, default='none')}; accepted: 0 to "
                f"{LARGEST_VOCABULARY - 1}"
            )
        for token in document.get("added_tokens") or []:
            found = self._tokenizer.token_to_id(token["content"])
            if found != token["id"]:
                raise TokenError(
                    f"{source}: token '{token['content']}' gets the id {found}, but the file says "
                    f"{token['id']}"
                )
        self.tokenization = Tokenization(
            vocabulary=1 + max(ids),
            begin=-1 if self._begin is None else self._begin,
            end=-1 if self._end is None else self._end,
            tokenizer_hash=hash_pieces([json_bytes]),
        )
        added = [str(token["content"]) for token in document.get("added_tokens") or []]
        self._added = {int(token["id"]) for token in document.get("added_tokens") or []}
        special = [t["content"] for t in document.get("added_tokens") or [] if t.get("special")]
        named = [token_text(v, k) for k, v in self.config.items() if _names_token(k, v)]
        self._special_tokens = sorted({str(token) for token in [*special, *named] if token})
        self._chat_begin: int | None = None
        """Id of the special token at the start of a chat, -1: none; None: not yet known."""
        # The library numbers added tokens that the model lacks from the size of its vocabulary on.
        # The token for unknown text enlarges the vocabulary, so its id is larger than all of them.
        self._unknown = 2 + max(ids) + len(added)
        marking = _with_unknown(document, self._unknown)
        self._coder = self._tokenizer
        self._renamed: dict[int, int] = {}
        """Maps ids of the coder to different ids of the tokenizer."""
        if marking:
            self._coder = library.Tokenizer.from_str(json.dumps(marking))
            pairs = ((self._coder.token_to_id(t), self._tokenizer.token_to_id(t)) for t in added)
            self._renamed = {ours: theirs for ours, theirs in pairs if ours != theirs}
        self._coder.no_truncation()
        self._coder.no_padding()

    def _special(self, token: str | None) -> int | None:
        if token is None:
            return None
        try:
            found = self._tokenizer.token_to_id(token)
        except UnicodeEncodeError as error:
            raise TokenError(f"token {ascii(token)}: not UTF-8") from error
        if found is None:
            raise TokenError(f"the tokenizer has no token '{token}'")
        return int(found)

    def encode(self, records: Iterable[Record]) -> Iterator[Encoded]:
        """Yields the ids of each record and which of them are targets."""
        batch: list[Record] = []
        for record in records:
            batch.append(record)
            if len(batch) == BATCH:
                yield from self._encode_batch(batch)
                batch = []
        yield from self._encode_batch(batch)

    def _encode(self, texts: Sequence[str], places: Sequence[Place], specials: bool) -> list[Any]:
        """Returns the encodings of `texts`. Raises TokenError if the tokenizer has no token for a
        character; the message has the character's place."""
        self._coder.encode_special_tokens = not specials
        try:
            encodings = self._coder.encode_batch(list(texts), add_special_tokens=False)
        except Exception as error:  # the library raises bare Exception without the text
            reason = " ".join(str(error).split())[:300]
            if len(texts) > 1:
                for text, place in zip(texts, places, strict=True):
                    self._encode([text], [place], specials)
            raise TokenError(f"{places[0](texts[0], 0)}: the tokenizer fails: {reason}") from error
        for text, place, encoding in zip(texts, places, encodings, strict=True):
            if self._unknown not in encoding.ids:
                continue
            index, _ = encoding.offsets[encoding.ids.index(self._unknown)]
            character = text[index]
            said = f"'{character}'" if character.isprintable() else ascii(character)
            raise TokenError(
                f"{place(text, index)}: the tokenizer has no token for {said} "
                f"(U+{ord(character):04X}), nor one for what is unknown; accepted: a tokenizer "
                "that has, or text without it"
            )
        return list(encodings)

    def _ids(self, texts: Sequence[str], places: Sequence[Place]) -> Iterator[list[int]]:
        """Yields the ids of texts in which special tokens are spelled out, not recognised."""
        return (self._ids_of(encoding) for encoding in self._encode(texts, places, specials=False))

    def _ids_of(self, encoding: Any) -> list[int]:
        """Converts ids of the coder to ids of the tokenizer."""
        if not self._renamed:
            return list(encoding.ids)
        return [self._renamed.get(token, token) for token in encoding.ids]

    def text(self, text: str, where: str) -> list[int]:
        """Returns the ids of a text without begin and end tokens."""
        return next(self._ids([text], [lambda _, __: where]))

    def prompt(self, text: str, where: str) -> tuple[list[int], list[str]]:
        """Returns the ids of a user's prompt, and notes. Special tokens are recognised. Adds the
        begin token of a document, unless the prompt starts with it or with the special token that
        starts chats of the template."""
        ids, notes = self._recognised(text, where)
        if self._begin is None or ids[:1] == [self._begin]:
            return ids, notes
        is_chat = bool(ids) and ids[0] in self._added and ids[0] == self._first_of_chats()
        return (ids if is_chat else [self._begin, *ids]), notes

    def question(self, chat: Chat) -> tuple[list[int], list[str]]:
        """Returns the ids of a chat with the generation prompt, and notes."""
        if self._template is None:
            raise TokenError(f"{chat.where}: {NO_TEMPLATE}")
        return self._recognised(self._template.prompt(chat), chat.where)

    def _recognised(self, text: str, where: str) -> tuple[list[int], list[str]]:
        encoding = self._encode([text], [lambda _, __: where], specials=True)[0]
        ids = self._ids_of(encoding)
        rest = list(text)  # characters outside added tokens
        for token, (first, last) in zip(ids, encoding.offsets, strict=True):
            if token in self._added:
                rest[first:last] = "\0" * (last - first)
        left = "".join(rest)
        found = {token for token in self._special_tokens if token in left}
        found.update(READS_SPECIAL.findall(left))
        notes = [
            f"{where}: {ascii(token)} reads like a special token, but is "
            + ("not recognised there" if token in self._special_tokens else "none of the tokenizer")
            + ": it is spelled out"
            for token in sorted(found)
        ]
        return ids, notes

    def _first_of_chats(self) -> int:
        if self._chat_begin is None:
            self._chat_begin = -1
            if self._template is not None:
                with suppress(TokenError):  # the template may refuse a single question
                    ids, _ = self.question(Chat([{"role": "user", "content": "a"}], ""))
                    self._chat_begin = ids[0] if ids else -1
        return self._chat_begin

    def _encode_batch(self, batch: Sequence[Record]) -> Iterator[Encoded]:
        passages = [record for record in batch if isinstance(record, Passage)]
        places = [passage.place for passage in passages]
        prompts = self._ids([passage.prompt for passage in passages], places)
        responses = self._ids([passage.response for passage in passages], places)
        pairs = zip(prompts, responses, strict=True)
        for record in batch:
            if isinstance(record, Passage):
                yield self._join(*next(pairs))
            else:
                yield self._encode_chat(record)

    def _join(self, prompt: list[int], response: list[int]) -> Encoded:
        """Returns [begin] prompt response [end], masked up to the end of the prompt."""
        masked = ([] if self._begin is None else [self._begin]) + prompt
        trained = response + ([] if self._end is None else [self._end])
        return masked + trained, [False] * len(masked) + [True] * len(trained)

    def _encode_chat(self, chat: Chat) -> Encoded:
        if self._template is None:
            raise TokenError(f"{chat.where}: {NO_TEMPLATE}")
        rendered = self._template.render(chat)
        encoding = self._encode([rendered.text], [lambda _, __: chat.where], specials=True)[0]
        return self._ids_of(encoding), assistant_mask(rendered, encoding.offsets)


def _names_token(key: str, value: Any) -> bool:
    """Returns true if a key of tokenizer_config.json is a special token's, such as bos_token."""
    return key.endswith("_token") and not isinstance(value, bool)


def _with_unknown(document: dict[str, Any], unknown: int) -> dict[str, Any] | None:
    """Returns a tokenizer.json whose BPE encodes as `unknown` the characters that `document` would
    silently drop. None if `document` drops nothing: it has an unknown token, or its model
    raises."""
    model = document["model"]
    if model.get("type", "BPE") != "BPE" or "merges" not in model:
        return None
    if model.get("unk_token") is not None:
        return None
    name = "\U0010ffff unknown"  # never a word: some models look up whole words before merging
    taken = set(model["vocab"]) | {t["content"] for t in document.get("added_tokens") or []}
    while name in taken:
        name += "_"
    marked = {**model, "unk_token": name, "vocab": {**model["vocab"], name: unknown}}
    return {**document, "model": {**marked, "fuse_unk": False}}


def assistant_mask(rendered: Rendered, offsets: Sequence[tuple[int, int]]) -> list[bool]:
    """Returns for each token whether its first character is the assistant's."""
    mask = []
    for begin, _ in offsets:
        mask.append(any(first <= begin < last for first, last in rendered.spans))
    return mask


def _spelled_in_bytes(token: str) -> bytes | None:
    """Returns the bytes of a byte-level BPE token; None if a character stands for no byte."""
    try:
        return bytes(_BYTES[character] for character in token)
    except KeyError:
        return None


def _spelled_in_pieces(token: str) -> bytes:
    """Returns the bytes of a SentencePiece BPE token: U+2581 is a space, <0x0A> a byte."""
    if re.fullmatch("<0x[0-9A-F]{2}>", token):
        return bytes([int(token[3:5], 16)])
    return token.replace("\u2581", " ").encode()


def _spelling(decoder: Any) -> Callable[[str], bytes | None] | None:
    """Returns the function from a decoder's tokens to bytes; None if a single id has no bytes."""
    steps = (decoder or {}).get("decoders", [decoder or {}])
    kinds = {step.get("type") for step in steps}
    if "ByteLevel" in kinds:
        return _spelled_in_bytes
    space = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    if "ByteFallback" in kinds and (space in steps or "Metaspace" in kinds):
        return _spelled_in_pieces
    return None


def token_bytes(encoder: Encoder) -> bytes | None:
    """Returns token_bytes.json: the bytes of each id in hexadecimal, empty for special tokens and
    unused ids, and the spellings of special tokens. None if a single id has no bytes: if the
    tokenizer is neither byte-level nor a SentencePiece BPE with byte fallback."""
    document = json.loads(encoder.json_bytes)
    spelled = _spelling(document.get("decoder"))
    if spelled is None or not isinstance(document["model"].get("vocab"), dict):
        return None  # Unigram: a list, also without bytes
    added = {token["id"]: token for token in document.get("added_tokens", [])}
    texts = [""] * encoder.tokenization.vocabulary
    for token, index in document["model"]["vocab"].items():
        if index in added:
            continue
        said = spelled(token)
        if said is None:
            return None
        texts[index] = said.hex()
    for index, token in added.items():
        texts[index] = "" if token["special"] else token["content"].encode().hex()
    table = {
        "schema": "fp8lab-token-bytes-1",
        "tokenizer_hash": f"{encoder.tokenization.tokenizer_hash:016x}",
        "begin": encoder.tokenization.begin,
        "end": encoder.tokenization.end,
        "special": {str(i): t["content"] for i, t in sorted(added.items()) if t["special"]},
        "tokens": texts,
    }
    return (json.dumps(table, separators=(",", ":")) + "\n").encode()


def load_encoder(
    path: Path,
    begin: str | None,
    end: str | None,
    template: Path | None = None,
    no_begin: bool = False,
) -> Encoder:
    """Loads a tokenizer.json, or a model's folder. The folder's tokenizer_config.json supplies the
    begin token, the end token and the chat template that are not given as arguments. There is no
    begin token if `no_begin`, or if `begin` is not given and `add_bos_token` is false."""
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        if file.exists() and not file.is_file():
            raise TokenError(f"{file}: is no regular file")
        json_bytes = file.read_bytes()
    except OSError as error:
        raise TokenError(f"{file}: {error.strerror}{where_looked(file)}") from error
    config = load_tokenizer_config(file.parent)
    place = file.parent / "tokenizer_config.json"
    adds = config.get("add_bos_token")
    if adds is not None and not isinstance(adds, bool):
        raise TokenError(f"{place}: add_bos_token: expected true or false")

    def token(key: str, given: str | None) -> str | None:
        if given is not None:
            return given
        return token_text(config.get(key), f"{place}: {key}")

    first, last = token("bos_token", begin), token("eos_token", end)
    if no_begin or (begin is None and adds is False):
        first = None
    chats = load_chat_template(file.parent, template)
    if begin is not None:
        config |= {"bos_token": begin, "add_bos_token": True}
    if no_begin:
        config["add_bos_token"] = False
    if end is not None:
        config["eos_token"] = end
    if chats is not None:
        config["chat_template"] = chats.source
    return Encoder(json_bytes, first, last, chats, str(file), config)
