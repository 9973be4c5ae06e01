"""The manual: whole, without a network, and its links and search lead to what is there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "notebooks" / "build_manual.py"
FOLDERS = ("src", "emulation", "kernels", "experiments", "analysis", "tests", "notebooks")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((found for name in BROWSERS if (found := shutil.which(name))), None)
NEEDED = f"no browser is installed ({' or '.join(BROWSERS)})"
PROGRAM = os.environ.get("FP8LAB_PROGRAM", "")
LOADING = ("src", "srcset", "poster", "data", "background", "action")
VOID = ("meta", "img", "br", "hr", "input", "link")

# Appended to a copy of the page: types words and writes down what the search lists, and sizes.
PROBE = """
<script>
window.addEventListener("load", () => {
  const query = document.getElementById("query");
  const type = (text) => {
    query.value = text;
    query.dispatchEvent(new Event("input"));
    return [...document.querySelectorAll("#found li")].map((item) =>
      [item.querySelector("a")?.getAttribute("href") ?? "", item.textContent]);
  };
  const found = {
    answers: Object.fromEntries(WORDS.map((words) => [words, type(words)])),
    width: document.documentElement.scrollWidth, window: innerWidth,
    blank: [...document.images].filter((image) => image.naturalWidth === 0).length,
  };
  const note = document.createElement("pre");
  note.id = "probe"; note.textContent = JSON.stringify(found);
  document.body.replaceChildren(note);
});
</script>
"""


class Reader(HTMLParser):
    """Anchors, links, what the page would load, and its headings."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: list[str] = []
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.headings: list[tuple[str, str]] = []  # anchor, title
        self.paths: list[str] = []
        self.script = ""
        self.inside: list[str] = []
        self.broken: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors += [values["id"]] if "id" in values else []
        self.loaded += [values[name] for name in LOADING if name in values]
        if tag == "a":
            self.links.append(values.get("href", ""))
        elif "href" in values:
            self.loaded.append(values["href"])
        if re.fullmatch("h[1-6]", tag) and "article" in self.inside:
            self.headings.append((values.get("id", ""), ""))
        if values.get("class") == "path":
            self.paths.append("")
            tag = "path"
        if tag not in VOID:
            self.inside.append("index" if values.get("id") == "index" else tag)

    def handle_endtag(self, tag: str) -> None:
        top = self.inside.pop() if self.inside else "nothing"
        if top != tag and (top, tag) not in (("path", "p"), ("index", "script")):
            self.broken.append(f"{top} ended by {tag}")

    def handle_data(self, data: str) -> None:
        if "index" in self.inside:
            self.script += data
        elif "path" in self.inside:
            self.paths[-1] += data
        elif "article" in self.inside and any(re.fullmatch("h[1-6]", t) for t in self.inside):
            anchor, title = self.headings[-1]
            self.headings[-1] = (anchor, title + data)


@pytest.fixture(scope="module", name="manual")
def _manual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("fp8lab", reason="the package fp8lab is not built")
    pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    pytest.importorskip("mistune", reason="mistune is not installed")
    out = tmp_path_factory.mktemp("manual") / "manual.html"
    done = subprocess.run(
        [sys.executable, BUILD, out], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return out


@pytest.fixture(scope="module", name="page")
def _page(manual: Path) -> Reader:
    return Reader(manual.read_text(encoding="utf-8"))


def test_elements_are_closed(page: Reader) -> None:
    assert page.broken == [] and page.inside == []


def test_nothing_is_loaded(manual: Path, page: Reader) -> None:
    assert page.loaded and all(url.startswith("data:") for url in page.loaded)
    text = manual.read_text(encoding="utf-8")
    style = "".join(re.findall(r"<style.*?</style>", text, re.DOTALL))
    assert "url(" not in style and "@import" not in style
    assert not re.search(r"\bfetch\(|XMLHttpRequest|\bimport\(", text.rpartition("<script>")[2])


def test_links_inside_have_their_targets(page: Reader) -> None:
    assert len(set(page.anchors)) == len(page.anchors)
    inside = [link for link in page.links if not re.match("https?://", link)]
    assert len(inside) > 100
    assert all(link.startswith("#") for link in inside)
    assert {link[1:] for link in inside} <= set(page.anchors)


def test_every_heading_is_in_the_index(page: Reader) -> None:
    entries = {(entry["a"], entry["t"]) for entry in json.loads(page.script)}
    headings = {(anchor, " ".join(title.split())) for anchor, title in page.headings}
    assert len(headings) > 150
    assert entries == headings


def test_every_text_is_there(page: Reader) -> None:
    files = [ROOT / "README.md", *(ROOT / "experiments" / "results").glob("*.md")]
    files += [ROOT / "emulation" / "specification.md", *(ROOT / "notebooks").glob("*.ipynb")]
    for folder in FOLDERS:
        files += (ROOT / folder).rglob("README.md")
    assert {file.relative_to(ROOT).as_posix() for file in files} <= set(page.paths)


def test_every_command_and_key_is_there(manual: Path, page: Reader) -> None:
    def help_of(*words: str) -> str:
        return subprocess.run(
            [PROGRAM, "help", *words], capture_output=True, text=True, check=True
        ).stdout

    listed = help_of().partition("COMMAND [OPTIONS]")[2].partition("fp8lab COMMAND")[0]
    names = [line.split()[0] for line in listed.splitlines() if line.strip()]
    assert {"train", "attribute", "bench"} <= set(names)
    texts = {entry["p"]: "" for entry in json.loads(page.script)}
    for entry in json.loads(page.script):
        texts[entry["p"]] += f" {entry['t']} {entry['x']}"
    for name in [*names, "config", "recipe"]:
        assert set(help_of(name).split()) <= set(texts[f"fp8lab help {name}"].split()), name


def test_images_and_notebooks_are_in_it(page: Reader) -> None:
    entries = json.loads(page.script)
    assert sum(url.startswith("data:image/png") for url in page.loaded) > 5
    assert any("complete" in entry["x"] for entry in entries if "01_reading" in entry["p"])


@pytest.mark.skipif(BROWSER is None, reason=NEEDED)
@pytest.mark.parametrize("width", [1200, 500])
def test_search_in_a_browser(manual: Path, tmp_path: Path, width: int) -> None:
    queries = ["how to read a verdict", "stochastic rounding", "rounding xyzzyplugh"]
    probe = PROBE.replace("WORDS", json.dumps(queries))
    copy = tmp_path / "probed.html"
    text = manual.read_text(encoding="utf-8")
    copy.write_text(text.replace("</body>", probe + "</body>"), encoding="utf-8")
    assert BROWSER is not None
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
    command += ["--hide-scrollbars", f"--window-size={width},900", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--host-resolver-rules=MAP * ~NOTFOUND"]
    done = subprocess.run(
        [*command, copy.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    shown = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.DOTALL)
    assert shown, "the page did not load"
    text = shown[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    found: dict[str, Any] = json.loads(text)
    answers = found["answers"]
    assert answers["how to read a verdict"][0][0] == "#analysis--how-to-read-a-verdict"
    assert len(answers["stochastic rounding"]) > 1
    assert answers["rounding xyzzyplugh"] == [["", "nothing found"]]
    assert found["blank"] == 0
    assert found["width"] <= found["window"]
