"""The site: whole, without a network, and its links and search lead to what is there."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "notebooks" / "build_site.py"
FOLDERS = ("src", "emulation", "kernels", "experiments", "analysis", "tests", "notebooks")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((found for name in BROWSERS if (found := shutil.which(name))), None)
NEEDED = f"no browser is installed ({' or '.join(BROWSERS)})"
PROGRAM = os.environ.get("FP8LAB_PROGRAM", "")
MODULES = ("sphinx", "myst_parser", "nbclient", "ipykernel")


class Reader(HTMLParser):
    """What a page would load, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        names = ("src", "srcset", "poster", "data") + (("href",) if tag == "link" else ())
        self.loaded += [values[name] for name in names if name in values]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module", name="site")
def _site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("fp8lab", reason="the package fp8lab is not built")
    for module in MODULES:
        pytest.importorskip(module, reason=f"{module} is not installed")
    out = tmp_path_factory.mktemp("site") / "site"
    done = subprocess.run(
        [sys.executable, BUILD, out], capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    pages, links = map(int, re.findall(r"(\d+) (?:pages|links)", done.stdout))
    assert pages > 150 and links > 10_000
    return out


@pytest.fixture(scope="module", name="pages")
def _pages(site: Path) -> dict[str, Reader]:
    files = sorted(site.rglob("*.html"))
    return {f.relative_to(site).as_posix(): Reader(f.read_text(encoding="utf-8")) for f in files}


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[str, Reader]) -> None:
    loaded = [url for page in pages.values() for url in page.loaded]
    assert loaded and not [url for url in loaded if re.match("(https?:)?//", url)]
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert not re.search(r"url\(['\"]?(https?:)?//|@import [^;]*//", styles)


def test_every_text_is_there(pages: dict[str, Reader]) -> None:
    files = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "emulation" / "specification.md"]
    files += [
        *(ROOT / "experiments" / "results").glob("*.md"),
        *(ROOT / "notebooks").glob("*.ipynb"),
    ]
    files += (ROOT / "notebooks" / "site").glob("*.md")
    for folder in FOLDERS:
        files += (ROOT / folder).rglob("README.md")
    names = {file.relative_to(ROOT).with_suffix(".html").as_posix() for file in files}
    assert names - {"notebooks/site/front.html"} <= set(pages)
    assert "A checkpoint" in pages["index.html"].text or "a checkpoint" in pages["index.html"].text


def test_every_command_key_and_recipe_is_there(pages: dict[str, Reader]) -> None:
    def said(*words: str) -> str:
        return subprocess.run([PROGRAM, *words], capture_output=True, text=True, check=True).stdout

    listed = said("help").partition("COMMAND [OPTIONS]")[2].partition("fp8lab COMMAND")[0]
    names = [line.split()[0] for line in listed.splitlines() if line.strip()]
    assert {"train", "attribute", "bench"} <= set(names)
    for name in ("train", "validate", *names[-2:]):
        assert set(said("help", name).split()) <= set(pages[f"commands/{name}.html"].text.split())
    assert {f"commands/{name}.html" for name in names} <= set(pages)
    assert set(said("help", "config").split()) <= set(
        pages["commands/keys_config.html"].text.split()
    )
    rows = json.loads(said("recipes", "list", "--json"))
    assert len(rows) > 50
    for row in rows:
        assert row["name"] in pages[f"recipes/{row['folder']}.html"].text.split()


def test_options_keep_their_dashes(pages: dict[str, Reader]) -> None:
    assert "--fp8-recipe blockwise" in pages["recipes/infir2.html"].text
    assert "–" not in pages["recipes/infir2.html"].text


def test_interfaces_are_there(pages: dict[str, Reader]) -> None:
    numerics = pages["api/cpp/numerics.html"].text
    assert "fused_group" in numerics and "Returns the code of an FP32 value" in numerics
    assert "fp8lab_run_add_evaluation" in pages["api/c.html"].text
    assert "class RunFile" in pages["api/python/fp8lab.torch.run_file.html"].text
    assert "def quantize(" in pages["api/python/fp8lab.arithmetic.html"].text


