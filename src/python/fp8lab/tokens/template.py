"""Compiles and renders a chat template in this process, and marks the assistant's text.

Templates are untrusted code: `chat.py` runs this module in a separate process.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from fp8lab.tokens.documents import Chat, Messages
from fp8lab.tokens.shards import TokenError, need

Span = tuple[int, int]
OPEN, CLOSE = "\U0010fffe", "\U0010ffff"
"""Two private-use characters that enclose the assistant's text during rendering."""

# Filters that convert any value to text; None becomes the word None.
TEXT_FILTERS = (
    "capitalize", "center", "e", "escape", "forceescape", "indent", "lower", "replace", "safe",
    "string", "striptags", "title", "trim", "truncate", "upper", "urlencode", "urlize", "wordwrap",
)  # fmt: skip


class Rendered(NamedTuple):
    """A rendered conversation and the character ranges that are trained on."""

    text: str
    spans: list[Span]


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    names: dict[type, str] = {list: "a list", tuple: "a list", dict: "an object"}
    return names.get(type(value), f"a {type(value).__name__}")


def _environment(jinja2: Any) -> Any:
    """Returns the environment of transformers, changed to refuse output that is no text. Checks
    what the template writes, not the messages, since a template may skip null."""
    sandbox = need("jinja2.sandbox", "a chat template")

    def as_text(value: Any) -> Any:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if number or isinstance(value, (str, jinja2.Undefined)):
            return value
        raise TokenError(
            f"writes {_kind(value)} where text belongs; accepted: messages with text there, or a "
            "template that leaves it out"
        )

    class Generation(jinja2.ext.Extension):  # type: ignore[misc]
        """{% generation %} ... {% endgeneration %} renders its body and marks it as the assistant's
        text."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            call = jinja2.nodes.CallBlock(self.call_method("mark"), [], [], body)
            return call.set_lineno(line)

        def mark(self, caller: Any) -> str:
            return f"{OPEN}{caller()}{CLOSE}"

    class Environment(sandbox.ImmutableSandboxedEnvironment):  # type: ignore[name-defined,misc]
        """Checks the arguments of operators and methods that make text."""

        intercepted_binops = frozenset(["%"])

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if isinstance(left, str):
                by_name = isinstance(right, dict) and "%(" in left
                values = right.values() if by_name else right
                for value in values if by_name or isinstance(right, tuple) else [right]:
                    as_text(value)
            return super().call_binop(context, operator, left, right)

        def call(self, context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(function, "__name__", "") in ("format", "format_map"):
                named = [kwargs[key] for key in kwargs if key not in ("_loop_vars", "_block_vars")]
                for value in [*args, *named]:
                    as_text(value)
            return super().call(context, function, *args, **kwargs)

    environment = Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=as_text,
        extensions=[Generation, jinja2.ext.loopcontrols],
    )
    filters = environment.filters
    for name in TEXT_FILTERS:
        filters[name] = _checked(filters[name], as_text)
    filters["join"] = _checked(filters["join"], lambda value: [as_text(item) for item in value])
    filters["format"] = _format(filters["format"], as_text)
    filters["as_text"] = as_text
    filters["tojson"] = lambda value, indent=None: json.dumps(
        value, ensure_ascii=False, indent=indent
    )
    environment.globals["raise_exception"] = _refuse
    # Not deterministic: equal inputs would give different shards.
    del filters["random"], environment.globals["lipsum"]
    return environment


def _checked(function: Callable[..., Any], check: Callable[[Any], Any]) -> Callable[..., Any]:
    """Returns a filter that checks its value: its first argument after an optional context."""
    place = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        values = list(args)
        found = check(values[place])
        if isinstance(found, list):  # the value may be an iterator
            values[place] = found
        return function(*values, **kwargs)

    return checked


def _format(function: Callable[..., Any], check: Callable[[Any], Any]) -> Callable[..., Any]:
    """Returns the filter `format` with a check of its arguments."""

    def checked(*args: Any, **kwargs: Any) -> Any:
        for value in [*args, *kwargs.values()]:
            check(value)
        return function(*args, **kwargs)

    return checked


def _refuse(message: Any) -> None:
    raise TokenError(str(message))


class Template:
    """A compiled template. Raises TokenError if it does not compile."""

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        jinja2 = need("jinja2", "a chat template")
        need("jinja2.ext", "a chat template")
        if any(
            mark in text for text in (source, *special_tokens.values()) for mark in OPEN + CLOSE
        ):
            raise TokenError("has a character that marks the assistant's words")
        environment = _environment(jinja2)
        nodes = jinja2.nodes
        self._special_tokens = special_tokens
        try:
            tree = environment.parse(source)
            for concat in tree.find_all(nodes.Concat):  # a ~ b converts both to text
                concat.nodes = [
                    nodes.Filter(node, "as_text", [], [], None, None, lineno=node.lineno)
                    for node in concat.nodes
                ]
            tree.set_environment(environment)
            # Searches the parsed tree, since the tag can be spelled in many ways.
            self._marks = any(
                node.name == "mark" for node in tree.find_all(nodes.ExtensionAttribute)
            )
            self._template = environment.from_string(tree)
        except jinja2.TemplateError as error:
            raise TokenError(str(error)) from error

    def _render(self, chat: Chat, messages: Messages, prompt: bool) -> str:
        text = self._template.render(
            messages=messages,
            add_generation_prompt=prompt,
            tools=chat.tools,
            **self._special_tokens,
        )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TokenError("writes half of a surrogate pair") from error
        return str(text)

    def render(self, chat: Chat) -> Rendered:
        """Returns the text and the ranges that are trained on: those that the template marks with
        {% generation %}, else each assistant message after its generation prompt."""
        _require_unmarked(chat)
        rendered = self._by_marks(chat) if self._marks else self._by_prefixes(chat)
        if OPEN in rendered.text or CLOSE in rendered.text:
            raise TokenError("a mark of the assistant's words is left in the text")
        return rendered

    def prompt(self, chat: Chat) -> str:
        """Returns the text followed by the generation prompt."""
        _require_unmarked(chat)
        text = self._render(chat, chat.messages, True)
        return text.replace(OPEN, "").replace(CLOSE, "")

    def _by_prefixes(self, chat: Chat) -> Rendered:
        text = self._render(chat, chat.messages, False)
        spans: list[Span] = []
        for index, message in enumerate(chat.messages):
            if message["role"] != "assistant" or index in chat.untrained:
                continue
            before = self._render(chat, chat.messages[:index], True)
            after = self._render(chat, chat.messages[: index + 1], False)
            if not (after.startswith(before) and text.startswith(after)):
                raise TokenError(
                    f"message {index} reads otherwise once others follow, so its tokens cannot be "
                    "found; accepted: a template with {% generation %}"
                )
            spans.append((len(before), len(after)))
        return Rendered(text, spans)

    def _by_marks(self, chat: Chat) -> Rendered:
        rendered = take_marks(self._render(chat, chat.messages, False))
        if not chat.untrained:
            return rendered
        answers = [i for i, message in enumerate(chat.messages) if message["role"] == "assistant"]
        fits = len(answers) == len(rendered.spans) and all(
            str(chat.messages[i].get("content") or "").strip() in rendered.text[begin:end]
            for i, (begin, end) in zip(answers, rendered.spans)
        )
        if not fits:
            raise TokenError(
                "a message of the assistant is not to be trained on, but what the template marks "
                "is not one part for each message of the assistant"
            )
        kept = [
            span for i, span in zip(answers, rendered.spans, strict=True) if i not in chat.untrained
        ]
        return Rendered(rendered.text, kept)


def _require_unmarked(chat: Chat) -> None:
    given = json.dumps([chat.messages, chat.tools], ensure_ascii=False)
    if OPEN in given or CLOSE in given:
        raise TokenError("the messages have a character that marks the assistant's words")


def take_marks(marked: str) -> Rendered:
    """Removes the marks. Raises TokenError if there are none or they are not paired."""
    pieces: list[str] = []
    spans: list[Span] = []
    length, begin, done = 0, -1, 0
    for place, character in enumerate(marked):
        if character not in (OPEN, CLOSE):
            continue
        pieces.append(marked[done:place])
        length += place - done
        done = place + 1
        if (character == OPEN) != (begin < 0):
            raise TokenError("what the template marks as the assistant's is no row of parts")
        if character == CLOSE:
            spans.append((begin, length))
        begin = length if character == OPEN else -1
    if begin >= 0:
        raise TokenError("what the template marks as the assistant's is no row of parts")
    if not spans:
        raise TokenError("marks nothing as the assistant's")
    return Rendered("".join([*pieces, marked[done:]]), spans)
