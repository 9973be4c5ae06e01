"""DeepSeek-V3: gradients in groups of a token or in blocks of tokens."""

from __future__ import annotations

import numpy as np
from experiment import Experiment, Quantity, Stated, Values, main, normal, product

import fp8lab
from fp8lab_analysis.judge.claims import Claim

TOKENS, OUTPUTS, INPUTS = 512, 512, 256
OCTAVES = (0.0, 4.0, 8.0, 12.0, 16.0, 20.0)
TILES = ("1x128", "128x128")
ERROR, FLUSHED = "error of dx, ninth decile of tokens", "dy flushed to zero"
SPEC = "sm90_wgmma_fp8/promote:128/fp32"


def measure(seed: int) -> Values:
    rng = np.random.default_rng(seed)
    values = Values()
    base = normal(rng, TOKENS, OUTPUTS)
    w = np.float32(0.02) * normal(rng, INPUTS, OUTPUTS)
    place = rng.random(size=(TOKENS, 1))
    for octaves in OCTAVES:
        # Gains of tokens are uniform in octaves, and powers of two: they change no significand.
        dy = base * np.exp2(-np.round(octaves * place)).astype(np.float32)
        exact = product(dy, w)
        for tile in TILES:
            dx = fp8lab.gemm(dy, w, SPEC, operand_a=f"e4m3fn/{tile}", operand_b="e4m3fn/128x128")
            distance = np.linalg.norm(dx - exact, axis=1) / np.linalg.norm(exact, axis=1)
            values.put(ERROR, tile, octaves, 100.0 * float(np.quantile(distance, 0.9)))
            codes = fp8lab.quantize(dy, f"e4m3fn/{tile}").codes
            lost = float(np.mean((fp8lab.decode(codes) == 0.0) & (dy != 0.0)))
            values.put(FLUSHED, tile, octaves, 100.0 * lost)
    return values


def ratio(values: Values, octaves: float) -> float:
    return values.get(ERROR, "128x128", octaves) / values.get(ERROR, "1x128", octaves)


EXPERIMENT = Experiment(
    name="deepseek_v3_dy",
    title="DeepSeek-V3: gradients in 1x128 or 128x128",
    stated="""
The report (appendix B.2) finds that gradients quantized in blocks of 128 x 128, as weights are,
make a model of 16 billion parameters diverge after 300 billion tokens, and lays it to gradients
that are large for some tokens: a block of tokens has one scale. Measured here: dx = dy w of 512
tokens, 512 outputs and 256 inputs, dy standard normal, each token times a power of two drawn
uniformly from a range of octaves, both operands in E4M3 with FP32 scales, w in 128 x 128. The
error is that of a token's dx in the 2-norm, at the ninth decile of the tokens; beside it the
elements of dy that become zero.

Stated before the first run: groups of a token are not touched by the range (from 0 to 20
octaves the error grows by less than a fifth); blocks are within a tenth of them up to 8
octaves, as E4M3 has 17 octaves itself, and at least three times as bad at 20. (The median
token, looked at first, is worse by a fourteenth only: four fifths of the tokens are within the
range of their block.)
""",
    seeds=8,
    measure=measure,
    quantities=[Quantity(ERROR, "%", log=True), Quantity(FLUSHED, "%")],
    axis="octaves between the gains of tokens",
    claims=[
        Stated(
            Claim("error in 1x128, 20 octaves over none", low=0.8, high=1.2),
            lambda v: v.get(ERROR, "1x128", 20.0) / v.get(ERROR, "1x128", 0.0),
        ),
        Stated(
            Claim("error in 128x128 over 1x128, 8 octaves", low=0.9, high=1.1),
            lambda v: ratio(v, 8.0),
        ),
        Stated(
            Claim("error in 128x128 over 1x128, 20 octaves", low=3.0),
            lambda v: ratio(v, 20.0),
        ),
    ],
    caption="error of dx and zeros of dy over the range of gains; bars are 95 % over seeds.",
    remarks="""
- Groups of a token do not notice the range at all. Blocks lose nothing up to 12 octaves, 0.3 %
  of the elements there, and are useless to a tenth of the tokens at 20, where a fifth of dy is
  flushed.
- So blocks fail where gradients of tokens of one block differ by more than a factor of about
  2^16. That is what the report's explanation needs; whether large models have such gradients is
  not shown here.
""",
)

if __name__ == "__main__":
    main(EXPERIMENT)
