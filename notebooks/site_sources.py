"""Pages of the site as MyST Markdown, and the links between them."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[1]
FENCED = re.compile(r"^(?P<indent> *)(?P<fence>```+).*?^(?P=indent)(?P=fence)[ ]*$", re.M | re.S)
# A code span, or a link or image whose text may hold one.
SPAN = re.compile(
    r"(?<!`)(?P<ticks>`+)(?!`)(?P<code>.+?)(?<!`)(?P=ticks)(?!`)"
    r"|(?P<mark>!?)\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<target>[^()\s]+)\)",
    re.S,
)
MARKDOWN = ".md"
FRONT = "notebooks/site/front.md"
SPECIAL = re.compile(r"([\\*_<>\[\]{}|$%#])")


class SiteError(Exception):
    """What keeps the site from being built, in one line."""


@dataclass(frozen=True)
class Page:
    """One page: `path` is that of its source in the repository, or of a generated text."""

    path: str  # with its suffix, .md or .ipynb
    text: str  # MyST Markdown that begins with a heading

    @property
    def name(self) -> str:
        """The name that a table of contents has for it."""
        return "index" if self.path == FRONT else self.path.rpartition(".")[0]


@dataclass(frozen=True)
class Group:
    """Pages under one entry of the front page."""

    name: str
    title: str
    about: str
    pages: tuple[Page, ...]


def repository_page(path: str) -> Page:
    """A text of the repository as it is."""
    return Page(path, (ROOT / path).read_text(encoding="utf-8"))


def plain(text: str) -> str:
    """Words as Markdown that shows them; code spans stay."""
    parts = re.split(r"(`[^`\n]+`)", text)
    return "".join(p if n % 2 else SPECIAL.sub(r"\\\1", p) for n, p in enumerate(parts))


def block(text: str, language: str = "text") -> str:
    """A code block, fenced longer than any fence inside."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.strip(chr(10))}\n{fence}\n"


def outside_fences(text: str, change: Callable[[str], str]) -> str:
    """Applies a change to what is in no fenced block."""
    parts, end = [], 0
    for found in FENCED.finditer(text):
        parts += [change(text[end : found.start()]), found.group()]
        end = found.end()
    return "".join([*parts, change(text[end:])])


class Linker:
    """Turns references between texts into links: Markdown links, and paths in code spans."""

    def __init__(self, pages: list[Page]) -> None:
        self.names = {page.path: page.name for page in pages}
        self.images: dict[str, Path] = {}  # path in the site: file

    def linked(self, page: Page) -> str:
        """The text of a page with its links. Throws SiteError for a link to nothing."""
        return outside_fences(page.text, lambda text: self._change(page, text))

    def _to(self, page: Page, path: str) -> str:
        folder = posixpath.dirname(self.names[page.path]) or "."
        return posixpath.relpath(f"{self.names[path]}.md", folder)

    def _change(self, page: Page, text: str) -> str:
        def replace(found: re.Match[str]) -> str:
            if found["target"]:
                return self._link(page, found)
            line = text[text.rfind("\n", 0, found.start()) + 1 : found.start()]
            path = self._path_of(page, found["code"])
            if line.startswith("#") or path is None or path == page.path:
                return found.group()
            return f"[{found.group()}]({self._to(page, path)})"

        return SPAN.sub(replace, text)

    def _path_of(self, page: Page, text: str) -> str | None:
        beside = posixpath.normpath(posixpath.join(posixpath.dirname(page.path), text))
        return next((path for path in (text, beside) if path in self.names), None)

    def _link(self, page: Page, found: re.Match[str]) -> str:
        target = found["target"]
        if urlsplit(target).scheme or target.startswith("#"):
            return found.group()
        path, _, fragment = unquote(target).partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page.path), path))
        if found["mark"]:
            if not (ROOT / path).is_file():
                raise SiteError(f"{page.path}: no such image: {target}")
            self.images[path] = ROOT / path
            return found.group()
        for known in (path, f"{path}/README.md"):
            if known in self.names:
                to = self._to(page, known) + (f"#{fragment}" if fragment else "")
                return f"[{found['text']}]({to})"
        if not (ROOT / path).exists():
            raise SiteError(f"{page.path}: no such file: {target}")
        return f"{found['text']} (`{path}`)"  # a file that is no page
