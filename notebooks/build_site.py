#!/usr/bin/env python3
"""Builds the site: pages in a folder, which a browser shows without a network.

    python3 notebooks/build_site.py build/site       # then open build/site/index.html

It is made from the texts of the repository, the tutorials, the notebooks, executed on the runs of
first_study.toml, the recipes and help texts of the program, and the interfaces of C++, C and
Python. Sphinx renders it; every warning, and every link without a target, is an error.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

try:
    import myst_parser  # noqa: F401
    import nbformat
    from nbclient.client import NotebookClient
    from pygments.lexers.special import TextLexer
    from sphinx.application import Sphinx
except ModuleNotFoundError as missing:
    sys.exit(
        f"build_site.py: {sys.executable} has no module '{missing.name}'; accepted: a Python with "
        "sphinx, myst_parser, nbclient and ipykernel (./quickstart.sh test installs them for "
        "/usr/bin/python3)"
    )

from site_interfaces import interface_pages
from site_sources import (
    FRONT,
    MARKDOWN,
    ROOT,
    Group,
    Linker,
    Page,
    SiteError,
    block,
    plain,
    repository_page,
)

FOLDERS = ("src", "emulation", "kernels", "experiments", "analysis", "tests", "notebooks")
SITE = ROOT / "notebooks" / "site"
TUTORIALS = ("python", "torch", "replay", "doctor_convert", "conformance", "assess")
TIME_LIMIT = 300  # seconds per cell
SETTINGS: dict[str, Any] = {
    "project": "fp8lab",
    "copyright": "The fp8lab maintainers",
    "extensions": ["myst_parser"],
    "myst_heading_anchors": 6,
    "html_theme": "alabaster",
    "html_theme_options": {"page_width": "1240px", "sidebar_width": "250px", "font_size": "16px"},
    "html_sidebars": {"**": ["about.html", "searchbox.html", "navigation.html"]},
    "html_static_path": [str(SITE / "style.css")],
    "html_css_files": ["style.css"],
    "html_copy_source": False,
    "html_show_search_summary": False,  # it would fetch pages, which browsers refuse for files
    "html_use_index": False,
    "highlight_language": "none",
    "smartquotes": False,  # they make one dash of the two before an option
    "suppress_warnings": ["misc.highlighting_failure"],  # excerpts of TOML and JSON with "..."
}


def printed(program: Path, *words: str) -> str:
    """What the program prints; an error where it fails."""
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SiteError(f"fp8lab {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


# --- pages ----------------------------------------------------------------------------------------


def help_page(title: str, path: str, text: str) -> Page:
    """A help text; its tables of keys, [name], become headings."""
    parts = [f"# {title}\n"]
    for number, piece in enumerate(re.split(r"^(\[.+\])$", text, flags=re.MULTILINE)):
        if number % 2:
            parts.append(f"## {plain(piece)}\n")
        elif piece.strip():
            parts.append(block(piece))
    return Page(path, "\n".join(parts))


def help_pages(program: Path) -> Iterator[Page]:
    """The help of the program, of its commands, and of the keys of its files."""
    overview = printed(program, "help")
    yield help_page("All commands", f"commands/all{MARKDOWN}", overview)
    for name in re.findall(r"^  ([a-z]+) +\S", overview, re.MULTILINE):
        yield help_page(f"fp8lab {name}", f"commands/{name}.md", printed(program, "help", name))
    for name, title in {
        "config": "Keys of a run file",
        "recipe": "Keys of a recipe file",
        "study": "Keys of a study file",
    }.items():
        yield help_page(title, f"commands/keys_{name}.md", printed(program, "help", name))


def recipe_pages(program: Path) -> Iterator[Page]:
    """A page for each system: what its recipes are, and the resolved table of each."""
    rows = json.loads(printed(program, "recipes", "list", "--json"))
    for folder in dict.fromkeys(row["folder"] for row in rows):
        recipes = [row for row in rows if row["folder"] == folder]
        parts = [f"# {plain(recipes[0]['system'])}\n"]
        for row in recipes:
            parts.append(f"## {plain(row['name'])}\n\n{plain(row['summary'])}\n")
            parts.append(f"Source: {plain(row['source'])}. Evidence: {plain(row['evidence'])}.\n")
            parts.append(block(f"$ fp8lab train --preset quickstart --recipe {row['name']}"))
            parts.append(block(printed(program, "recipes", "show", row["name"])))
        yield Page(f"recipes/{folder}.md", "\n".join(parts))


def executed(path: Path) -> Any:
    """A notebook with its outputs; a cell before the first makes figures images."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell("%matplotlib inline"))
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=TIME_LIMIT, resources=resources).execute()
    del notebook.cells[0]
    return notebook