def test_notebooks_are_executed(pages: dict[str, Reader]) -> None:
    images = [url for name, page in pages.items() if "notebooks/0" in name for url in page.loaded]
    assert sum(url.startswith("data:image/png") for url in images) > 5
    assert "complete" in pages["notebooks/01_reading_a_run.html"].text


def test_the_index_of_the_search_has_every_page(site: Path, pages: dict[str, Reader]) -> None:
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    shown = {name.removesuffix(".html") for name in pages} - {"search"}
    assert set(index["docnames"]) == shown
    assert any(word.startswith("stochast") for word in index["terms"])


# --- what is refused ------------------------------------------------------------------------------


@pytest.fixture(name="generator")
def _generator(monkeypatch: pytest.MonkeyPatch) -> Any:
    for module in MODULES:
        pytest.importorskip(module, reason=f"{module} is not installed")
    monkeypatch.syspath_prepend(str(BUILD.parent))
    return importlib.import_module("build_site")


def built(generator: Any, out: Path, *texts: str) -> str:
    """The error of a site of such pages, in which MD stands for the suffix; empty if there is
    none. Sphinx warns of a second site in a process, so each has its own."""
    one = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))
    with one as processes:
        return processes.submit(error_of, generator.__name__, out, texts).result()


def error_of(name: str, out: Path, texts: tuple[str, ...]) -> str:
    generator = sys.modules[name]
    pages = tuple(
        generator.Page(f"notebooks/page{number}.md", text.replace("MD", ".md"))
        for number, text in enumerate(texts)
    )
    group = generator.Group("only", "Only", "About.", pages)
    front = generator.Page(generator.FRONT, "# Front\n")
    try:
        generator.build([group], out, front)
    except generator.SiteError as error:
        return str(error)
    return ""


def test_faults_are_errors(generator: Any, tmp_path: Path) -> None:
    good = "# One\n\n## A part\n\n[there](page1MD#b-part), `notebooks/page1MD`, [file](site)\n"
    other = "# Two\n\n## B part\n"
    assert built(generator, tmp_path / "good", good, other) == ""
    shown = (tmp_path / "good/notebooks/page0.html").read_text(encoding="utf-8")
    assert shown.count('href="page1.html') >= 2
    for text, error in (
        ("# One\n\n[x](nowhereMD)\n", "no such file: nowhere"),
        ("# One\n\n[x](page1MD#c-part)\n", "c-part"),
        ("# One\n\n![x](nothing.png)\n", "no such image: nothing.png"),
        ("no heading\n", "title"),
        ("# One\n\n```{nodirective}\n```\n", "nodirective"),
    ):
        assert error in built(generator, tmp_path / "bad", text, other), text
        assert not (tmp_path / "bad").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years")
    assert "something else" in built(generator, tmp_path / "mine", good, other)
    assert (tmp_path / "mine/thesis.txt").exists()


@pytest.mark.skipif(BROWSER is None, reason=NEEDED)
def test_search_in_a_browser(site: Path, tmp_path: Path) -> None:
    assert BROWSER is not None
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
    command += ["--virtual-time-budget=10000", "--dump-dom", f"--user-data-dir={tmp_path / 'p'}"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND"]

    def found(query: str) -> list[str]:
        url = f"{(site / 'search.html').as_uri()}?q={query}"
        done = subprocess.run([*command, url], capture_output=True, text=True, check=True)
        results = done.stdout.partition('id="search-results"')[2]
        return re.findall(r'<li[^>]*><a href="([^"#?]+)', results.partition("</ul>")[0])

    assert "emulation/specification.html" in found("stochastic+rounding")
    assert "api/cpp/numerics.html" in found("fused_group")
    assert found("xyzzyplugh") == []
