"""InfiR2 and hybrid formats: E4M3 or E5M2 for gradients, power-of-two or FP32 scales."""

from __future__ import annotations

import numpy as np
from experiment import Experiment, Matrix, Quantity, Stated, Values, decoded, main, normal, sqnr_db

from fp8lab_analysis.judge.claims import Claim

TOKENS, FEATURES = 512, 1024
TILES = {"tensor": "tensor", "1x128": "1x128"}
FORMATS = {"E4M3": "e4m3fn", "E5M2": "e5m2"}
WHOLE, ROWS, UNDERFLOW = "whole tensor", "mean over tokens", "underflow"
SPREADS = (0.0, 2.0, 4.0, 6.0)  # deviation of the tokens' gains, octaves


def gradients(rng: np.random.Generator, octaves: float) -> Matrix:
    """Tokens by features, each token with a log-normal gain, as losses of tokens differ."""
    gains = np.exp2(octaves * rng.normal(size=(TOKENS, 1)))
    return np.asarray(gains * normal(rng, TOKENS, FEATURES), dtype=np.float32)


def measure(seed: int) -> Values:
    rng = np.random.default_rng(seed)
    values = Values()
    for octaves in SPREADS:
        dy = gradients(rng, octaves)
        for tile, word in TILES.items():
            for name, code in FORMATS.items():
                words = f"{code}/{word}/pow2"
                seen = decoded(dy, words)
                zero = np.mean((seen == 0.0) & (dy != 0.0))
                # A token that becomes zero altogether has 0 dB.
                tokens = [sqnr_db(a, b) for a, b in zip(seen, dy)]
                values.put(WHOLE, f"{name}, {tile}", octaves, sqnr_db(seen, dy))
                values.put(ROWS, f"{name}, {tile}", octaves, float(np.mean(tokens)))
                values.put(UNDERFLOW, f"{name}, {tile}", octaves, 100.0 * float(zero))
        scaled = sqnr_db(decoded(dy, "e4m3fn/1x128/fp32"), dy)
        values.put(WHOLE, "E4M3, 1x128, FP32 scales", octaves, scaled)
    return values


def lead(values: Values, quantity: str, tile: str, octaves: float) -> float:
    """Of E4M3 over E5M2."""
    e4m3, e5m2 = (values.get(quantity, f"{name}, {tile}", octaves) for name in FORMATS)
    return e4m3 - e5m2


def of_scales(values: Values) -> float:
    """FP32 over power-of-two scales."""
    fp32 = values.get(WHOLE, "E4M3, 1x128, FP32 scales", 0.0)
    return fp32 - values.get(WHOLE, "E4M3, 1x128", 0.0)


EXPERIMENT = Experiment(
    name="infir2",
    title="InfiR2 and hybrid formats: E4M3 or E5M2 for gradients, by granularity",
    stated="""
Hybrid recipes give gradients the range of E5M2; InfiR2 has E4M3 in groups of 128 and power-of-two
scales instead. Measured here on dy of 512 tokens by 1024 features, standard normal with a
log-normal gain a token, whose deviation goes from 0 to 6 octaves: signal over noise of the whole
tensor, of each token by itself (mean of the dB; a token that vanishes has 0), and the share that
becomes zero; one scale a tensor and 1x128, powers of two; in E4M3 1x128 with FP32 scales too.
What these choices do to losses: ../granularity.md.

Stated before the first run: with one scale a tensor and gains of 4 octaves E5M2 is the better
format of single tokens and E4M3 is behind by at least 1 dB; with 1x128 E4M3 is ahead by at least
4 dB whatever the gains; FP32 scales are worth about 0.3 dB.
""",
    seeds=8,
    measure=measure,
    quantities=[Quantity(WHOLE, "SQNR, dB"), Quantity(ROWS, "SQNR, dB"), Quantity(UNDERFLOW, "%")],
    axis="octaves between tokens (deviation)",
    claims=[
        Stated(
            Claim("E4M3 over E5M2, tokens, one scale a tensor, 4 octaves", "dB", high=-1.0),
            lambda v: lead(v, ROWS, "tensor", 4.0),
        ),
        Stated(
            Claim("E4M3 over E5M2, tokens, one scale a tensor, 6 octaves", "dB", high=-1.0),
            lambda v: lead(v, ROWS, "tensor", 6.0),
        ),
        Stated(
            Claim("E4M3 over E5M2, tokens, 1x128, 6 octaves", "dB", low=4.0),
            lambda v: lead(v, ROWS, "1x128", 6.0),
        ),
        Stated(
            Claim("E4M3 over E5M2, whole tensor, one scale, no spread", "dB", low=4.0),
            lambda v: lead(v, WHOLE, "tensor", 0.0),
        ),
        Stated(
            Claim("FP32 over power-of-two scales, 1x128, no spread", "dB", low=0.1, high=0.5),
            of_scales,
        ),
    ],
    caption="by how far tokens are apart; bars are 95 % over seeds.",
    remarks="""
- Range is what E5M2 buys: with tokens 4 octaves apart and one scale a tensor E4M3 loses a quarter
  of the elements, and single tokens 4 dB against E5M2 (16 dB at 6 octaves). SQNR of the whole
  tensor does not see it, as large tokens make it.
- With 1x128 nothing of that is left: E4M3 leads by 6 dB at every spread. This is InfiR2's
  argument, and why gradients in E4M3 were equivalent to BF16 in training (../granularity.md).
- FP32 scales are worth 0.27 dB here; the gradients and activations of training had 1 dB.
""",
)

if __name__ == "__main__":
    main(EXPERIMENT)