def shown(output: Any) -> str:
    """What a cell showed: an image or text."""
    if output.output_type == "stream":
        return block(output.text)
    if output.output_type == "error":
        raise SiteError(f"{output.ename}: {output.evalue}")
    if "image/png" in output.data:
        data = "".join(output.data["image/png"].split())
        return f'<img alt="figure" src="data:image/png;base64,{data}">\n'
    return block(output.data.get("text/plain", ""))


def notebook_page(path: Path) -> Page:
    """An executed notebook."""
    parts = []
    for cell in executed(path).cells:
        is_code = cell.cell_type == "code"
        parts.append(block(cell.source, "python") if is_code else f"{cell.source}\n")
        parts.extend(shown(output) for output in cell.get("outputs", ()))
    return Page(path.relative_to(ROOT).as_posix(), "\n".join(parts))


def notebook_pages(program: Path) -> Iterator[Page]:
    """The notebooks, executed on the runs of first_study.toml."""
    folder = ROOT / "notebooks"
    with tempfile.TemporaryDirectory() as scratch:
        runs = str(Path(scratch) / "first_study")
        printed(program, "ablate", "--study", str(folder / "first_study.toml"), "--out", runs)
        os.environ.update(FP8LAB_RUNS=runs, FP8LAB_PROGRAM=str(program))
        os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"  # a warning of each kernel
        for file in sorted(folder.glob("*.ipynb")):
            yield notebook_page(file)


def folder_pages() -> tuple[Page, ...]:
    """The README files of the folders, without those of results."""
    files = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("README.md"))]
    paths = [file.relative_to(ROOT).as_posix() for file in files]
    return tuple(repository_page(path) for path in paths if "/results/" not in path)


def result_pages() -> tuple[Page, ...]:
    """The pages of experiments/results and of its studies."""
    folder = ROOT / "experiments" / "results"
    files = [*sorted(folder.glob("*.md")), *sorted(folder.rglob("README.md"))]
    return tuple(repository_page(file.relative_to(ROOT).as_posix()) for file in files)


def groups(program: Path) -> list[Group]:
    """The contents of the site."""
    tutorials = [repository_page(f"notebooks/site/{name}.md") for name in TUTORIALS]
    return [
        Group("tutorials", "Tutorials", "Small enough to type; the tests run every one.",
              tuple(tutorials)),
        Group("notebooks", "Notebooks", "Executed when this site was built.",
              tuple(notebook_pages(program))),
        Group("recipes", "Recipes by system", "What `fp8lab recipes list` and `show` print.",
              tuple(recipe_pages(program))),
        Group("specification", "The arithmetic", "Rule by rule, with examples that the tests run.",
              (repository_page("emulation/specification.md"),)),
        Group("commands", "Commands and keys", "What `fp8lab help` prints.",
              tuple(help_pages(program))),
        Group("interfaces", "Interfaces: Python, C++, C", "From the sources.", interface_pages()),
        Group("results", "Results", "What was measured, with the commands that made it.",
              result_pages()),
        Group("folders", "Guides to the folders", "The texts beside the sources.",
              (repository_page("README.md"), *folder_pages(), repository_page("CHANGELOG.md"),
               repository_page(".github/CONTRIBUTING.md"))),
    ]  # fmt: skip


# --- rendering ------------------------------------------------------------------------------------


def table_of_contents(names: list[str], *options: str) -> str:
    """A toctree of MyST."""
    return "\n".join(["```{toctree}", *options, "", *(f"/{name}" for name in names), "```", ""])


