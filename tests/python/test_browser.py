"""The report as a browser shows it: nothing blank, nothing cut off at 1200 pixels or on paper,
nothing asked of a network."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import make_example_run
import matplotlib.image
import numpy as np
import numpy.typing as npt
import pytest

from fp8lab_analysis import report

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((found for name in BROWSERS if (found := shutil.which(name))), None)
WIDTH = 1200
SCREEN = 900  # pixels of a laptop's window
NEEDED = f"no browser is installed ({' or '.join(BROWSERS)})"
pytestmark = pytest.mark.skipif(BROWSER is None, reason=NEEDED)

# Appended to a copy of the page; its findings are read from the document that it leaves.
PROBE = """
<script>
window.addEventListener("load", () => {
  const box = (item) => { const b = item.getBoundingClientRect();
    return [b.left, b.top + scrollY, b.width, b.height]; };
  const all = (what) => [...document.querySelectorAll(what)];
  const found = {
    width: document.documentElement.scrollWidth, height: document.documentElement.scrollHeight,
    figures: Object.fromEntries(all("figure").map((f) => [f.id, box(f.querySelector("svg"))])),
    answers: all("#answers").map(box),
    wide: all(".scroll").filter((s) => s.scrollWidth > s.clientWidth).map((s) => s.textContent),
  };
  const note = document.createElement("pre");
  note.id = "probe"; note.textContent = JSON.stringify(found);
  document.body.append(note);
});
</script>
"""


def browse(page: Path, folder: Path, *options: str) -> str:
    """What a browser without network prints of a page."""
    assert BROWSER is not None
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += ["--no-first-run", f"--user-data-dir={folder / 'profile'}"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND", *options, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def probe(page: Path, folder: Path) -> dict[str, Any]:
    """Sizes of the page and of what is on it."""
    copy = folder / "probed.html"
    copy.write_text(page.read_text().replace("</body>", PROBE + "</body>"))
    text = browse(copy, folder, f"--window-size={WIDTH},{SCREEN}", "--dump-dom")
    found = re.search(r'<pre id="probe">(.*?)</pre>', text, re.DOTALL)
    assert found, "the page did not load"
    return dict(
        json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    )


def colours(image: npt.NDArray[Any]) -> int:
    """Different colours of an image, in steps of a sixteenth."""
    coarse = (np.asarray(image)[..., :3] * 15.99).astype(np.uint8)
    return len(np.unique(coarse.reshape(-1, 3), axis=0))


@pytest.fixture(scope="module", name="page")
def _page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    make_example_run.make_example(folder / "study")
    assert report.main([str(folder / "study"), "--out", str(folder / "report")]) == 0
    return folder / "report" / "index.html"


def test_no_panel_is_blank_and_nothing_is_cut_off(page: Path, tmp_path: Path) -> None:
    found = probe(page, tmp_path)
    assert found["width"] <= WIDTH, "the page scrolls sideways"
    assert found["wide"] == []
    picture = tmp_path / "page.png"
    size = f"--window-size={WIDTH},{found['height']}"
    browse(page, tmp_path, size, f"--screenshot={picture}")
    image = matplotlib.image.imread(picture)
    assert image.shape[:2] == (found["height"], WIDTH)
    assert len(found["figures"]) > 5
    for name, (left, top, width, height) in found["figures"].items():
        assert width > 600 and height > 100, name
        assert left >= 0 and left + width <= WIDTH, name
        shown = image[round(top) : round(top + height), round(left) : round(left + width)]
        assert colours(shown) > 12, f"{name} is blank"


def test_a_blank_figure_and_a_wide_table_are_noticed(page: Path, tmp_path: Path) -> None:
    text = page.read_text()
    blank = re.sub(r"(<svg[^>]*>).*?</svg>", r"\1</svg>", text, count=1, flags=re.DOTALL)
    wide = blank.replace("<table>", '<table style="width: 3000px">', 1)
    broken = tmp_path / "broken.html"
    broken.write_text(wide)
    found = probe(broken, tmp_path)
    assert len(found["wide"]) == 1
    picture = tmp_path / "page.png"
    browse(broken, tmp_path, f"--window-size={WIDTH},{SCREEN}", f"--screenshot={picture}")
    left, top, width, height = next(iter(found["figures"].values()))
    shown = matplotlib.image.imread(picture)[round(top) :, round(left) : round(left + width)]
    assert colours(shown[: round(height)]) == 1


def test_the_answers_are_on_the_first_screen(page: Path, tmp_path: Path) -> None:
    ((_, top, _, height),) = probe(page, tmp_path)["answers"]
    assert top + height <= SCREEN


HINT = """
<script>
window.addEventListener("load", () => {
  const drawing = document.querySelector(".drawing");
  const hint = getComputedStyle(drawing, "::before");
  const note = document.createElement("pre");
  note.id = "probe";
  note.textContent = JSON.stringify(
    {content: hint.content, scrolls: drawing.scrollWidth > drawing.clientWidth});
  document.body.append(note);
});
</script>
"""


@pytest.mark.parametrize("width, scrolls", [(600, True), (WIDTH, False)])
def test_a_figure_that_scrolls_says_so(
    width: int, scrolls: bool, page: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "hint.html"
    copy.write_text(page.read_text().replace("</body>", HINT + "</body>"))
    text = browse(copy, tmp_path, f"--window-size={width},{SCREEN}", "--dump-dom")
    found = re.search(r'<pre id="probe">(.*?)</pre>', text, re.DOTALL)
    assert found, "the page did not load"
    said = json.loads(found[1])
    assert said["scrolls"] == scrolls
    assert ("sideways" in said["content"]) == scrolls


def test_the_page_prints(page: Path, tmp_path: Path) -> None:
    paper = tmp_path / "page.pdf"
    browse(page, tmp_path, "--no-pdf-header-footer", f"--print-to-pdf={paper}")
    content = paper.read_bytes()
    assert content.startswith(b"%PDF")
    pages = len(re.findall(rb"/Type\s*/Page\b", content))
    assert 5 <= pages <= 30


# Moves the pointer over marks of figures, and writes down what the page says there.
HOVER = """
<script>
window.addEventListener("load", () => {
  const box = document.getElementById("value"), said = {};
  const move = (svg, x, y) => {
    const at = new DOMPoint(x, y).matrixTransform(svg.getScreenCTM());
    const where = { clientX: at.x, clientY: at.y, bubbles: true };
    svg.dispatchEvent(new PointerEvent("pointermove", where));
    return box.hidden ? null : box.textContent;
  };
  for (const [name, [x, y]] of Object.entries(PLACES)) {
    const svg = document.querySelector("#figure-" + name.split(" ")[0] + " svg");
    svg.scrollIntoView();
    said[name] = move(svg, x, y);
  }
  const [label, figure, x, y] = HIDE;
  const svg = document.querySelector("#figure-" + figure + " svg");
  const buttons = [...document.querySelectorAll(".series button")];
  const button = buttons.find((b) => b.dataset.label === label);
  said.before = move(svg, x, y);
  button.click(); said.pressed = button.getAttribute("aria-pressed"); said.during = move(svg, x, y);
  button.click(); said.after = move(svg, x, y);
  svg.dispatchEvent(new PointerEvent("pointerleave")); said.gone = box.hidden;
  const found = document.createElement("pre");
  found.id = "probe"; found.textContent = JSON.stringify(said);
  document.body.append(found);
});
</script>
"""


def hover_of(page: Path) -> dict[str, Any]:
    found = re.search(r"const hover = (.*);$", page.read_text(), re.MULTILINE)
    assert found
    return dict(json.loads(found[1]))


def test_the_value_under_the_pointer_is_told(page: Path, tmp_path: Path) -> None:
    panels = hover_of(page)
    held_out = panels["held_out"][2]  # sft, in which the arms differ
    series = held_out["series"].index("te_current")
    points = [point for point in held_out["points"] if point[0] == series]
    heat = panels["sqnr_heat_map"][0]
    left, top, right, bottom = heat["box"]
    row, column = 30, 2
    cell = (
        left + (column + 0.5) * (right - left) / len(heat["columns"]),
        top + (row + 0.5) * (bottom - top) / len(heat["rows"]),
    )
    places = {
        "held_out": (points[0][1] + 1.0, points[0][2] - 1.0),
        "held_out start": panels["held_out"][0]["points"][0][1:3],
        "held_out outside": (1.0, 1.0),
        "held_out between": (held_out["box"][0] + 2, held_out["box"][3] - 2),
        "sqnr_heat_map": cell,
        "sqnr": panels["sqnr"][0]["points"][0][1:3],
    }
    hide = ["te_current", "held_out", *points[0][1:3]]
    script = HOVER.replace("PLACES", json.dumps(places)).replace("HIDE", json.dumps(hide))
    copy = tmp_path / "hovered.html"
    copy.write_text(page.read_text().replace("</body>", script + "</body>"))
    text = browse(copy, tmp_path, f"--window-size={WIDTH},{SCREEN}", "--dump-dom")
    found = re.search(r'<pre id="probe">(.*?)</pre>', text, re.DOTALL)
    assert found, "the page did not load"
    said = json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    # The number told is that of the CSV beside the figure.
    with (page.parent / "figures" / "held_out.csv").open() as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if row["panel"] == "3" and row["series"] == "te_current"
        ]
    number = f"{float(rows[0]['y']):.4g}"
    assert said["held_out"].split("\n")[:-1] == ["stage sft", "optimizer step: 120"]
    low, high = (f"{float(rows[0][edge]):.4g}" for edge in ("low", "high"))  # of two seeds
    assert said["held_out"].split("\n")[-1] == f"te_current {number}, {low} to {high}"
    assert "held-out loss (nats per token):" in said["held_out start"]
    told = said["held_out start"].replace(", diverged", "").split("\n")[3:]  # where all are one
    assert "e5m2_tensor, diverged" in said["held_out start"]
    assert [line.split()[0] for line in told] == ["bf16", "infir2", "te_current", "e5m2_tensor"]
    assert len({line.split(" ", 1)[1] for line in told}) == 1
    assert said["held_out outside"] is None and said["held_out between"] is None
    assert said["sqnr_heat_map"].split("\n") == [
        heat["series"][0],
        heat["rows"][row],
        f"optimizer step: {heat['columns'][column]}",
        heat["values"][row * len(heat["columns"]) + column],
    ]
    assert re.fullmatch(r"\w+\.\w+ layers\.\d\.[\w.]+", heat["rows"][row])
    assert re.search(r"SQNR \(dB\): [\d.]+\ninfir2", said["sqnr"])
    assert said["before"] == said["after"] == said["held_out"]
    assert said["during"] != said["before"] and said["pressed"] == "false" and said["gone"]


def test_every_figure_tells_its_values(page: Path) -> None:
    panels = hover_of(page)
    text = page.read_text()
    drawn = re.findall(r'<figure id="figure-(\w+)">', text)
    assert sorted(panels) == sorted(drawn) and len(drawn) > 10
    for name in drawn:
        assert panels[name], name
        for panel in panels[name]:
            left, top, right, bottom = panel["box"]
            assert 0 <= left < right <= 720 and 0 <= top < bottom, name
            for point in panel.get("points", []):
                assert left - 2 <= point[1] <= right + 2 and top - 2 <= point[2] <= bottom + 2, name
