"""The figures of a report: drawing functions, captions and output files."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from markupsafe import Markup

from fp8lab_analysis.draw import (
    attribution_plot,
    beside_plot,
    channel_plot,
    layer_plots,
    operand_plots,
    outlier_plot,
    overview_plot,
    pareto_plot,
    plots,
    style,
    warning_plot,
)
from fp8lab_analysis.draw.drawn import write_drawn
from fp8lab_analysis.draw.hover import hover_data
from fp8lab_analysis.draw.style import PlotContext

PNG_DPI = 160
FORMS = ("png", "pdf", "svg", "csv")  # output files of every figure


@dataclass(frozen=True)
class Of:
    """A sentence of a caption about a part of the figure; used only if that part is drawn."""

    part: str  # text of a title, an axis, the legend or a label in the figure
    text: str


Caption = str | tuple[str | Of, ...]


@dataclass(frozen=True)
class FigureSpec:
    """One figure of the report: its drawing function and its caption."""

    name: str
    title: str
    caption: Caption
    draw: Callable[[PlotContext], Figure | None]
    on_request: bool = False  # True: the report does not mention its absence


LEAVES = (
    "What diverged does not set the limits of an axis: a triangle at the edge says where such an "
    "arm leaves the panel, and how far it goes there."
)

FIGURES = (
    FigureSpec(
        "overview",
        "At a glance",
        (
            "One row per recipe. Recipes of two or more seeds are sorted by their gap within each "
            "variant; those of one seed follow in the order of the study, and no order follows "
            "from their numbers; what diverged stands last, in no order. ",
            Of(
                "gap",
                "Gap: the loss behind the verdict minus that of the paired baseline, in percent "
                "of the latter; thin bars are the interval of the test of a difference, ticks "
                "the single seeds. Grey is the margin: a recipe is equivalent where the interval "
                "of the two one-sided tests, mostly narrower, lies inside it (the thick bar, drawn "
                "where the thin one reaches further), and worse or better where a thin bar leaves "
                "out zero. ",
            ),
            Of(
                "exact match",
                "Exact match: 95 % interval of the questions asked, which leaves out the seeds. ",
            ),
            Of(
                "SQNR",
                "SQNR: the marker is the mean over operands, the arrow the weakest operand. ",
            ),
            Of(
                "worst underflow",
                "Underflow: share of elements flushed from nonzero to zero in the operand where "
                "that is worst.",
            ),
        ),
        overview_plot.overview_figure,
    ),
    FigureSpec(
        "beside",
        "Gaps of two studies",
        "Filled: this study, hollow: the one it is laid beside; bars are the intervals of each "
        "study's own tests, grey its margin. Nothing is tested between the two.",
        beside_plot.beside_figure,
        on_request=True,
    ),
    FigureSpec(
        "attribution",
        "Sources of the gap",
        "A panel per group of sources: from the gap with every source of error exact (without such "
        "an arm: from no gap) to the gap of the recipe as it is. A bar begins where the last one "
        "ended and is as long as what the gap loses when that source alone becomes exact; the "
        "line across its end is the interval of that number over seeds. The remainder is what the "
        "bars of the panel leave of the whole. Diamonds, from the left edge of the first bar: the "
        "gap that the source makes alone, with everything else exact, and its interval. Scales "
        "have no remainder, for they change no value by themselves. With one seed nothing is "
        "known of the noise, and no order follows.",
        attribution_plot.attribution_figure,
        on_request=True,
    ),
    FigureSpec(
        "loss",
        "Training loss and gap",
        (
            "Smoothed training loss, one column per stage, each with its own axis. ",
            Of(
                "loss gap to paired",
                "Lower row: the gap to the baseline run of the same seed and data order, so that "
                "the noise of the batches cancels; above zero the loss is higher than the "
                "baseline's. With one seed the tint is the spread of the unsmoothed gap, which "
                "says nothing about another seed. ",
            ),
            "Thick lines are means over seeds, thin lines single seeds. ",
            Of(
                "seed band",
                "Grey: the band of the baseline's own seeds, most of which a pair shares. ",
            ),
            Of("not finite", "Dotted vertical lines mark a loss that stopped being finite. "),
            Of("▲", LEAVES),
        ),
        plots.loss_figure,
    ),
    FigureSpec(
        "pareto",
        "Error against cost",
        (
            "A point per recipe. Few bits, a small gap and a high SQNR are good. ",
            Of(
                "gap (%",
                "Gap: as in the first figure, the bar is the interval of the test of a "
                "difference, grey the margin; what diverged has none. ",
            ),
            Of(
                "scale bits",
                "Scale bits are those stored for an element of the quantized operands. ",
            ),
            Of(
                "tokens per second",
                "Speed is the median of tokens per second between two logged steps on the device "
                "that the run was on. ",
            ),
            Of(
                "front",
                "Dotted: the recipes of two or more seeds that did not diverge and that no other "
                "one of the variant beats in both numbers; it leaves out the noise.",
            ),
        ),
        pareto_plot.pareto_figure,
    ),
    FigureSpec(
        "sqnr_heat_map",
        "SQNR of every tensor",
        "Every row is one operand of one layer, ordered by slot and then from input to output (of "
        "many layers by module, then by block, the weakest rows by name); every column is a logged "
        "step; means over seeds. Dark rows are tensors that the recipe "
        "represents badly, a row that darkens to the right is getting worse. White dashes mark "
        "the start of a stage; grey is what has no finite value: an all-zero or an exact tensor, a "
        "delayed scale that knew no amax yet. All panels share one colour scale. SQNR weighs every "
        "element by its energy: where a few outlier channels carry most of it, what happens to the "
        "rest shows in the underflow instead.",
        operand_plots.sqnr_heat_map_figure,
    ),
    FigureSpec(
        "sqnr",
        "SQNR by operand",
        "Mean over layers and logged steps; whiskers are one standard deviation over seeds. 6 dB "
        "is one bit of precision; a bar without whiskers is one seed. Tensors that are all zero or "
        "exact have no finite SQNR and are in no mean; tables/operands.csv counts them.",
        operand_plots.sqnr_bars_figure,
    ),
    FigureSpec(
        "layers",
        "Error by layer",
        "A panel per operand, layers from input to output; of more than 16 layers those of one "
        "module stand together, block after block, and what is apart from the rest is named by "
        "block and module. Upper row: SQNR; lower row: share of nonzero elements that become zero. "
        "Means over logged steps and seeds.",
        layer_plots.layers_figure,
    ),
    FigureSpec(
        "histograms",
        "Magnitudes against the range of the format",
        "Share of the nonzero elements by exponent, relative to the largest scale of their tensor "
        "and rounded to whole exponents: mean over tensors, logged steps and seeds. What lies on "
        "green is a normal number of the format, on yellow it loses bits, left of both it becomes "
        "zero. Where a tensor has several scales, smaller ones move that edge to the left for "
        "their tiles, as far as the pale field (median of the tensors).",
        layer_plots.histogram_figure,
    ),
    FigureSpec(
        "range_losses",
        "Underflow and saturation",
        (
            Of(
                "underflow",
                "Underflow: share of elements that are nonzero before and zero after "
                "quantization. ",
            ),
            Of(
                "saturation",
                "Saturation: share of elements above the largest value their tile can represent, "
                "which scales from the present tensor avoid by construction. ",
            ),
            "Mean over layers and logged steps.",
        ),
        operand_plots.range_loss_figure,
    ),
    FigureSpec(
        "outliers",
        "Outliers",
        "Left: each layer's input at the last logged step of every stage, of many layers by "
        "module, block after block. Right: the worst layer "
        "over the run, one line per seed; the dashed line is the stage boundary. The channel "
        "outlier ratio is the largest over the median channel amax: one scale for a whole tensor "
        "spends log2 of it in octaves of range. Kurtosis is uncentred, 3 for a Gaussian.",
        outlier_plot.outlier_figure,
    ),
    FigureSpec(
        "channels",
        "Persistence of the largest channels",
        (
            "A run logs the eight channels of largest amax of every operand. Jaccard index: how "
            "many channels two logged steps have in common, over how many either has; 1 is the "
            "same eight, and two random choices out of n channels have about 4/n. Left: from one "
            "logged step to "
            "the next. Next to it: what is left of the first ones, drift away from 1. ",
            Of(
                "with end of",
                "Right: from the end of one stage to that of the next, layer by layer; the dashed "
                "line is the stage boundary. ",
            ),
            "Means over seeds. Where no channel stands out, the order of near equal ones is "
            "noise: read it beside the channel outlier ratio.",
        ),
        channel_plot.channel_figure,
    ),
    FigureSpec(
        "gradient_norm",
        "Gradient norm",
        (
            "Before clipping. ",
            Of(
                "ratio to paired",
                "A ratio that drifts from one announces divergence earlier than the loss. ",
            ),
            Of("▲", LEAVES),
        ),
        plots.gradient_norm_figure,
    ),
    FigureSpec(
        "warnings",
        "Detectors of training that is about to break",
        "The score of every detector that a run watched itself with: its value by its threshold, "
        "so that it warns from the dashed line on. Dotted vertical lines, in the colour of the "
        "recipe, are the steps at which a loss stopped being finite, began to grow beyond "
        "recovery, or left the band of the baseline's seeds: what crosses the line to the left of "
        "its own one warned in time. A crossing in a run without a dotted line is a false alarm. "
        "Values are deviations of a logarithm from the run's own window before (outlier channels, "
        "kurtosis, scale drift, gradient norm), the share of the way to alignment that gate and "
        "up weights have moved since the start (swiglu alignment), and amax over the "
        "range of a scale from earlier steps (amax lag); below zero they are not drawn, "
        "above 1000 at 1000.",
        warning_plot.warning_figure,
    ),
    FigureSpec(
        "scales",
        "Range of the scales",
        "From the smallest to the largest decode scale over tiles, layers and logged steps, as "
        "powers of two; the tick is the median of the tensors' extremes. All-zero tiles are left "
        "out. A wide bar is range that a coarser tile would have to give up.",
        operand_plots.scale_range_figure,
    ),
    FigureSpec(
        "held_out",
        "Held-out loss and exact match",
        (
            "Loss on held-out text; whiskers are one standard deviation over seeds. ",
            Of(
                "exact match",
                "Lower row: share of greedy answers that match exactly, over all seeds, with the "
                "95 % Wilson interval of the problems of one seed. ",
            ),
            Of("▲", LEAVES),
        ),
        plots.held_out_figure,
    ),
)


@dataclass(frozen=True)
class RenderedFigure:
    """A figure for the page."""

    number: int
    name: str
    title: str
    caption: str
    svg: Markup
    hover: list[dict[str, Any]]  # data from hover.py


def _words(figure: Figure) -> str:
    """Returns all texts in the panels and legends of a figure."""
    said: list[str] = []
    for axes in figure.axes:
        if not axes.get_visible():
            continue
        said += [axes.get_title(), axes.get_title(loc="left")]
        said += [axes.get_xlabel(), axes.get_ylabel()]
        said += [text.get_text() for text in (*axes.texts, *axes.get_yticklabels())]
        said += [str(line.get_label()) for line in axes.lines]
    said += [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    return "\n".join(said)


def caption_of(spec: FigureSpec, figure: Figure) -> str:
    """Returns the caption of a figure, without sentences about parts that were not drawn."""
    said = _words(figure)
    parts = (spec.caption,) if isinstance(spec.caption, str) else spec.caption
    told = [part if isinstance(part, str) else part.text for part in parts if _stands(part, said)]
    if f", {style.BROKEN}" in said or f"\n{style.BROKEN}" in said:
        told.append(" Arms that diverged are named so; their points are crosses.")
    return "".join(told).strip().replace("  ", " ")


def _stands(part: str | Of, said: str) -> bool:
    return isinstance(part, str) or part.part in said


def _renumber_ids(text: str, name: str) -> str:
    """Renames ids to NAME-1, NAME-2, ... in order of appearance and removes unused ones. The
    original ids contain memory addresses, which would make every report differ."""
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    listed = [item for item in re.findall(r'\bid="([^"]+)"', text) if item in used]
    number = {item: f"{name}-{index}" for index, item in enumerate(dict.fromkeys(listed), 1)}
    text = re.sub(
        r'\s\bid="([^"]+)"', lambda m: f' id="{number[m[1]]}"' if m[1] in number else "", text
    )
    return re.sub(r'(href="#|url\(#)([^")]+)', lambda m: m[1] + number.get(m[2], m[2]), text)


def inline_svg(text: str, name: str, title: str) -> Markup:
    """Returns the svg element of a file for embedding: without prolog, metadata and namespace
    addresses, with ids that are unique on the page, coordinates rounded to a hundredth of a point,
    and a label for screen readers."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text)
    text = text.replace("xlink:href", "href")
    text = _renumber_ids(text, name)
    text = re.sub(r'\bd="[^"]*"', lambda d: re.sub(r"(\.\d\d)\d+", r"\1", d.group(0)), text)
    head = re.match(r"<svg[^>]*>", text)
    assert head is not None
    box = re.search(r'viewBox="[^"]*"', head.group(0))
    label = f'<svg role="img" aria-label="{title}" {box.group(0) if box else ""}>'
    body = re.sub(r"\n\s*", "\n", text[head.end() :])
    return Markup(label + body)


