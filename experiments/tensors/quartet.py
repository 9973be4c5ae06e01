"""Quartet: the error of MXFP4 quantizers on a unit Gaussian."""

from __future__ import annotations

import numpy as np
from experiment import Experiment, Quantity, Stated, Values, decoded, main, normal

from fp8lab_analysis.claims import Claim

# Words by what they stand for. A static scale of 1/2 is what QuEST's 2.922 deviations / 6 become
# as a power of two on a Gaussian of deviation 1; QuEST's own scale, from the deviation of each
# group, is no key of a quantizer.
SCALES = {
    "static 1/2": "e2m1/tensor/static:0.5",
    "group amax, FP32": "e2m1/1x32/fp32",
    "group amax, E8M0 up": "e2m1/mx32/rceil",
    "group amax, E8M0 OCP": "e2m1/mx32",
}
MSE = "mean squared error"


def measure(seed: int) -> Values:
    rng = np.random.default_rng(seed)
    values = Values()
    x = normal(rng, 1024, 1024)
    exact = x.astype(np.float64)
    for name, words in SCALES.items():
        for rounding, more in (("nearest", ""), ("stochastic", "/stochastic")):
            error = decoded(x, words + more, seed=seed) - exact
            values.put(MSE, rounding, name, 100.0 * float(np.mean(error**2)))
    return values


EXPERIMENT = Experiment(
    name="quartet",
    title="Quartet: error of MXFP4 on a unit Gaussian",
    stated="""
Quartet (Castro et al. 2025, table 2) gives the mean squared error of its two quantizers on
Gaussian data: 1.3e-2 to nearest with QuEST's clipping scale, forward, and 2.8e-2 stochastic with
the scale of the largest element, backward. QuEST's scale, from the deviation of each group, is
not there; on data of deviation 1 it becomes the power of two 1/2, which a static scale expresses.
Measured on 2^20 draws of a standard normal, groups of 32; on Gaussian data a Hadamard transform
of 32 changes nothing.

Stated before the first run: both numbers within 10 %, nearest with the static scale, and one of
the stochastic quantizers with a group's amax.
""",
    seeds=8,
    measure=measure,
    quantities=[Quantity(MSE, "1e-2")],
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
    ],
    caption="mean squared error of E2M1 on a unit Gaussian by its scale; bars are 95 % over seeds.",
    remarks="""
- Both numbers of the paper are met: 1.27e-2 to nearest, 2.71e-2 stochastic with scales rounded up
  to powers of two. Under OCP's scales, which may be too small, and under FP32 scales the
  stochastic error is 2.52e-2 and 2.06e-2.
- A group's amax in FP32 is better than the clipping scale (1.02e-2), whose advantage is over
  powers of two (1.33e-2): it is the rounding of scales that clipping makes up for here.
""",
)

if __name__ == "__main__":
    main(EXPERIMENT)
