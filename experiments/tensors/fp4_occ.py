"""FP4 with outlier clamping and compensation."""

from __future__ import annotations

import numpy as np
from experiment import Experiment, Quantity, Stated, Values, cosine, main, normal, product, sqnr_db

import fp8lab
from fp8lab_analysis.judge.claims import Claim

ARMS = {"none": "", "clamp": "/clamp:0.99", "compensated": "/clamp:0.99:compensated"}
TOKENS, FEATURES, OUTPUTS, CHANNELS = 512, 1024, 256, 4
GAINS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


def measure(seed: int) -> Values:
    rng = np.random.default_rng(seed)
    values = Values()
    base = normal(rng, TOKENS, FEATURES)
    w = np.float32(0.02) * normal(rng, OUTPUTS, FEATURES)
    channels = rng.choice(FEATURES, CHANNELS, replace=False)
    for gain in GAINS:
        x = base.copy()
        x[:, channels] *= np.float32(gain)
        exact = product(x, w)
        for name, words in ARMS.items():
            y = fp8lab.gemm(
                x,
                w,
                "sm90_wgmma_fp8/fast/fp32",
                operand_a="e2m1/row" + words,
                operand_b="e2m1/row",
            )
            values.put("SNR", name, gain, sqnr_db(y, exact))
            values.put("cosine", name, gain, cosine(y, exact))
    return values


def lead(values: Values, quantity: str, better: str, worse: str, gain: float) -> float:
    return values.get(quantity, better, gain) - values.get(quantity, worse, gain)


EXPERIMENT = Experiment(
    name="fp4_occ",
    title="FP4 with outlier clamping and compensation",
    stated="""
"Optimizing Large Language Model Training Using FP4 Quantization" clamps activations between two
quantiles before E2M1 and adds what the clamp takes away as a sparse product in high precision;
its table 1 has cosine and SNR of activations rise from none to clamp to compensated (92.2, 98.8,
99.6 %; 8.3, 14.2, 15.3 dB). Measured here: the output of a forward GEMM, 512 tokens, 1024
features, 256 outputs, x standard normal with 4 of the 1024 channels times a gain, w of deviation
0.02, both in E2M1 with one scale a row, x clamped at 0.99 as in the recipe `fp4_occ`.

Stated before the first run: the paper's order at a gain of 8, by at least 1 dB for each step.
""",
    seeds=8,
    measure=measure,
    quantities=[Quantity("SNR", "dB"), Quantity("cosine")],
    axis="gain of the outlier channels",
    log_axis=True,
    claims=[
        Stated(
            Claim("SNR, clamp over none, gain 8", "dB", low=1.0),
            lambda v: lead(v, "SNR", "clamp", "none", 8.0),
        ),
        Stated(
            Claim("SNR, compensated over clamp, gain 8", "dB", low=1.0),
            lambda v: lead(v, "SNR", "compensated", "clamp", 8.0),
        ),
        Stated(
            Claim("SNR, compensated over none, gain 8", "dB", low=2.0),
            lambda v: lead(v, "SNR", "compensated", "none", 8.0),
        ),
        Stated(
            Claim("SNR, compensated over none, gain 32", "dB", low=2.0),
            lambda v: lead(v, "SNR", "compensated", "none", 32.0),
        ),
        Stated(
            Claim("cosine, compensated minus none, gain 8", low=0.005),
            lambda v: lead(v, "cosine", "compensated", "none", 8.0),
        ),
    ],
    caption="output of the GEMM by the gain of its outlier channels; bars are 95 % over seeds.",
    remarks="""
- Compensation pays at every gain, from 0.6 dB without outliers to 15 dB at a gain of 32, and its
  cosine stays above 0.988.
- **The clamp alone did not**: it is behind no clamp at every gain, by 2.2 dB at 8 and 6.4 dB at
  32, since in whole channels of outliers the signal is what it cuts. The paper's order none <
  clamp needs outliers that hold little of the tensor's energy and yet set the scale of their
  rows, which these channels are not.
""",
)

if __name__ == "__main__":
    main(EXPERIMENT)