def write_sources(contents: list[Group], front: Page, folder: Path) -> None:
    """Writes what Sphinx reads: pages with links, pages of groups, the front page, images."""
    pages = [front, *(page for group in contents for page in group.pages)]
    linker = Linker(pages)
    texts = {page.name: linker.linked(page) for page in pages}
    groups_of = [f"contents/{group.name}" for group in contents]
    texts[front.name] += table_of_contents(groups_of, ":hidden:")
    for group, name in zip(contents, groups_of, strict=True):
        below = table_of_contents([page.name for page in group.pages], ":maxdepth: 1")
        texts[name] = f"# {group.title}\n\n{group.about}\n\n{below}"
    for name, text in texts.items():
        file = folder / f"{name}.md"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    for path, image in linker.images.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(image, folder / path)


def render(sources: Path, out: Path, scratch: Path) -> None:
    """Runs Sphinx. Throws SiteError with its first warnings."""
    warnings = io.StringIO()
    settings = SETTINGS | {"version": version(), "release": version()}
    app = Sphinx(
        str(sources), None, str(out), str(scratch), "html", confoverrides=settings,
        status=None, warning=warnings, freshenv=True, parallel=os.cpu_count() or 1,
    )  # fmt: skip
    app.add_lexer("numbers", TextLexer)  # blocks of the specification that a test reads
    app.build(force_all=True)
    said = re.sub(r"\x1b\[[\d;]*m", "", warnings.getvalue()).replace(f"{sources}/", "").strip()
    if said or app.statuscode:
        raise SiteError("\n".join(said.splitlines()[:40]))
    for left in (".buildinfo", "objects.inv"):
        (out / left).unlink(missing_ok=True)


def version() -> str:
    """The version of pyproject.toml."""
    found = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert found
    return found[1]


class References(HTMLParser):
    """Anchors of a page, and what it links to or loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.targets: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        for name in ("href", "src"):
            if name in values and values.get("rel") != "nofollow":
                self.targets.append(values[name])


def check_links(out: Path) -> int:
    """Returns the number of links inside the site. Throws SiteError for one without a target, and
    for anything that a page would load from elsewhere."""
    pages = {file: References(file.read_text(encoding="utf-8")) for file in out.rglob("*.html")}
    count, faults = 0, []
    for file, page in pages.items():
        for target in page.targets:
            parts = urlsplit(target)
            if parts.scheme in ("http", "https", "data"):
                continue
            to = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            count += 1
            if not to.is_file() or not to.stat().st_size:
                faults.append(f"{file.relative_to(out)}: no such file: {target}")
            elif (
                to in pages and parts.fragment and unquote(parts.fragment) not in pages[to].anchors
            ):
                faults.append(f"{file.relative_to(out)}: no such heading: {target}")
    if faults:
        raise SiteError("\n".join(faults[:40]))
    return count


def build(contents: list[Group], out: Path, front: Page) -> tuple[int, int]:
    """Builds the site as `out`, which appears whole or not at all; returns pages and links. Throws
    SiteError for links without a target, for whatever Sphinx warns of, and for a folder of
    something else."""
    if out.exists() and not (out / "index.html").is_file() and any(out.iterdir()):
        raise SiteError(f"{out}: a folder of something else; accepted: a new one, or a site")
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        sources, html = Path(scratch) / "sources", Path(scratch) / "html"
        write_sources(contents, front, sources)
        render(sources, html, Path(scratch) / "doctrees")
        links = check_links(html)
        shutil.rmtree(out, ignore_errors=True)
        html.rename(out)
    return sum(len(group.pages) for group in contents), links


def find_program() -> Path | None:
    """The program that is named in the environment, or one that was built here."""
    named = os.environ.get("FP8LAB_PROGRAM")
    built = sorted(ROOT.glob("build/*/src/fp8lab"))
    return Path(named) if named else built[0] if built else None


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="the folder to write")
    parser.add_argument("--program", type=Path, default=find_program(), help="fp8lab")
    options = parser.parse_args()
    try:
        if options.program is None:
            raise SiteError("fp8lab is not built here; --program names one")
        options.out.parent.mkdir(parents=True, exist_ok=True)
        contents = groups(options.program.resolve())
        pages, links = build(contents, options.out.resolve(), repository_page(FRONT))
    except (SiteError, OSError) as error:
        print(f"build_site: {error}", file=sys.stderr)
        return 2
    print(f"{options.out / 'index.html'}: {pages} pages, {links} links")
    return 0


if __name__ == "__main__":
    sys.exit(main())
