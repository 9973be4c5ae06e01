"""The figure of the studies of a published checkpoint shows what its page says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / part) for part in ("analysis", "src/python", "experiments/studies")]

plt: Any = pytest.importorskip("matplotlib.pyplot")
pytest.importorskip("scipy")

import real_figure  # noqa: E402
import real_verdicts  # noqa: E402

LOSSES = ROOT / "experiments/results/real_checkpoint/losses.csv"


def test_rows_dots_and_intervals_are_those_of_the_page() -> None:
    losses = real_verdicts.without_copies(real_verdicts.read_losses(LOSSES, "sft")[""])
    in_bf16 = real_verdicts.read_losses(LOSSES, "sft", "loss_in_bf16")[""]
    figure, axes = plt.subplots()
    real_figure.draw_stage(axes, losses, in_bf16, "sft")
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names[0] == "infir2_then_bf16" and names[-1] == "nvfp4" and "bf16" not in names
    row = names.index("infir2")
    dots, weights, interval = (
        [
            sorted(round(float(x), 2) for x in line.get_xdata())
            for line in axes.get_lines()
            if line.get_marker() == marker and row - 0.1 < float(line.get_ydata()[0]) < row + 0.4
        ]
        for marker in ("o", "x", "None")
    )
    page = (LOSSES.parent / "README.md").read_text(encoding="utf-8")
    cells = next(line for line in page.splitlines() if line.startswith("| infir2 | +1.36")).split(
        "|"
    )
    assert dots == [sorted(float(gap) for gap in cells[5].split())]
    assert weights == [sorted(float(gap) for gap in cells[6].split())]
    assert "| infir2 | worse by 0.83 % ± 0.08 % | worse by 0.90 % ± 0.09 % |" in page
    assert interval == [[pytest.approx(0.81, abs=0.011), pytest.approx(0.99, abs=0.011)]]
    beyond = [text.get_text() for text in axes.texts]
    assert beyond == ["+4.1 ± 0.1 →", "+8.8 ± 0.2 →"]
    plt.close(figure)


def test_it_is_written(tmp_path: Path) -> None:
    assert real_figure.main([str(LOSSES), "--out", str(tmp_path / "figure.png")]) == 0
    assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"
