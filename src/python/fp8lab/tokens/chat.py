"""Chat templates: `chat_template` of tokenizer_config.json, rendered as transformers does.

The template is code of others, so it runs in jinja2's immutable sandbox. `strftime_now` is not
offered: the same input must give the same bytes, and templates have a fixed date to fall back on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from fp8lab.tokens.documents import Chat, Messages
from fp8lab.tokens.shards import TokenError, need

Span = tuple[int, int]


class Rendered(NamedTuple):
    """A conversation as text, and the character ranges that are the assistant's."""

    text: str
    spans: list[Span]


def _token_text(value: Any) -> str:
    """A special token is a string or an object with `content`."""
    return value.get("content", "") if isinstance(value, dict) else str(value)


def _tracker(jinja2: Any) -> Any:
    """An extension for {% generation %} ... {% endgeneration %}, which marks what the assistant
    says and renders to its body."""

    class Generation(jinja2.ext.Extension):  # type: ignore[misc]
        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            call = jinja2.nodes.CallBlock(self.call_method("mark"), [], [], body)
            return call.set_lineno(line)

        def mark(self, caller: Any) -> str:
            # Two private-use characters stand around the body until the whole text is known.
            return f"{OPEN}{caller()}{CLOSE}"

    return Generation


OPEN, CLOSE = "\U0010fffe", "\U0010ffff"


class ChatTemplate:
    """A compiled template. Raises TokenError when it does not compile."""

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        jinja2 = need("jinja2", "a chat template")
        need("jinja2.ext", "a chat template")
        sandbox = need("jinja2.sandbox", "a chat template")
        environment = sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_tracker(jinja2), jinja2.ext.loopcontrols],
        )
        environment.filters["tojson"] = lambda value, indent=None: json.dumps(
            value, ensure_ascii=False, indent=indent
        )
        environment.globals["raise_exception"] = self._refuse
        self._error = jinja2.TemplateError
        self._special_tokens = special_tokens
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise TokenError(f"chat template: {error}") from error
        self._marks = "{% generation" in source.replace("{%-", "{%")

    @staticmethod
    def _refuse(message: str) -> None:
        raise TokenError(f"chat template: {message}")

    def _render(self, messages: Messages, prompt: bool, where: str) -> str:
        try:
            return str(
                self._template.render(
                    messages=messages, add_generation_prompt=prompt, **self._special_tokens
                )
            )
        except TokenError as error:
            raise TokenError(f"{where}: {error}") from error
        except (self._error, TypeError, ValueError, KeyError) as error:
            raise TokenError(f"{where}: chat template: {error}") from error

    def render(self, chat: Chat) -> Rendered:
        """Text and the assistant's ranges: what the template marks with {% generation %}; without
        marks, what follows the generation prompt up to the end of each assistant message."""
        if any(mark in json.dumps(chat.messages, ensure_ascii=False) for mark in (OPEN, CLOSE)):
            raise TokenError(f"{chat.where}: has a character that marks the assistant's words")
        if self._marks:
            return _take_marks(self._render(chat.messages, False, chat.where), chat.where)
        return self._by_prefixes(chat)

    def _by_prefixes(self, chat: Chat) -> Rendered:
        text = self._render(chat.messages, False, chat.where)
        spans: list[Span] = []
        for index, message in enumerate(chat.messages):
            if message["role"] != "assistant":
                continue
            before = self._render(chat.messages[:index], True, chat.where)
            after = self._render(chat.messages[: index + 1], False, chat.where)
            if not (after.startswith(before) and text.startswith(after)):
                raise TokenError(
                    f"{chat.where}: message {index} reads otherwise once others follow, so its "
                    "tokens cannot be found; accepted: a template with {% generation %}"
                )
            spans.append((len(before), len(after)))
        return Rendered(text, spans)


def _take_marks(marked: str, where: str) -> Rendered:
    text, spans = "", []
    for index, part in enumerate(marked.replace(CLOSE, OPEN).split(OPEN)):
        if index % 2 == 1:
            spans.append((len(text), len(text) + len(part)))
        text += part
    if not spans:
        raise TokenError(f"{where}: the template marks nothing as the assistant's")
    return Rendered(text, spans)


def load_chat_template(folder: Path) -> ChatTemplate | None:
    """The template of a model's folder: chat_template.jinja, else the key of
    tokenizer_config.json. None when it has none."""
    config = load_tokenizer_config(folder)
    special = {
        key: _token_text(value)
        for key, value in config.items()
        if key.endswith("_token") and value is not None and not isinstance(value, bool)
    }
    file = folder / "chat_template.jinja"
    template = file.read_text(encoding="utf-8") if file.exists() else config.get("chat_template")
    if isinstance(template, list):  # several by name
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return None if template is None else ChatTemplate(str(template), special)


def load_tokenizer_config(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json; empty when there is none. Raises TokenError when it is malformed."""
    file = folder / "tokenizer_config.json"
    if not file.exists():
        return {}
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TokenError(f"{file}: not valid JSON") from error
    if not isinstance(config, dict):
        raise TokenError(f"{file}: expected an object")
    return config
