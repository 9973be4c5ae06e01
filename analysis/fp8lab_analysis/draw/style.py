"""The common style of figures: fonts, grid, and a fixed colour, marker and line per recipe."""

from __future__ import annotations

import colorsys
import dataclasses
import itertools
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from fp8lab_analysis.judge.attribution import Attribution, attribute_gaps
from fp8lab_analysis.judge.beside import Beside
from fp8lab_analysis.judge.compare import GroupSummary
from fp8lab_analysis.judge.verdicts import Kind
from fp8lab_analysis.read.study import Group, GroupKey, Study

WIDTH = 10.0  # inches, every figure
INK = "#1f2328"
MUTED = "#6a737d"
GRID = "#e4e7eb"
BAND = "#c9ced6"

RC: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 8.5,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#9aa3ad",
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": "#4a525b",
    "ytick.color": "#4a525b",
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "text.color": INK,
    "text.parse_math": False,  # names may hold dollar signs
    "lines.linewidth": 1.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.fonttype": "path",
    "pdf.fonttype": 3,
    "path.simplify": True,
    "path.simplify_threshold": 0.3,
}

# Okabe and Ito's palette without yellow, then Tol's muted palette. The colours are distinguishable
# with every common kind of colour blindness; markers are a second distinction.
_COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#882255",
    "#332288",
    "#999933",
    "#44AA99",
    "#7a5c3e",
    "#AA4499",
)
Marker = str | tuple[int, int, int]
_MARKERS: tuple[Marker, ...] = ("s", "^", "D", "P", "v", (4, 1, 0), "h", "<", ">", "p", "d", "*")
BROKEN_MARKER = "x"  # marker of diverged arms only
BROKEN = "diverged"  # text after the name of a diverged arm
_KNOWN: dict[str, tuple[str, Marker]] = {
    "bf16": ("#1f2329", "o"),  # not INK: the page selects elements by colour
    "fp32": ("#777777", "8"),
    "infir2": (_COLOURS[0], _MARKERS[0]),
    "te_current": (_COLOURS[1], _MARKERS[1]),
    "deepseek_v3": (_COLOURS[2], _MARKERS[2]),
    "mxfp8": (_COLOURS[3], _MARKERS[3]),
    "te_delayed": (_COLOURS[4], _MARKERS[4]),
    "infir2_fp32scale": (_COLOURS[5], _MARKERS[5]),
    "torchao_rowwise": (_COLOURS[6], _MARKERS[6]),
    "fp8_block128": (_COLOURS[7], _MARKERS[7]),
    "e4m3_tensor": (_COLOURS[8], _MARKERS[8]),
    "nvfp4": (_COLOURS[9], _MARKERS[9]),
    "jet_rl": (_COLOURS[10], _MARKERS[10]),
    "torchao_tensorwise": (_COLOURS[11], _MARKERS[11]),
}
_VARIANT_LINES: tuple[Any, ...] = ("-", (0, (4, 1.6)), (0, (1, 1.2)), (0, (5, 1.2, 1, 1.2)))
_VARIANT_HATCHES = ("", "////", "....", "xxxx")


@dataclass(frozen=True)
class SeriesStyle:
    """The style of one group in all figures, and the name of its series in CSV files."""

    name: str
    colour: str
    marker: Marker
    line: Any
    hatch: str
    filled: bool

    def line_kwargs(self) -> dict[str, Any]:
        """Keyword arguments of Axes.plot for a line without markers."""
        return {"color": self.colour, "linestyle": self.line, "label": self.name}

    def marker_kwargs(self, size: float = 5.0) -> dict[str, Any]:
        """Keyword arguments of Axes.plot for the markers."""
        return {
            "marker": self.marker,
            "markersize": size,
            "markerfacecolor": self.colour if self.filled else "white",
            "markeredgecolor": self.colour,
            "markeredgewidth": 1.1,
        }

    def bar_kwargs(self) -> dict[str, Any]:
        """Keyword arguments of Axes.barh."""
        if self.hatch:
            return {
                "facecolor": "white",
                "edgecolor": self.colour,
                "hatch": self.hatch,
                "linewidth": 0.8,
                "label": self.name,
            }
        return {
            "facecolor": self.colour,
            "edgecolor": self.colour,
            "linewidth": 0.8,
            "label": self.name,
        }


