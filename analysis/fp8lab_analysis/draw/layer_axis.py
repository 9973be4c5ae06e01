"""The axis of a panel with one position per layer, and the names of conspicuous layers.

With few layers each is named, from input to output. Many layers are sorted by module, then by
block: neighbours then have similar values, and a layer that differs from its neighbours is visible
and named by block and module.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes

from fp8lab_analysis.draw.drawn import name_columns
from fp8lab_analysis.draw.style import INK, MUTED, short_layer

MOST_NAMED = 16  # largest number of layers that have one tick each
MOST_PEAKS = 3  # largest number of peaks that are named in a panel


def layer_module(name: str) -> str:
    """Returns "mlp.down" for "layers.3.mlp.down"; other names are unchanged."""
    parts = name.split(".")
    return ".".join(parts[2:]) if len(parts) > 2 and parts[0] == "layers" else name


@dataclass(frozen=True)
class LayerAxis:
    """Layers in the order of their positions."""

    layers: list[str]
    starts: list[int]  # first position of every module; empty if each layer has a tick

    @classmethod
    def of(cls, layers: Sequence[str]) -> LayerAxis:
        """Creates the axis of `layers`, given from input to output."""
        if len(layers) <= MOST_NAMED:
            return cls(list(layers), [])
        modules = list(dict.fromkeys(map(layer_module, layers)))
        ordered = [[name for name in layers if layer_module(name) == m] for m in modules]
        ends = np.cumsum([0, *map(len, ordered)])
        return cls([name for group in ordered for name in group], [int(end) for end in ends[:-1]])

    def section_names(self) -> list[str]:
        """Returns the modules, one for each start."""
        return [layer_module(self.layers[start]) for start in self.starts]

    def section_middles(self) -> list[float]:
        """Returns the middles of the modules' positions."""
        ends = [*self.starts[1:], len(self.layers)]
        return [(start + end - 1) / 2.0 for start, end in zip(self.starts, ends)]

    def label_columns(self, axes: Axes, named: bool) -> None:
        """Draws ticks below a panel, optionally with names, and lines between modules."""
        name_columns(axes, self.layers)
        for start in self.starts[1:]:
            axes.axvline(start - 0.5, color=MUTED, linewidth=0.6, linestyle=":")
        if self.starts:
            axes.grid(False, axis="x")
            ticks, names = self.section_middles(), self.section_names()
            axes.tick_params(axis="x", length=0)
        else:
            ticks, names = [*range(len(self.layers))], [short_layer(name) for name in self.layers]
        axes.set_xticks(ticks, names if named else [], rotation=90, fontsize=6)

    @property
    def caption(self) -> str:
        """Returns the axis label."""
        return "module, block by block" if self.starts else "layer, input to output"


def peaks(
    values: npt.ArrayLike, distance: float, apart: int = 1, most: int = MOST_PEAKS
) -> list[int]:
    """Returns at most `most` positions with values at least `distance` above the median, largest
    first, no two of them within `apart` positions."""
    data = np.asarray(values, dtype=np.float64)
    known = np.isfinite(data)
    if int(known.sum()) < 3:
        return []
    limit = float(np.median(data[known])) + distance
    found: list[int] = []
    for place in np.argsort(np.where(known, -data, math.inf), kind="stable"):
        if not known[place] or data[place] < limit or len(found) == most:
            break
        if all(abs(int(place) - other) > apart for other in found):
            found.append(int(place))
    return found


def name_peaks(axes: Axes, axis: LayerAxis, values: npt.ArrayLike, places: Sequence[int]) -> None:
    """Draws layer names next to their values, unless the axis names every layer."""
    if not axis.starts:
        return
    data = np.asarray(values, dtype=np.float64)
    for place in places:
        right = place < 0.6 * len(axis.layers)
        axes.annotate(
            short_layer(axis.layers[place]),
            (place, float(data[place])),
            xytext=(4 if right else -4, 0),
            textcoords="offset points",
            ha="left" if right else "right",
            va="center",
            fontsize=6,
            color=INK,
        )
