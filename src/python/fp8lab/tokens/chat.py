"""Renders chat templates (`chat_template` of tokenizer_config.json) as transformers does.

A template is untrusted code, so it runs in jinja2's immutable sandbox, in a separate process with
limits of time and memory. `strftime_now` is not available, since the same input must give the same
bytes; templates then use a fixed date.
"""

from __future__ import annotations

import multiprocessing
import resource
import signal
import weakref
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fp8lab.errors import where_looked
from fp8lab.tokens.documents import Chat
from fp8lab.tokens.json_lines import parse_json
from fp8lab.tokens.shards import TokenError, need
from fp8lab.tokens.template import Rendered, Template

SECONDS = 10.0  # limit for one conversation; ordinary templates take milliseconds
MEMORY = 1 << 30  # bytes that rendering may add

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ message.content }}<|im_end|>{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATML_TOKENS = ("<|im_start|>", "<|im_end|>")


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _complaint(error: BaseException) -> str:
    """Returns one line for any exception that a template can raise."""
    if isinstance(error, MemoryError):
        return f"needs more than {MEMORY >> 20} MiB"
    if isinstance(error, RecursionError):
        return "nests or calls itself too deeply"
    text = " ".join(str(error).split())[:300]
    known = isinstance(error, TokenError) or type(error).__module__.startswith("jinja2")
    return text if known and text else f"{type(error).__name__}: {text}"


def _serve(
    connection: Connection, other_end: Connection, source: str, special_tokens: dict[str, str]
) -> None:
    """Compiles the template and sends whether that succeeded. Then renders each received pair
    (chat, with generation prompt) until the connection closes."""
    other_end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _limit_memory()
        template = Template(source, special_tokens)
        connection.send("")
    except Exception as error:
        connection.send(_complaint(error))
        return
    while True:
        try:
            chat, asks = connection.recv()
        except EOFError:
            return
        try:
            reply: Rendered | str = (
                Rendered(template.prompt(chat), []) if asks else template.render(chat)
            )
        except Exception as error:
            reply = _complaint(error)
        connection.send(reply)


class ChatTemplate:
    """A compiled template. Raises TokenError if the template does not compile, refuses a
    conversation or takes longer than `seconds`."""

    def __init__(
        self, source: str, special_tokens: dict[str, str], seconds: float = SECONDS
    ) -> None:
        need("jinja2", "a chat template")
        self.source = source
        self._seconds = seconds
        context = multiprocessing.get_context("fork")
        self._connection, other_end = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(other_end, self._connection, source, special_tokens), daemon=True
        )
        self._process.start()
        other_end.close()
        self._stop = weakref.finalize(self, _end, self._process, self._connection)
        complaint = self._answer("chat template")
        if complaint:
            raise TokenError(f"chat template: {complaint}")

    def _answer(self, where: str) -> Any:
        try:
            if self._connection.poll(self._seconds):
                return self._connection.recv()
        except (EOFError, OSError) as error:
            self._stop()
            raise TokenError(f"{where}: its process ended without an answer") from error
        self._stop()
        raise TokenError(f"{where}: not done after {self._seconds:g} s")

    def render(self, chat: Chat) -> Rendered:
        """Returns the text and the character ranges that are trained on."""
        return self._rendered(chat, asks=False)

    def prompt(self, chat: Chat) -> str:
        """Returns the text with the generation prompt, which the assistant's answer follows."""
        return self._rendered(chat, asks=True).text

    def _rendered(self, chat: Chat, asks: bool) -> Rendered:
        where = f"{chat.where}: chat template"
        try:
            self._connection.send((chat, asks))
        except OSError as error:
            raise TokenError(f"{where}: its process has ended") from error
        answer = self._answer(where)
        if isinstance(answer, str):
            raise TokenError(f"{where}: {answer}")
        return Rendered(*answer)


def _end(process: Any, connection: Connection) -> None:
    connection.close()
    process.kill()
    process.join()


def token_text(value: Any, where: str) -> str | None:
    """Returns the text of a special token, which is a string, an object with `content`, or null."""
    text = value.get("content") if isinstance(value, dict) else value
    if text is not None and not isinstance(text, str):
        raise TokenError(f'{where}: expected a string or an object with "content"')
    return text


def _named_template(entries: list[Any], file: Path) -> str | None:
    """Returns the template named `default`."""
    for entry in entries:
        if not isinstance(entry, dict) or not {"name", "template"} <= entry.keys():
            raise TokenError(f'{file}: chat_template: every entry needs a "name" and a "template"')
    found: str | None = {str(entry["name"]): entry["template"] for entry in entries}.get("default")
    return found


def load_chat_template(folder: Path, chosen: Path | None = None) -> ChatTemplate | None:
    """Returns the template of a model's folder: the file `chosen`, chat_template.jinja, or the key
    of tokenizer_config.json, in this order. None if the folder has no template."""
    file = folder / "tokenizer_config.json"
    config = load_tokenizer_config(folder)
    special = {
        key: token_text(value, f"{file}: {key}") or ""
        for key, value in config.items()
        if key.endswith("_token") and value is not None and not isinstance(value, bool)
    }
    path = chosen or folder / "chat_template.jinja"
    if chosen is not None or path.exists():
        template: Any = read_text(path)
    else:
        template = config.get("chat_template")
    if isinstance(template, list):  # several by name
        template = _named_template(template, file)
    if template is not None and not isinstance(template, str):
        raise TokenError(f"{file}: chat_template: expected a string or a list")
    return None if template is None else ChatTemplate(template, special)


def read_text(path: Path) -> str:
    """Returns the text of a UTF-8 file. Raises TokenError that names the file."""
    try:
        if path.exists() and not path.is_file():
            raise TokenError(f"{path}: is no regular file")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TokenError(f"{path}: not UTF-8 at byte {error.start}") from error
    except OSError as error:
        raise TokenError(f"{path}: {error.strerror}{where_looked(path)}") from error


def load_tokenizer_config(folder: Path) -> dict[str, Any]:
    """Returns tokenizer_config.json; empty if absent. Raises TokenError if it is malformed."""
    file = folder / "tokenizer_config.json"
    if not file.exists():
        return {}
    config = parse_json(read_text(file), str(file))
    if not isinstance(config, dict):
        raise TokenError(f"{file}: expected an object")
    return config
