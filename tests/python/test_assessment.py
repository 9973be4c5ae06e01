"""What `fp8lab assess` says of its facts: intervals over documents, corrections, page and JSON."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats as distributions

from fp8lab_analysis import assess
from fp8lab_analysis.judge.assessment import Assessment, holm, percent
from fp8lab_analysis.judge.stats import Array
from fp8lab_analysis.judge.text_noise import LEAST_DOCUMENTS, Estimate, clustered_ratio

BASE = 2.5  # nats a token


# --- intervals ------------------------------------------------------------------------------------


def left_out(numerators: Array, denominators: Array) -> tuple[float, float, float]:
    """Ratio, half width and p by leaving out one document after the other, in plain loops."""
    count = len(numerators)
    ratios = []
    for i in range(count):
        above = sum(float(numerators[j]) for j in range(count) if j != i)
        below = sum(float(denominators[j]) for j in range(count) if j != i)
        ratios.append(above / below)
    middle = sum(ratios) / count
    variance = (count - 1) / count * sum((ratio - middle) ** 2 for ratio in ratios)
    value = sum(map(float, numerators)) / sum(map(float, denominators))
    quantile = float(distributions.t.ppf(0.975, count - 1))
    p = 2.0 * float(distributions.t.cdf(-abs(value) / math.sqrt(variance), count - 1))
    return value, quantile * math.sqrt(variance), p


@pytest.mark.parametrize("count", [LEAST_DOCUMENTS, 9, 40])
def test_the_interval_is_the_jackknife_over_documents(count: int) -> None:
    generator = np.random.default_rng(count)
    tokens = generator.integers(3, 400, count).astype(float)
    numerators = tokens * generator.normal(0.02, 0.05, count)
    found = clustered_ratio(numerators, BASE * tokens)
    expected = left_out(numerators, BASE * tokens)
    assert (found.value, found.half, found.p) == pytest.approx(expected, rel=1e-9)


def test_documents_of_one_length_give_the_t_interval_of_their_means() -> None:
    gaps = np.array([0.01, 0.03, 0.02, 0.05, -0.01, 0.02, 0.04])
    found = clustered_ratio(200.0 * gaps, np.full(7, 200.0))
    error = float(np.std(gaps, ddof=1)) / math.sqrt(7.0)
    assert found.value == pytest.approx(gaps.mean())
    assert found.half == pytest.approx(float(distributions.t.ppf(0.975, 6)) * error)
    assert found.p == pytest.approx(float(distributions.ttest_1samp(gaps, 0.0).pvalue))
    assert not found.excludes_zero or found.p < 0.05


def documents(generator: np.random.Generator, count: int, true: float) -> tuple[Array, Array]:
    """Sums of differences and of losses of documents of 40 to 400 tokens. What a recipe adds to a
    token goes with its document (a fifth of the variance) and with the token before."""
    lengths = generator.integers(40, 401, count)
    added, losses = np.zeros(count), np.zeros(count)
    for i, length in enumerate(lengths):
        noise = generator.normal(0.0, 0.1, length + 20)
        correlated = np.convolve(noise, 0.8 ** np.arange(20), mode="valid")[:length]
        own = generator.normal(0.0, 0.5 * float(np.std(correlated)) + 0.03)
        loss = BASE + generator.normal(0.0, 0.3) + generator.exponential(0.5, length) - 0.5
        losses[i] = loss.sum()
        added[i] = float(np.sum(true * BASE + own + correlated))
    return added, losses


@pytest.mark.parametrize("count", [10, 20, 40])
def test_intervals_hold_the_true_gap_as_often_as_they_say(count: int) -> None:
    """95 % intervals hold it in 93 to 97 % of data sets (2500 of them: three standard errors of the
    frequency are 1.3 %)."""
    true, trials = 0.01, 2500
    generator = np.random.default_rng(7 + count)
    held = 0
    for _ in range(trials):
        found = clustered_ratio(*documents(generator, count, true))
        held += abs(found.value - true) <= found.half
    assert 0.93 <= held / trials <= 0.97


def test_a_gap_of_zero_is_seldom_told_from_zero() -> None:
    generator = np.random.default_rng(11)
    found = [clustered_ratio(*documents(generator, 12, 0.0)) for _ in range(1500)]
    false = float(np.mean([estimate.excludes_zero for estimate in found]))
    assert 0.03 <= false <= 0.07
    assert false == pytest.approx(float(np.mean([estimate.p < 0.05 for estimate in found])))


def test_too_few_documents_have_no_interval() -> None:
    few = np.arange(1.0, LEAST_DOCUMENTS)
    found = clustered_ratio(0.01 * few, few)
    assert found.value == pytest.approx(0.01) and not found.is_known and math.isnan(found.p)
    assert not found.excludes_zero and percent(found) == "+1.00 %"
    enough = np.arange(1.0, LEAST_DOCUMENTS + 1)
    assert clustered_ratio(0.01 * enough + 0.001 * enough**2, enough).is_known


def test_the_same_losses_have_no_gap_and_no_doubt() -> None:
    tokens = np.arange(10.0, 20.0)
    assert clustered_ratio(0.0 * tokens, tokens) == Estimate(0.0, 0.0, 1.0)


# --- corrections ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "p, rejected",
    [
        ([0.01, 0.04, 0.03, 0.005], [True, False, False, True]),  # Holm's levels: 1/80, 1/60, 1/40
        ([0.04, 0.04], [False, False]),
        ([0.04, 0.02], [True, True]),
        ([0.04], [True]),
        ([0.06, 0.001, 0.06], [False, True, False]),
        ([math.nan, 0.001], [False, True]),
        ([], []),
    ],
)
def test_holm_steps_down(p: list[float], rejected: list[bool]) -> None:
    assert holm([1.0 if math.isnan(x) else x for x in p]) == rejected


def test_what_is_rejected_does_not_hang_on_the_order() -> None:
    p = [0.012, 0.2, 0.001, 0.03, 0.016]
    found = holm(p)
    assert holm(p[::-1]) == found[::-1] and found == [True, False, True, False, True]


# --- facts ----------------------------------------------------------------------------------------


def token(text: str = "the") -> dict[str, Any]:
    return {"index": 1, "id": 7, "text": text, "position": 1}


def facts(**recipes: list[float | None]) -> dict[str, Any]:
    """A small facts.json: bf16 and `recipes` by the sums of their 8 documents."""
    tokens = [60, 90, 75, 120, 40, 150, 66, 80]
    base = [BASE * count for count in tokens]
    rows = [{"name": "bf16", "hash": "00", "loss": BASE, "sums": base, "remarks": []}]
    for name, sums in recipes.items():
        rows.append({"name": name, "hash": "0f", "loss": None, "sums": sums, "remarks": []})
    layers = ["layers.0.attention.qkv", "layers.0.mlp.down", "layers.1.mlp.down"]
    return {
        "model": "a <model>",
        "parameters": 1234,
        "backend": "cpu",
        "device": "a processor",
        "sequences": 4,
        "sequence_length": 128,
        "micro_batch_sequences": 1,
        "data": "0123",
        "sources": ["held-out.jsonl"],
        "documents": [[0, i, count] for i, count in enumerate(tokens)],
        "recipes": rows,
        "outliers": {
            "inputs": [
                {
                    "layer": layer,
                    "amax": 100.0 * (i + 1),
                    "median": 0.5,
                    "channel": 3 + i,
                    "channel_ratio": 40.0 - i,
                    "token_ratio": 2.0,
                    "token": token("<s>"),
                }
                for i, layer in enumerate(layers)
            ],
            "sinks": [{"share": 0.25, "token": token("")}, {"share": 0.5, "token": token()}],
        },
        "seconds": {"losses": 1.0, "outliers": 0.5},
    }


def worse(by: float, spread: float = 0.002) -> list[float | None]:
    """Sums of documents that are worse by this share of the loss, a little more or less each."""
    base = facts()["recipes"][0]["sums"]
    return [loss * (1.0 + by + spread * (-1.0) ** i) for i, loss in enumerate(base)]


def with_map(found: dict[str, Any], recipe: str) -> dict[str, Any]:
    """The same with a map of a recipe, whose layers add 0.4, 0.3 and 0.1 %."""
    base = found["recipes"][0]["sums"]
    whole = next(row["sums"] for row in found["recipes"] if row["name"] == recipe)
    layers = [item["layer"] for item in found["outliers"]["inputs"]]
    found["map"] = {
        "replicates": [],
        "recipe": recipe,
        "documents": found["documents"],
        "baseline": base,
        "whole": whole,
        "sequences": 4,
        "layers": [
            {"layer": layer, "both": worse(by), "x": worse(by / 2.0), "w": worse(by / 4.0)}
            for layer, by in zip(layers, (0.004, 0.003, 0.001))
        ],
    }
    return found


def with_suggestion(
    found: dict[str, Any], *tried: tuple[str, float | None, int, float | None], chosen: int | None
) -> dict[str, Any]:
    """The same with changes that were tried, as (words, gap, layers, seconds)."""
    found["suggestion"] = {
        "margin": 0.005,
        "card": "NVIDIA H200",
        "tokens": 16384,
        "tried": [dict(zip(("words", "gap", "layers", "seconds"), row)) for row in tried],
        "chosen": chosen,
    }
    return found


FULL = with_suggestion(
    with_map(facts(infir2=worse(0.012), te_current=worse(0.009)), "infir2"),
    ("as it is", 0.012, 0, 1e-4),
    ("layers.0.mlp.down in bf16", 0.009, 1, 1.1e-4),
    ("FP32 scales", 0.0031, 0, 1.02e-4),
    chosen=2,
)


def test_costs_are_gaps_to_the_baseline_on_the_same_tokens() -> None:
    found = Assessment(FULL)
    infir2 = next(cost for cost in found.costs if cost.name == "infir2")
    sums, base = np.array(worse(0.012), float), np.array(FULL["recipes"][0]["sums"])
    expected = left_out(sums - base, base)
    assert (infir2.gap.value, infir2.gap.half, infir2.gap.p) == pytest.approx(expected)
    assert infir2.loss == pytest.approx(sums.sum() / found.tokens.sum())
    assert infir2.nats == pytest.approx(infir2.loss - BASE)
    assert [cost.name for cost in found.ordered()] == ["bf16", "te_current", "infir2"]
    answer = " ".join(found.answer())
    assert f"te_current costs the least: {percent(found.costs[2].gap)} of the loss" in answer
    assert f"infir2 costs the most: {percent(infir2.gap)}." in answer


def test_recipes_are_compared_with_one_another_as_pairs() -> None:
    """Two recipes whose gaps to the baseline scatter widely, but together: told apart."""
    found = facts(one=worse(0.01, 0.03), other=worse(0.013, 0.03), third=worse(0.0, 0.03))
    found["recipes"][3]["sums"] = [
        loss * (1.0 + 0.03 * (-1.0) ** (i // 2)) for i, loss in enumerate(worse(0.0, 0.0)) if loss
    ]
    judged = Assessment(found)
    one, other, third = judged.costs[1:]
    assert "other" not in one.like and "one" not in other.like
    assert "bf16" in third.like and "third" in judged.costs[0].like


def test_recipes_of_one_forward_pass_share_a_row() -> None:
    found = facts(infir2=worse(0.012), twin=worse(0.012), te_current=worse(0.009))
    found["recipes"][2]["same_forward_as"] = "infir2"
    judged = Assessment(found)
    infir2, twin, te_current = judged.costs[1:]
    assert twin.same_forward_as == "infir2" and not infir2.same_forward_as
    assert twin.gap == infir2.gap and twin.like == ("infir2",) and infir2.like == ("twin",)
    assert te_current.like == ()


def test_a_shared_row_does_not_count_in_the_correction() -> None:
    """The least of three pairs is tested at 5 %, so that p = 0.04 tells two recipes apart; were the
    twin a recipe of its own, its pair with the other one would halve that level."""
    base = np.array(facts()["recipes"][0]["sums"])
    noise = np.array([1.0, -1.0, 1.0, 1.0, -1.0, 1.0, -1.0, 1.0])
    low, high = 0.0, 0.1
    for _ in range(60):  # the gap whose test has p = 0.04
        middle = (low + high) / 2.0
        p = clustered_ratio(base * (middle + 0.01 * noise), base).p
        low, high = (middle, high) if p > 0.04 else (low, middle)
    weak: list[float | None] = [float(x) for x in base * (1.0 + high + 0.01 * noise)]
    found = facts(weak=weak, strong=worse(0.5), twin=worse(0.5))
    assert Assessment(found).costs[0].like == ("weak",)
    found["recipes"][3]["same_forward_as"] = "strong"
    assert Assessment(found).costs[0].like == ()


def test_a_loss_that_is_not_finite_is_said_and_like_no_other() -> None:
    broken = worse(0.2)
    broken[3] = None
    found = Assessment(facts(infir2=worse(0.012), broken=broken))
    cost = next(cost for cost in found.costs if cost.name == "broken")
    assert math.isnan(cost.gap.value) and math.isnan(cost.loss) and cost.like == ()
    assert found.ordered()[-1] is cost
    assert "broken: the loss is not finite." in found.answer()
    assert "infir2 costs the least" in found.answer()[0]
    told = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert told["recipes"][2]["loss"] is None and told["recipes"][2]["gap"]["value"] is None
    alone = Assessment(facts(broken=broken))
    assert alone.answer() == ["broken: the loss is not finite."]


def test_too_few_documents_are_said() -> None:
    found = facts(infir2=worse(0.012))
    found["documents"] = found["documents"][:4]
    for row in found["recipes"]:
        row["sums"] = row["sums"][:4]
    judged = Assessment(found)
    assert not judged.costs[1].gap.is_known
    said = "There are no intervals: 4 sequences of 128 tokens reach 4 documents, and at least 5"
    assert said in " ".join(judged.answer())
    # The caveat stands in each sentence that rests on them.
    few = "(on 4 documents only, without an interval over documents)"
    assert judged.answer()[0].startswith(f"infir2 costs the least {few}: +1.")
    assert judged.answer()[1] == f"infir2 is not told apart from bf16 {few}."
    assert "only" not in " ".join(Assessment(facts(infir2=worse(0.012))).answer())
    assert judged.to_json()["recipes"][1]["gap"]["half_width"] is None


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("sums", "said"),
    [
        ([0.0] * 40, "The loss of bf16, the baseline, is 0: there are no gaps."),
        ([None] * 40, "The loss of bf16, the baseline, is not finite: there are no gaps."),
        ([1e308] * 40, "The loss of bf16, the baseline, is not finite: there are no gaps."),
        ([50.0] + [0.0] * 39, "infir2 costs the least: "),
    ],
)
def test_a_baseline_without_a_loss_to_divide_by_is_said(
    sums: list[float | None], said: str
) -> None:
    """And not left to a warning of NumPy."""
    found = facts(infir2=worse(0.012))
    count = len(found["documents"])
    found["recipes"][0]["sums"] = sums[:count]
    judged = Assessment(found)
    assert judged.answer()[0].startswith(said), judged.answer()
    json.dumps(judged.to_json(), allow_nan=False)


def test_sentences_of_the_map_say_what_they_were_taken_on() -> None:
    assert FULL["map"]["sequences"] == FULL["sequences"]
    of_all = Assessment(FULL).answer()
    fewer = Assessment({**FULL, "map": {**FULL["map"], "sequences": 2}}).answer()
    changed = [line for line in fewer if line not in of_all]
    assert len(changed) == 1 + ("suggestion" in FULL)
    assert all(line.startswith("On 2 of the 4 sequences: ") for line in changed)


def test_the_map_adds_up_to_the_gap_with_its_remainder() -> None:
    found = Assessment(FULL).map
    assert found is not None
    assert found.additive == pytest.approx(sum(e.both.value for e in found.layers))
    assert found.additive + found.remainder == pytest.approx(found.whole.value)
    assert [entry.layer for entry in found.largest(2)] == [
        "layers.0.attention.qkv",
        "layers.0.mlp.down",
    ]


# --- suggestion -----------------------------------------------------------------------------------


def sentence(*tried: tuple[str, float | None, int, float | None], chosen: int | None) -> str:
    """Of a suggestion for infir2."""
    made = with_map(facts(infir2=worse(0.012)), "infir2")
    found = Assessment(with_suggestion(made, *tried, chosen=chosen)).suggestion
    assert found is not None
    return found.sentence


AS_IT_IS = ("as it is", 0.0119, 0, 1e-4)


@pytest.mark.parametrize(
    "tried, chosen, expected",
    [
        (
            [AS_IT_IS, ("FP32 scales", 0.0031, 0, 1e-4)],
            1,
            "infir2 with FP32 scales costs +0.31 %, under the margin of 0.5 %, at +0.0 % of the "
            "products' time on an NVIDIA H200: suggested.toml.",
        ),
        (
            [AS_IT_IS, ("layers.0.mlp.down in bf16", 0.0049, 1, 1.25e-4)],
            1,
            "infir2 with layers.0.mlp.down in bf16 costs +0.49 %, under the margin of 0.5 %, at "
            "+25.0 % of the products' time on an NVIDIA H200: suggested.toml.",
        ),
        (
            [AS_IT_IS, ("FP32 scales", 0.0031, 0, None)],
            1,
            "infir2 with FP32 scales costs +0.31 %, under the margin of 0.5 %, at a time on an "
            "NVIDIA H200 that is not known: suggested.toml.",
        ),
        (
            [("as it is", 0.0012, 0, None)],
            0,
            "infir2 as it is costs +0.12 %, under the margin of 0.5 %.",
        ),
        (  # the recipe as it is could not be run: no time to compare with
            [("tiles of 1x128 and 128x128", 0.001, 0, 2e-4)],
            0,
            "infir2 with tiles of 1x128 and 128x128 costs +0.10 %, under the margin of 0.5 %, at a "
            "time on an NVIDIA H200 that is not known: suggested.toml.",
        ),
        (
            [AS_IT_IS, ("FP32 scales", 0.0073, 0, 1e-4), ("FP32 scales; 2 layers", None, 2, 1e-4)],
            None,
            "No change that was tried brings infir2 under the margin of 0.5 %; nearest: infir2 "
            "with FP32 scales, +0.73 %.",
        ),
        (
            [("as it is", 0.0119, 0, 1e-4), ("FP32 scales", 0.02, 0, 1e-4)],
            None,
            "No change that was tried brings infir2 under the margin of 0.5 %; nearest: infir2 as "
            "it is, +1.19 %.",
        ),
        (
            [],
            None,
            "No change that was tried brings infir2 under the margin of 0.5 %: no loss of theirs "
            "is finite.",
        ),
    ],
)
def test_the_suggestion_in_a_sentence(
    tried: list[tuple[str, float | None, int, float | None]], chosen: int | None, expected: str
) -> None:
    assert sentence(*tried, chosen=chosen) == expected


def test_the_suggestion_is_in_the_answer_and_in_json() -> None:
    found = Assessment(FULL)
    assert found.suggestion is not None and found.answer()[-1] == found.suggestion.sentence
    told = json.loads(json.dumps(found.to_json(), allow_nan=False))["suggestion"]
    assert told["chosen"] == 2 and told["sentence"] == found.suggestion.sentence
    assert told["recipe"] == "infir2" and told["margin"] == 0.005 and told["tokens"] == 16384
    assert [row["gap"] for row in told["tried"]] == [0.012, 0.009, 0.0031]
    assert [row["layers"] for row in told["tried"]] == [0, 1, 0]
    assert [row["time"] for row in told["tried"]] == pytest.approx([0.0, 0.1, 0.02])
    assert "suggestion" not in Assessment(facts(infir2=worse(0.01))).to_json()


# --- command --------------------------------------------------------------------------------------


def run(folder: Path, found: dict[str, Any], *options: str) -> int:
    """The command on these facts."""
    file = folder / "facts.json"
    file.write_text(json.dumps(found), encoding="utf-8")
    return assess.main([str(file), "--out", str(folder / "page"), *options])


def test_page_json_and_terminal_say_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = copy.deepcopy(FULL)
    layers = [
        {"layer": item["layer"], "error": 0.1 + 0.1 * i, "cosine": 0.99}
        for i, item in enumerate(made["outliers"]["inputs"])
    ]
    made["gradients"] = {
        "sequences": 1,
        "recipes": [
            {"recipe": row["name"], "error": 0.125, "cosine": 0.98765, "layers": layers}
            for row in made["recipes"]
        ],
    }
    made["recipes"][1]["remarks"] = ["delayed scales take the present amax"]
    assert run(tmp_path, made, "--json", str(tmp_path / "answer.json")) == 0
    printed = capsys.readouterr().out
    found = Assessment(made)
    page = (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    told = json.loads((tmp_path / "answer.json").read_text(encoding="utf-8"))
    assert told == found.to_json()
    for line in found.answer():
        assert line in printed and line.replace("'", "&#39;") in page
    assert "a &lt;model&gt;" in page and "<model>" not in page and "&lt;s&gt;" in page
    assert percent(found.costs[1].gap) in page and percent(found.costs[1].gap) in printed
    assert "0.98765" in page and "delayed scales take the present amax" in page
    assert page.count("<figure id=") == 4
    (row,) = [row for row in page.split("<tr>") if row.startswith('<td class="t wrap">FP32 scales')]
    assert "suggested</td>" in row and page.count("suggested</td>") == 1
    assert "+2.0 %" in page and "102.0" in page  # time of the suggestion, and its microseconds
    for name in ("gaps", "map", "gradients", "outliers"):
        for form in ("svg", "csv"):
            assert (tmp_path / "page" / "figures" / f"{name}.{form}").stat().st_size > 0
    assert str(tmp_path / "page" / "index.html") in printed
    assert "http://" not in page and "https://" not in page


def test_a_page_without_map_gradients_and_suggestion(tmp_path: Path) -> None:
    broken: list[float | None] = [None] * 8
    assert run(tmp_path, facts(infir2=worse(0.012), broken=broken)) == 0
    page = (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    assert page.count("<figure id=") == 2 and "suggestion" not in page
    assert "not finite" in page and "nan" not in page.replace("nance", "")


def test_what_is_no_facts_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(text: str) -> str:
        file = tmp_path / "facts.json"
        file.write_text(text, encoding="utf-8")
        assert assess.main([str(file), "--out", str(tmp_path / "page")]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and "no facts of fp8lab assess" in said
        return said

    refused("{")
    assert "documents" in refused("{}")
    refused("[1, 2]")
    outside = copy.deepcopy(FULL)
    outside["suggestion"]["chosen"] = 3
    assert "chosen 3 of 3" in refused(json.dumps(outside))
    assert not (tmp_path / "page").exists()


def test_the_command_line_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "facts.json")
    assert assess.main([missing, "--out", str(tmp_path / "page")]) == 2
    assert missing in capsys.readouterr().err
    for words, name in (
        (["facts.json"], "--out"),
        (["--out", "x"], "FACTS.json"),
        (["facts.json", "--out", "x", "--margin", "1"], "--margin"),
    ):
        with pytest.raises(SystemExit) as ended:
            assess.main(words)
        assert ended.value.code == 2
        assert name in capsys.readouterr().err
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "facts.json").write_text(json.dumps(FULL))
    assert assess.main([missing, "--out", str(tmp_path / "file")]) != 0
    assert str(tmp_path / "file") in capsys.readouterr().err
