"""Quartet: the error of MXFP4 quantizers on a unit Gaussian."""

from __future__ import annotations

import numpy as np
from experiment import Experiment, Quantity, Stated, Values, decoded, main, normal

from fp8lab_analysis.judge.claims import Claim

# Words by what they stand for. A static scale of 1/2 is what QuEST's 2.922 deviations / 6 become
# as a power of two on a Gaussian of deviation 1.
QUEST = "e2m1/1x32/e8m0/std:2.92247856"
SCALES = {
    "static 1/2": "e2m1/tensor/static:0.5",
    "group amax, FP32": "e2m1/1x32/fp32",
    "group amax, E8M0 up": "e2m1/mx32/rceil",
    "group amax, E8M0 OCP": "e2m1/mx32",
    "group amax, 4/3 OCP": "e2m1/1x32/pow2/ocp_floor/scale_factor:1.3333334",
    "QuEST, floor": f"{QUEST}/floor",
    "QuEST, nearest": f"{QUEST}/scale_rounding:nearest",
    "QuEST, ceil": f"{QUEST}/ceil",
}
MSE = "mean squared error"
OCTAVE = "mean squared error over an octave"
STEPS = 8  # of the octave


def errors(x: np.ndarray, words: str, seed: int) -> float:
    """Mean squared error in 1e-2 of the mean square that a Gaussian of x's deviation has."""
    exact = x.astype(np.float64)
    return 100.0 * float(np.mean((decoded(x, words, seed=seed) - exact) ** 2))


def measure(seed: int) -> Values:
    rng = np.random.default_rng(seed)
    values = Values()
    x = normal(rng, 1024, 1024)
    deviations = np.exp2(np.arange(STEPS) / STEPS)
    octave = [normal(rng, 256, 1024) * np.float32(deviation) for deviation in deviations]
    for name, words in SCALES.items():
        for rounding, more in (("nearest", ""), ("stochastic", "/stochastic")):
            values.put(MSE, rounding, name, errors(x, words + more, seed))
            if name == "static 1/2":
                continue
            relative = [
                errors(part, words + more, seed) / deviation**2
                for part, deviation in zip(octave, deviations)
            ]
            values.put(OCTAVE, rounding, name, float(np.mean(relative)))
    return values


EXPERIMENT = Experiment(
    name="quartet",
    title="Quartet: error of MXFP4 on a unit Gaussian",
    stated="""
Quartet (Castro et al. 2025, table 2) gives the mean squared error of its two quantizers on
Gaussian data: 1.3e-2 to nearest with QuEST's clipping scale, forward, and 2.8e-2 stochastic with
the scale of the largest element, backward. QuEST's scale is the power of two next to 2.922
deviations of each group over 6; the released emulation rounds it down. On data of deviation 1 it
mostly becomes 1/2, which a static scale expresses. Backward the released scale is 4/3 of OCP's,
under which nothing saturates. Measured on 2^20 draws of a standard normal, groups of 32, and on
draws of 8 deviations from 1 to 2, of which powers of two see all alike; on Gaussian data a
Hadamard transform of 32 changes nothing.

Stated before the first run: both numbers within 10 %, nearest with the static scale, and one of
the stochastic quantizers with a group's amax. Stated from an emulation of the released code,
before QuEST's own scale was here, each within 5 %: rounded to nearest it has 1.33e-2 over an
octave, rounded down 2.3e-2; the stochastic quantizer with 4/3 of OCP's scale has 2.83e-2.
""",
    seeds=8,
    measure=measure,
    quantities=[Quantity(MSE, "1e-2"), Quantity(OCTAVE, "1e-2")],
    axis="scale",
    claims=[
        Stated(
            Claim("nearest, static 1/2", "1e-2", low=1.2, high=1.46),
            lambda v: v.get(MSE, "nearest", "static 1/2"),
        ),
        Stated(
            Claim("stochastic, group amax, E8M0 up", "1e-2", low=2.52, high=3.08),
            lambda v: v.get(MSE, "stochastic", "group amax, E8M0 up"),
        ),
        Stated(
            Claim("stochastic, group amax, E8M0 OCP", "1e-2", low=2.52, high=3.08),
            lambda v: v.get(MSE, "stochastic", "group amax, E8M0 OCP"),
        ),
        Stated(
            Claim("stochastic, group amax, FP32", "1e-2", low=2.52, high=3.08),
            lambda v: v.get(MSE, "stochastic", "group amax, FP32"),
        ),
        Stated(
            Claim("nearest, QuEST rounded to nearest, octave", "1e-2", low=1.26, high=1.4),
            lambda v: v.get(OCTAVE, "nearest", "QuEST, nearest"),
        ),
        Stated(
            Claim("nearest, QuEST rounded down, octave", "1e-2", low=2.18, high=2.42),
            lambda v: v.get(OCTAVE, "nearest", "QuEST, floor"),
        ),
        Stated(
            Claim("stochastic, 4/3 of OCP", "1e-2", low=2.69, high=2.97),
            lambda v: v.get(MSE, "stochastic", "group amax, 4/3 OCP"),
        ),
    ],
    caption="mean squared error of E2M1 on a unit Gaussian by its scale; bars are 95 % over seeds.",
    remarks="""
- Both numbers of the paper are met: 1.27e-2 to nearest, 2.71e-2 stochastic with scales rounded up
  to powers of two, 2.82e-2 with 4/3 of OCP's. Under OCP's own scales, which may be too small, and
  under FP32 scales the stochastic error is 2.52e-2 and 2.06e-2.
- QuEST's scale meets the paper's number rounded to nearest (1.34e-2 over an octave); rounded down,
  as in the released emulation, it has 2.23e-2, and 2.69e-2 at deviation 1, where 1/4 clips at 1.5
  deviations.
- A group's amax in FP32 is better than the clipping scale (1.02e-2), whose advantage is over
  powers of two (1.37e-2 over an octave rounded up, 1.34e-2 OCP): it is the rounding of scales that
  clipping makes up for here.
""",
)

if __name__ == "__main__":
    main(EXPERIMENT)
