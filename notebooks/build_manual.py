#!/usr/bin/env python3
"""Builds the manual: one HTML file that needs no network.

    python3 notebooks/build_manual.py manual.html

It is made from README.md, the README files of the folders, the specification, the pages of
experiments/results, the notebooks, executed on the runs of first_study.toml, and the help of
every command of the program.
"""

from __future__ import annotations

import argparse
import base64
import dataclasses
import html
import json
import mimetypes
import os
import posixpath
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

try:
    import mistune
    import nbformat
    from nbclient.client import NotebookClient
except ModuleNotFoundError as missing:
    sys.exit(
        f"build_manual.py: {sys.executable} has no module '{missing.name}'; accepted: a Python "
        "with mistune, nbclient and ipykernel (./quickstart.sh test installs them for "
        "/usr/bin/python3)"
    )

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "emulation", "kernels", "experiments", "analysis", "tests", "notebooks")
HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
TIME_LIMIT = 300  # seconds per cell
TEMPLATE = Path(__file__).with_name("manual_template.html")

render_markdown = mistune.create_markdown(escape=False, plugins=["table", "strikethrough"])


class ManualError(Exception):
    """What keeps the manual from being built, in one line."""


@dataclass(frozen=True)
class Section:
    """What one heading stands over: an entry of the search's index."""

    anchor: str
    level: int
    title: str
    text: str