def save_figure(
    figure: Figure, spec: FigureSpec, folder: Path
) -> tuple[Markup, list[dict[str, Any]]]:
    """Writes folder/<name> in all FORMS (the CSV has the drawn numbers); returns the figure as
    inline SVG, and the hover data of the page. Lays out once and uses the canvases directly:
    Figure.savefig would lay out and draw everything twice for each file."""
    figure.set_dpi(PNG_DPI)
    agg = FigureCanvasAgg(figure)
    layout = figure.get_layout_engine()
    if layout is not None:
        layout.execute(figure)
    figure.set_layout_engine("none")
    if "png" in FORMS:
        agg.print_png(folder / f"{spec.name}.png")
    if "pdf" in FORMS:
        pdf = FigureCanvasPdf(figure)
        pdf.print_pdf(folder / f"{spec.name}.pdf", metadata={"CreationDate": None})
    buffer = io.StringIO()
    FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})
    (folder / f"{spec.name}.svg").write_text(buffer.getvalue(), encoding="utf-8")
    write_drawn(figure, folder / f"{spec.name}.csv")
    return inline_svg(buffer.getvalue(), spec.name, spec.title), hover_data(figure)


def render_figures(
    context: PlotContext, folder: Path
) -> tuple[list[RenderedFigure], dict[str, str]]:
    """Draws every figure that the data allow. Also returns the names of figures that failed, with
    the reason: matplotlib fails at numbers near the double-precision maximum, which occur in
    diverged runs."""
    rendered: list[RenderedFigure] = []
    failed: dict[str, str] = {}
    for spec in FIGURES:
        try:
            with matplotlib.rc_context({**style.RC, "svg.hashsalt": spec.name}):
                figure = spec.draw(context)
                if figure is None:
                    continue
                svg, hover = save_figure(figure, spec, folder)
        except (ArithmeticError, LookupError, ValueError) as error:
            failed[spec.title] = f"{type(error).__name__}: {error}"
            for suffix in FORMS:
                (folder / f"{spec.name}.{suffix}").unlink(missing_ok=True)
            continue
        number = len(rendered) + 1
        caption = caption_of(spec, figure)
        rendered.append(RenderedFigure(number, spec.name, spec.title, caption, svg, hover))
    return rendered, failed
