"""The page of `fp8lab assess`: the answer, then figures and tables, in one HTML file."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jinja2
import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from fp8lab_analysis.draw import figures as drawings
from fp8lab_analysis.draw import style
from fp8lab_analysis.draw.figures import FigureSpec, RenderedFigure, save_figure
from fp8lab_analysis.judge.assessment import Assessment, SensitivityMap, percent, signed, token_text

SLOTS = ("x", "w", "both")


def _gaps(assessment: Assessment) -> Figure:
    costs = [cost for cost in assessment.ordered()[1:] if math.isfinite(cost.gap.value)]
    figure = Figure(figsize=(style.WIDTH, 0.9 + 0.34 * max(len(costs), 1)), layout="constrained")
    axes: Axes = figure.subplots()
    places = np.arange(len(costs))
    values = np.array([100 * cost.gap.value for cost in costs])
    halves = np.array([100 * cost.gap.half if cost.gap.is_known else 0.0 for cost in costs])
    axes.barh(places, values, color="#9fc3dd", height=0.62)
    axes.errorbar(values, places, xerr=halves, fmt="none", ecolor=style.INK, capsize=3)
    axes.set_yticks(places, [cost.name for cost in costs])
    axes.invert_yaxis()
    axes.axvline(0.0, color=style.INK, linewidth=0.8)
    axes.set_xlabel(f"held-out loss against {assessment.baseline} (%)")
    axes.grid(axis="y", visible=False)
    smallest = float(np.min(np.abs(values))) if values.size else 0.0
    if smallest > 0 and np.max(np.abs(values)) > 30 * smallest:
        axes.set_xscale("symlog", linthresh=smallest)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    return figure


def _map(found: SensitivityMap) -> Figure:
    """Layers along x, modules and operands along y."""

    def place(name: str) -> tuple[str, str]:
        parts = name.split(".")
        return (parts[1], ".".join(parts[2:])) if parts[0] == "layers" else ("head", name)

    columns = list(dict.fromkeys(place(entry.layer)[0] for entry in found.layers))
    modules = list(dict.fromkeys(place(entry.layer)[1] for entry in found.layers))
    rows = [(module, slot) for module in modules for slot in SLOTS]
    values = np.full((len(rows), len(columns)), np.nan)
    for entry in found.layers:
        column, module = place(entry.layer)
        for slot in SLOTS:
            estimate = getattr(entry, slot)
            if estimate is not None:
                values[rows.index((module, slot)), columns.index(column)] = 100 * estimate.value
    figure = Figure(figsize=(style.WIDTH, 1.3 + 0.24 * len(rows)), layout="constrained")
    axes: Axes = figure.subplots()
    limit = float(np.nanmax(np.abs(values))) if np.isfinite(values).any() else 1.0
    image = axes.imshow(values, aspect="auto", cmap="RdBu_r", vmin=-limit, vmax=limit)
    axes.set_yticks(range(len(rows)), [f"{m} {'layer' if s == 'both' else s}" for m, s in rows])
    step = max(1, len(columns) // 32)
    axes.set_xticks(range(0, len(columns), step), columns[::step])
    axes.set_xlabel("decoder layer")
    axes.grid(visible=False)
    figure.colorbar(image, ax=axes, label="added to the loss, alone (%)")
    return figure


def _gradients(assessment: Assessment) -> Figure:
    recipes = assessment.facts["gradients"]["recipes"][1:]
    figure = Figure(figsize=(style.WIDTH, 3.4), layout="constrained")
    axes: Axes = figure.subplots()
    for recipe in recipes:
        errors = [math.nan if e["error"] is None else e["error"] for e in recipe["layers"]]
        axes.plot(range(len(errors)), errors, label=recipe["recipe"], linewidth=1.1)
    names = [entry["layer"] for entry in recipes[0]["layers"]] if recipes else []
    step = max(1, len(names) // 16)
    axes.set_xticks(range(0, len(names), step), names[::step], rotation=35, ha="right")
    style.log_y_axis(axes)
    axes.set_ylabel("error of the gradient")
    if recipes:
        axes.legend(ncols=4)
    return figure


def _outliers(assessment: Assessment) -> Figure:
    inputs = assessment.facts["outliers"]["inputs"]
    figure = Figure(figsize=(style.WIDTH, 3.4), layout="constrained")
    axes: Axes = figure.subplots()
    ratios = [i["amax"] / i["median"] if i["median"] > 0 else math.nan for i in inputs]
    axes.plot(ratios, label="largest over median magnitude", linewidth=1.2)
    axes.plot([i["channel_ratio"] for i in inputs], label="over the median channel", linewidth=1.2)
    axes.plot([i["token_ratio"] for i in inputs], label="over the median token", linewidth=1.2)
    step = max(1, len(inputs) // 16)
    axes.set_xticks(
        range(0, len(inputs), step), [i["layer"] for i in inputs][::step], rotation=35, ha="right"
    )
    style.log_y_axis(axes)
    axes.set_ylabel("ratio, of the layer's input")
    axes.legend(ncols=3)
    return figure


def _figures(assessment: Assessment, folder: Path) -> list[RenderedFigure]:
    wanted: list[tuple[str, str, str, Callable[[], Figure]]] = [
        (
            "gaps",
            "What each recipe costs",
            "Loss against the baseline on the same tokens, without training; bars are 95 % "
            "intervals over documents.",
            partial(_gaps, assessment),
        )
    ]
    found = assessment.map
    if found is not None:
        wanted.append(
            (
                "map",
                f"Where it arises: {found.recipe}",
                "Each layer, and each operand of its forward product, alone in the recipe.",
                partial(_map, found),
            )
        )
    if assessment.facts.get("gradients"):
        wanted.append(
            (
                "gradients",
                "Gradients of one batch",
                "Weight gradient of each linear layer under a recipe against the baseline's.",
                partial(_gradients, assessment),
            )
        )
    wanted.append(
        (
            "outliers",
            "Outliers of the checkpoint",
            "Inputs of the linear layers in one sequence, in the order of the forward pass.",
            partial(_outliers, assessment),
        )
    )
    rendered = []
    for number, (name, title, caption, draw) in enumerate(wanted, 1):
        spec = FigureSpec(name, title, caption, lambda context: None)
        with matplotlib.rc_context({**style.RC, "svg.hashsalt": name}):
            svg, hover = save_figure(draw(), spec, folder)
        rendered.append(RenderedFigure(number, name, title, caption, svg, hover))
    return rendered


def write_page(assessment: Assessment, out: Path) -> Path:
    """Writes OUT/index.html and OUT/figures; returns the path of the page."""
    folder = out / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = environment.get_template("assess.html").render(
        assessment=assessment,
        facts=assessment.facts,
        figures=_figures(assessment, folder),
        forms=drawings.FORMS,
        percent=percent,
        signed=signed,
        token_text=token_text,
        isfinite=math.isfinite,
    )
    page, half = out / "index.html", out / ".index.html.tmp"
    try:
        half.write_text(text, encoding="utf-8")
        os.replace(half, page)
    except OSError:
        half.unlink(missing_ok=True)
        raise
    return page