def recipe_look(recipe: str) -> tuple[str, Marker]:
    """Returns (colour, marker) of a recipe; depends only on its name."""
    if recipe in _KNOWN:
        return _KNOWN[recipe]
    number = zlib.crc32(recipe.encode())
    return _COLOURS[number % len(_COLOURS)], _MARKERS[(number // 64) % len(_MARKERS)]


def _more_colours() -> Iterator[str]:
    """Yields unlimited colours for reports with more recipes than the palette has: hues separated
    by the golden angle, alternately darker and paler."""
    for number in itertools.count():
        hue = (0.07 + number * (math.sqrt(5.0) - 1.0) / 2.0) % 1.0
        light = (0.34, 0.52, 0.26, 0.62)[number % 4]
        red, green, blue = colorsys.hls_to_rgb(hue, light, 0.55)
        yield f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def assign_styles(groups: Sequence[Group]) -> dict[GroupKey, SeriesStyle]:
    """Returns the style of every group. A recipe without a reserved colour takes the one that its
    name hashes to, or the next free one if another recipe of the report has it. All recipes of a
    report have different colours."""
    recipes = list(dict.fromkeys(group.key.recipe for group in groups))
    looks = {recipe: recipe_look(recipe) for recipe in recipes if recipe in _KNOWN}
    for recipe in sorted(set(recipes) - set(looks)):
        colour, marker = recipe_look(recipe)
        used = {look[0] for look in looks.values()}
        start = _COLOURS.index(colour)
        rotated = _COLOURS[start:] + _COLOURS[:start]
        free = next(item for item in itertools.chain(rotated, _more_colours()) if item not in used)
        looks[recipe] = (free, marker)
    variants = [""] + sorted({group.key.variant for group in groups} - {""})
    styles = {}
    for group in groups:
        index = min(variants.index(group.key.variant), len(_VARIANT_LINES) - 1)
        colour, marker = looks[group.key.recipe]
        styles[group.key] = SeriesStyle(
            group.label, colour, marker, _VARIANT_LINES[index], _VARIANT_HATCHES[index], index == 0
        )
    return styles


@dataclass(frozen=True)
class PlotContext:
    """The data and styles for all figures."""

    study: Study
    summaries: list[GroupSummary]
    styles: dict[GroupKey, SeriesStyle] = field(default_factory=dict)
    beside: Beside | None = None  # another study
    attributions: list[Attribution] = field(default_factory=list)

    @classmethod
    def of(
        cls, study: Study, summaries: list[GroupSummary], beside: Beside | None = None
    ) -> PlotContext:
        """Creates the context with the styles of all groups of the study. Diverged arms have
        crosses as markers and the word BROKEN after their names."""
        styles = assign_styles(study.groups)
        for summary in summaries:
            if summary.verdict.kind is Kind.DIVERGED:
                plain = styles[summary.group.key]
                styles[summary.group.key] = dataclasses.replace(
                    plain, name=f"{plain.name}, {BROKEN}", marker=BROKEN_MARKER
                )
        return cls(study, summaries, styles, beside, attribute_gaps(study, summaries))

    def style(self, group: Group) -> SeriesStyle:
        """Returns the style of a group."""
        return self.styles[group.key]

    def name(self, summary: GroupSummary) -> str:
        """Returns the name of a group in figures."""
        return self.style(summary.group).name


def unbroken(summaries: Sequence[GroupSummary]) -> list[GroupSummary]:
    """Returns the groups that did not diverge; only these enter fronts, means, orders and axis
    limits."""
    return [s for s in summaries if s.verdict.kind is not Kind.DIVERGED]


def provenance_line(study: Study) -> str:
    """Returns recipe and configuration hashes of every group, eight digits each."""
    parts = []
    for group in study.groups:
        recipes = sorted({run.meta.get("recipe_hash", "")[:8] or "?" for run in group.runs})
        configs = sorted({run.meta.get("config_hash", "")[:8] or "?" for run in group.runs})
        parts.append(f"{group.label}: recipe {'/'.join(recipes)}, config {'/'.join(configs)}")
    return "Hashes.  " + "  ·  ".join(parts)


def legend_handle(style: SeriesStyle) -> Line2D:
    """Returns a legend entry with line and marker."""
    return Line2D([], [], linewidth=1.5, **style.line_kwargs(), **style.marker_kwargs())


def finish(
    figure: Figure,
    context: PlotContext,
    title: str,
    handles: Sequence[Any] = (),
) -> Figure:
    """Adds title and legend row; the axes fill the space between them."""
    height = float(figure.get_figheight())
    columns = 1
    rows = 0
    if handles:
        longest = max(len(str(handle.get_label())) for handle in handles)
        columns = max(1, min(len(handles), int(195 / (longest + 9))))
        rows = -(-len(handles) // columns)
    top = 0.34 + 0.19 * rows
    bottom = 0.1
    engine = figure.get_layout_engine()
    engine.set(rect=(0.004, bottom / height, 0.992, 1.0 - (top + bottom) / height))
    figure.text(0.008, 1.0 - 0.08 / height, title, ha="left", va="top", fontsize=11, weight="bold")
    if handles:
        legend = figure.legend(
            handles=list(handles),
            loc="upper left",
            bbox_to_anchor=(0.0, 1.0 - 0.27 / height),
            ncol=columns,
            handlelength=2.6,
            columnspacing=1.6,
            borderaxespad=0.1,
        )
        legend.set_in_layout(False)
    return figure


def group_handles(context: PlotContext, summaries: Sequence[GroupSummary]) -> list[Line2D]:
    """Returns one legend entry per group."""
    return [legend_handle(context.style(s.group)) for s in summaries]


def soften(axes: Axes, axis: str) -> None:
    """Keeps the grid of one axis only."""
    axes.grid(False)
    axes.grid(True, axis=axis)


def plain_numbers(axis: Any) -> None:
    """Labels a log axis with plain numbers, only at the decades."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def log_y_axis(axes: Axes) -> None:
    """Makes the y axis logarithmic with plain numbers, labelled between decades only if it spans
    about one decade. The axis remains linear if nothing positive is drawn."""
    if not math.isfinite(axes.dataLim.minposy):
        return
    axes.set_yscale("log")
    low, high = sorted(axes.yaxis.get_view_interval())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if low > 0.0 and high / low < 12.0:
        axes.yaxis.set_minor_locator(LogLocator(subs=(2.0, 3.0, 5.0)))
        axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.yaxis.set_minor_formatter(NullFormatter())


def recipe_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Makes one row per recipe, the first on top, with light horizontal guides."""
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_yticks(range(len(labels)), labels)
    axes.tick_params(axis="y", length=0)
    soften(axes, "x")


def colour_labels(axes: Axes, context: PlotContext, rows: Sequence[GroupSummary]) -> None:
    """Colours row labels like their recipes."""
    for label, summary in zip(axes.get_yticklabels(), rows):
        label.set_color(context.style(summary.group).colour)
        label.set_fontsize(8.5)
        label.set_fontweight("bold")


def note(axes: Axes, row: float, text: str, apart: bool = False) -> None:
    """Writes a muted remark at the start of a row without data. `apart` separates it from drawings
    behind it."""
    box = {"boxstyle": "square,pad=0.2", "facecolor": "white", "linewidth": 0} if apart else None
    axes.annotate(
        text,
        (0.02, row),
        xycoords=("axes fraction", "data"),
        va="center",
        fontsize=7,
        color=MUTED,
        bbox=box,
    )


def log_axis(axes: Axes, values: Sequence[float]) -> float:
    """Makes an x axis of percentages: logarithmic if the positive values span more than a factor of
    20, else linear from zero, with space for a number at the right. Returns the left edge, at which
    zeros are drawn."""
    positive = sorted(v for v in values if math.isfinite(v) and v > 0.0)
    if not positive or positive[-1] < 20.0 * positive[0]:
        axes.set_xlim(0.0, 1.55 * positive[-1] if positive else 1.0)
        return 0.0
    low = max(positive[0], 1e-6 * positive[-1]) / 3.0
    axes.set_xscale("log")
    axes.set_xlim(low, positive[-1] * (positive[-1] / low) ** 0.55)
    last = min(2, math.floor(math.log10(axes.get_xlim()[1])))
    exponents = range(math.ceil(math.log10(low)), last + 1)
    most = 2 if low < 1e-3 else 3  # number of labels that fit: small numbers are long
    stride = -(-len(exponents) // most) or 1
    decades = [10.0**e for e in exponents[::stride]]
    axes.set_xticks(decades, [f"{decade:g}" for decade in decades])
    axes.xaxis.set_minor_locator(NullLocator())
    return low


def short_layer(name: str) -> str:
    """Returns "3 mlp.down" for "layers.3.mlp.down"."""
    parts = name.split(".")
    if len(parts) > 2 and parts[0] == "layers":
        return f"{parts[1]} {'.'.join(parts[2:])}"
    return name


def quantized_summaries(context: PlotContext) -> list[GroupSummary]:
    """Returns the groups with at least one logged quantized operand."""
    return [s for s in context.summaries if any(o.quantized for o in s.operands.values())]