@dataclass(frozen=True)
class Page:
    """One text of the manual."""

    group: str
    path: str  # in the repository; of a help text, the command line
    body: str  # HTML
    sections: tuple[Section, ...] = ()

    @property
    def key(self) -> str:
        """The anchor of the page."""
        name = self.path.removesuffix("/README.md").removesuffix(".md").removesuffix(".ipynb")
        return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def slug(title: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


class Linker(HTMLParser):
    """Gives the headings of a page anchors, turns references to other texts into links inside the
    manual, embeds images and collects the text under each heading."""

    def __init__(self, page: Page, pages: dict[str, str]) -> None:
        super().__init__(convert_charrefs=False)
        self.page = page
        self.pages = pages  # path: key
        self.out: list[str] = []
        self.sections: list[Section] = []
        self.words: list[str] = []
        self.held: list[str] | None = None  # inside a heading or a code span
        self.held_from = 0
        self.open: list[str] = []
        self.closing: list[str] = []  # what ends each open link
        self.used: dict[str, int] = {}

    def run(self) -> Page:
        """The page with its links and sections."""
        self.feed(self.page.body)
        self.close()
        self._end_section()
        return dataclasses.replace(self.page, body="".join(self.out), sections=tuple(self.sections))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "a" and values.get("href"):
            self._start_link(str(values["href"]))
        elif tag == "img":
            source = embedded(self._resolve(str(values.get("src"))))
            self.out.append(f'<img alt="{html.escape(values.get("alt") or "")}" src="{source}">')
        elif tag in HEADINGS:
            self._end_section()
            self.held, self.held_from = [], len(self.out)
        elif tag == "table":
            self.out.append('<div class="scroll"><table>')
        else:
            if tag == "code" and not {"pre", "a", *HEADINGS} & set(self.open):
                self.held, self.held_from = [], len(self.out)
            self.out.append(str(self.get_starttag_text()))
        if tag not in ("img", "br", "hr"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in ("img", "br", "hr"):
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            del self.open[len(self.open) - 1 - self.open[::-1].index(tag)]
        if tag in HEADINGS:
            self._end_heading(tag)
        elif tag == "a" and self.closing:
            self.out.append(self.closing.pop())
        elif tag == "table":
            self.out.append("</table></div>")
        else:
            self.out.append(f"</{tag}>")
            if tag == "code" and self.held is not None and "h" not in self._inside():
                self._end_code("".join(self.held))
        if tag in ("p", "li", "td", "th", "tr", "pre", "div"):
            self.words.append(" ")

    def handle_data(self, data: str) -> None:
        self.out.append(data)
        self._text(data)

    def handle_entityref(self, name: str) -> None:
        self.out.append(f"&{name};")
        self._text(html.unescape(f"&{name};"))

    def handle_charref(self, name: str) -> None:
        self.out.append(f"&#{name};")
        self._text(html.unescape(f"&#{name};"))

    def _inside(self) -> str:
        return "h" if set(HEADINGS) & set(self.open) else ""

    def _text(self, text: str) -> None:
        self.words.append(text)
        if self.held is not None:
            self.held.append(text)

    def _end_section(self) -> None:
        if self.sections:
            text = " ".join("".join(self.words).split())
            self.sections[-1] = dataclasses.replace(self.sections[-1], text=text)
        self.words = []

    def _end_heading(self, tag: str) -> None:
        title = " ".join("".join(self.held or []).split())
        inner = "".join(self.out[self.held_from :])
        del self.out[self.held_from :]
        anchor = self.page.key
        if self.sections:
            name = slug(title)
            again = self.used[name] = self.used.get(name, -1) + 1
            anchor = f"{self.page.key}--{name}" + (f"-{again}" if again else "")
        self.sections.append(Section(anchor, int(tag[1]), title, ""))
        self.out.append(f'<{tag} id="{anchor}">{inner}</{tag}>')
        self.held, self.words = None, []

    def _end_code(self, text: str) -> None:
        """The texts name each other by their paths, in code spans."""
        self.held = None
        folder = posixpath.dirname(self.page.path)
        for path in (text, posixpath.normpath(posixpath.join(folder, text))):
            key = self.pages.get(path)
            if key and key != self.page.key:
                self.out.insert(self.held_from, f'<a href="#{key}">')
                self.out.append("</a>")
                return

    def _start_link(self, target: str) -> None:
        if urlsplit(target).scheme:
            self.out.append(f'<a href="{html.escape(target)}" rel="noreferrer">')
            self.closing.append("</a>")
            return
        path, _, fragment = target.partition("#")
        resolved = self._resolve(path) if path else self.page.path
        key = self.pages.get(resolved) or self.pages.get(f"{resolved}/README.md")
        if key:
            self.out.append(f'<a href="#{key}--{fragment}">' if fragment else f'<a href="#{key}">')
            self.closing.append("</a>")
        elif (ROOT / resolved).exists():  # a file that is no text of the manual
            self.out.append(f'<span class="file" title="{html.escape(resolved)}">')
            self.closing.append("</span>")
        else:
            raise ManualError(f"{self.page.path}: no such file: {target}")

    def _resolve(self, target: str) -> str:
        if target.startswith("data:"):
            return target
        folder = posixpath.dirname(self.page.path)
        return posixpath.normpath(posixpath.join(folder, unquote(target)))


def embedded(path: str) -> str:
    """An image as a data URL."""
    if path.startswith("data:"):
        return path
    file = ROOT / path
    if not file.is_file():
        raise ManualError(f"no such image: {path}")
    kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    return f"data:{kind};base64,{base64.b64encode(file.read_bytes()).decode()}"


def markdown_pages() -> Iterator[Page]:
    """The texts of the repository."""

    def page(group: str, file: Path) -> Page:
        body = render_markdown(file.read_text(encoding="utf-8"))
        return Page(group, file.relative_to(ROOT).as_posix(), str(body))

    yield page("Overview", ROOT / "README.md")
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("README.md")):
            yield page("Folders", file)
        if (specification := ROOT / folder / "specification.md").is_file():
            yield page("Folders", specification)
    for file in sorted((ROOT / "experiments" / "results").glob("*.md")):
        yield page("Results", file)


def printed(program: Path, *words: str) -> str:
    """What the program prints; an error where it fails."""
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ManualError(f"fp8lab {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def commands_of(overview: str) -> list[str]:
    """The names that `fp8lab help` lists."""
    return re.findall(r"^  ([a-z]+) +\S", overview, re.MULTILINE)


def help_body(title: str, text: str) -> str:
    """A help text as HTML; its tables of keys, [name], become headings."""
    parts = [f"<h1>{html.escape(title)}</h1>"]
    pieces = re.split(r"^(\[.+\])$", text, flags=re.MULTILINE)
    for number, piece in enumerate(pieces):
        if number % 2:
            parts.append(f"<h2>{html.escape(piece)}</h2>")
        elif piece.strip():
            parts.append(f"<pre>{html.escape(piece.strip(chr(10)))}</pre>")
    return "\n".join(parts)


def help_pages(program: Path) -> Iterator[Page]:
    """The help of the program, of its commands, and of the keys of its files."""
    overview = printed(program, "help")
    yield Page("Commands", "fp8lab help", help_body("The commands of fp8lab", overview))
    for name in commands_of(overview):
        text = printed(program, "help", name)
        yield Page("Commands", f"fp8lab help {name}", help_body(f"fp8lab {name}", text))
    for name in ("config", "recipe"):
        title = {"config": "Keys of a run file", "recipe": "Keys of a recipe file"}[name]
        text = printed(program, "help", name)
        yield Page("Commands", f"fp8lab help {name}", help_body(title, text))


def executed(path: Path) -> Any:
    """A notebook with its outputs; a cell before the first makes figures images."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell("%matplotlib inline"))
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=TIME_LIMIT, resources=resources).execute()
    del notebook.cells[0]
    return notebook


def output_html(output: Any) -> str:
    """What a cell showed: an image or text."""
    if output.output_type == "stream":
        return f'<pre class="output">{html.escape(output.text)}</pre>'
    if output.output_type == "error":
        raise ManualError(f"{output.ename}: {output.evalue}")
    if "image/png" in output.data:
        data = "".join(output.data["image/png"].split())
        return f'<img alt="figure" src="data:image/png;base64,{data}">'
    return f'<pre class="output">{html.escape(output.data.get("text/plain", ""))}</pre>'


def notebook_body(path: Path) -> str:
    """An executed notebook as HTML."""
    parts = []
    for cell in executed(path).cells:
        if cell.cell_type == "markdown":
            parts.append(str(render_markdown(cell.source)))
        else:
            parts.append(f'<pre class="cell"><code>{html.escape(cell.source)}</code></pre>')
            parts.extend(output_html(output) for output in cell.outputs)
    return "\n".join(parts)


def notebook_pages(program: Path) -> Iterator[Page]:
    """The notebooks, executed on the runs of first_study.toml."""
    folder = ROOT / "notebooks"
    with tempfile.TemporaryDirectory() as scratch:
        runs = str(Path(scratch) / "first_study")
        printed(program, "ablate", "--study", str(folder / "first_study.toml"), "--out", runs)
        os.environ.update(FP8LAB_RUNS=runs, FP8LAB_PROGRAM=str(program))
        for file in sorted(folder.glob("*.ipynb")):
            yield Page("Notebooks", file.relative_to(ROOT).as_posix(), notebook_body(file))


def linked(pages: list[Page]) -> list[Page]:
    """Pages with links between them; an error where one has no target."""
    keys = {page.path: page.key for page in pages}
    done = [Linker(page, keys).run() for page in pages]
    anchors = [section.anchor for page in done for section in page.sections]
    if len(set(anchors)) < len(anchors):
        twice = sorted({anchor for anchor in anchors if anchors.count(anchor) > 1})
        raise ManualError(f"anchors that are not unique: {', '.join(twice)}")
    for page in done:
        if not page.sections:
            raise ManualError(f"{page.path}: no heading")
        for target in re.findall(r'href="#([^"]*)"', page.body):
            if html.unescape(target) not in anchors:
                raise ManualError(f"{page.path}: no such heading: #{target}")
    return done


def contents(pages: list[Page]) -> str:
    """The table of contents: groups, pages, and the second headings of each."""
    parts: list[str] = []
    group = ""
    for page in pages:
        if page.group != group:
            group = page.group
            parts.append(f"<h2>{group}</h2>")
        first, *rest = page.sections
        entry = f'<a href="#{first.anchor}">{html.escape(first.title)}</a>'
        below = "".join(
            f'<li><a href="#{section.anchor}">{html.escape(section.title)}</a></li>'
            for section in rest
            if section.level == 2
        )
        parts.append(
            f"<details><summary>{entry}</summary><ul>{below}</ul></details>"
            if below
            else f"<p>{entry}</p>"
        )
    return "\n".join(parts)


def index_of(pages: list[Page]) -> str:
    """The search's index as JSON that may stand in a script element."""
    entries = [
        {"a": section.anchor, "t": section.title, "p": page.path, "x": section.text}
        for page in pages
        for section in page.sections
    ]
    return json.dumps(entries, ensure_ascii=False).replace("<", "\\u003c")


def build(program: Path) -> str:
    """The manual."""
    texts = list(markdown_pages())
    pages = [*texts[:1], *notebook_pages(program), *help_pages(program), *texts[1:]]
    pages = linked(pages)
    articles = "\n".join(
        f'<article><p class="path">{html.escape(page.path)}</p>\n{page.body}</article>'
        for page in pages
    )
    template = TEMPLATE.read_text(encoding="utf-8")
    parts = {"CONTENTS": contents(pages), "ARTICLES": articles, "INDEX": index_of(pages)}
    return re.sub(r"@(CONTENTS|ARTICLES|INDEX)@", lambda found: parts[found[1]], template)


def find_program() -> Path | None:
    """The program that is named in the environment, or one that was built here."""
    named = os.environ.get("FP8LAB_PROGRAM")
    built = sorted(ROOT.glob("build/*/src/fp8lab"))
    return Path(named) if named else built[0] if built else None


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="the HTML file to write")
    parser.add_argument("--program", type=Path, default=find_program(), help="fp8lab")
    options = parser.parse_args()
    try:
        if options.program is None:
            raise ManualError("fp8lab is not built here; --program names one")
        text = build(options.program.resolve())
        options.out.write_text(text, encoding="utf-8")
    except (ManualError, OSError) as error:
        print(f"build_manual: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
