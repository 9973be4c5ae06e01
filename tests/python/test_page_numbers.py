"""The numbers of README.md: made anew where that takes seconds, else those of the pages and tables
that they come from. A digit that changes on one side alone is a failure."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import h5py
import pytest
from told_commands import commands, follow

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TEXT = " ".join(README.replace("**", "").split())  # without line ends and bold
RESULTS = ROOT / "experiments/results"
QUICKSTART = RESULTS / "quickstart"
# Commands of README.md whose output takes minutes, or a model that is not here.
TAKE_LONG = ("train --preset quickstart --recipe infir2 --out runs/mine", "assess SmolLM2-135M")

needs_program = pytest.mark.skipif("FP8LAB_PROGRAM" not in os.environ, reason="FP8LAB_PROGRAM")


def fp8lab(*words: object, folder: Path) -> str:
    """What the program prints."""
    command = [os.environ["FP8LAB_PROGRAM"], *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode in (0, 5), done.stderr
    return done.stdout


# --- commands and what they print -----------------------------------------------------------------


def test_expected_lines_are_matched_to_the_digit() -> None:
    lines = ["a", "b 1.25", "c", "d"]
    assert follow(lines, ["a", "...", "c", "..."]) and follow(lines, ["...", "d"])
    assert follow(lines, lines) and follow([], ["..."])
    assert not follow(lines, ["a", "b 1.24", "..."]) and not follow(lines, ["a", "...", "c"])
    assert not follow(lines, [*lines, "e"])


@needs_program
def test_commands_of_the_front_page_print_what_it_says(tmp_path: Path) -> None:
    ran = 0
    for command, expected in commands(README):
        program, *words = shlex.split(command)
        if command.removeprefix("fp8lab ").startswith(TAKE_LONG):
            continue
        if program == "export":
            continue  # of the shell; the program is called by its path here
        if program == "$FP8LAB_PYTHON":
            subprocess.run([sys.executable, *words], cwd=tmp_path, check=True)
            continue
        assert program == "fp8lab", command
        printed = fp8lab(*words, folder=tmp_path).splitlines()
        assert follow(printed, [line.replace("  ...", "...") for line in expected]), (
            command,
            printed,
        )
        ran += 1
    assert ran == 2 and len(commands(README)) == 6


def sizes() -> dict[str, str]:
    """Millions of parameters that the first comments of model files tell."""
    files = (ROOT / "experiments/models").glob("*.toml")
    texts = {path.stem: path.read_text(encoding="utf-8") for path in files}
    found = {name: re.search(r"([\d.]+) million parameters", text) for name, text in texts.items()}
    return {name: told[1] for name, told in sorted(found.items()) if told}


def parameters(model: str, folder: Path) -> int:
    models = json.loads(fp8lab("models", "--json", folder=folder))
    (count,) = [int(entry["parameters"]) for entry in models if entry["name"] == model]
    return count


@needs_program
@pytest.mark.parametrize("model", sizes())
def test_sizes_of_models(model: str, tmp_path: Path) -> None:
    told, count = sizes()[model], parameters(model, tmp_path)
    if model in ("large", "xlarge"):  # to the hundred million
        assert round(count, -8) == float(told) * 1e6
    else:
        assert f"{count / 1e6:.{len(told.partition('.')[2])}f}" == told


@needs_program
def test_the_size_of_the_default_model(tmp_path: Path) -> None:
    assert f"(three seeds, {parameters('tiny', tmp_path) / 1e6:.2f} M parameters)" in TEXT
    assert len(sizes()) >= 6


# --- numbers of other pages -----------------------------------------------------------------------

# What README.md says, with # for the number; the page that it comes from, and what that says.
TOLD_ELSEWHERE = [
    ("at # times the speed of compiled", "measured.md", "at 46 800: 1.14, # and 1.47 of it"),
    ("| bf16 #, infir2", "measured.md", "at 46 800: #, 1.48 and 1.47 of it"),
    ("infir2 #, te_current", "measured.md", "at 46 800: 1.14, # and 1.47 of it"),
    ("te_current # of Hugging Face", "measured.md", "at 46 800: 1.14, 1.48 and # of it"),
    ("(# tokens/s on an H200)", "measured.md", "with the same states, at #: 1.14"),
    ("the throughput of | # to 0.52 of", "measured.md", "| 0.40–0.42, mean # |"),
    ("the throughput of | 0.41 to # of", "measured.md", "| 0.51–0.54, mean # |"),
    ("| # to 1.16 of cuBLASLt", "measured.md", "kernels reach # to 1.16 of cuBLASLt"),
    ("| 0.97 to # of cuBLASLt", "measured.md", "kernels reach 0.97 to # of cuBLASLt"),
    (
        "ten recipes, # steps each",
        "measured.md",
        "ten recipes through pre-training, CPT and SFT, #",
    ),
    ("all # results recorded on", "measured.md", "full recorded set: # cases"),
    ("and # that others recorded", "measured.md", "B200): # results in 32 files"),
    (". # kernels and 53 rules", "measured.md", "broken on purpose in # places"),
    ("kernels and # rules broken", "measured.md", "# variants of the arithmetic broken"),
    ("on # held-out tokens", "smollm2.md", "sequences of 1024 tokens, # in all"),
    ("(`infir2`, +# %)", "smollm2.md", "powers of two) | 2.7601 | +0.0324 | +# |"),
    ("(`infir2_fp32scale`, +# %)", "smollm2.md", "infir2_fp32scale | 2.7477 | +0.0200 | +# |"),
    ("infir2_fp32scale 2.7626 +# ± 0.06 %", "smollm2.md", "| infir2_fp32scale | +# ± 0.06 |"),
    ("te_current 2.7720 +# ± 0.07 %", "smollm2.md", "| te_current | +# ± 0.07 |"),
    ("NVFP4 costs # %", "smollm2.md", "nvfp4 | 3.2739 | +0.546 | +# |"),
    (
        "random weights do not notice it. # M param",
        "granularity.md",
        "BF16 within 0.5 % with # M parameters",
    ),
    ("26 M parameters (# seeds)", "granularity.md", "26 M parameters (# seeds)"),
    ("and # M (4 seeds)", "granularity.md", "and with # M (4 seeds)"),
    ("100 M (# seeds)", "granularity.md", "100 M (# seeds)"),
    ("equivalent to BF16 within # % of", "granularity.md", "equivalent to BF16 within # % with"),
    ("# % of a gradient's error", "granularity.md", "the mantissa are # % of the error"),
]


def number_in(template: str, text: str) -> str:
    """What stands for # in a text."""
    number = r"(\d[\d ]*(?:\.\d+)?)"
    found = re.findall(re.escape(template).replace(r"\#", number), text)
    assert len(set(found)) == 1, (template, found)
    return str(found[0]).strip()


@pytest.mark.parametrize("here, page, there", TOLD_ELSEWHERE)
def test_numbers_of_pages(here: str, page: str, there: str) -> None:
    text = (RESULTS / page).read_text(encoding="utf-8").replace("**", "")
    assert number_in(here, TEXT) == number_in(there, " ".join(text.split()))


# Of pages of results that repeat figures: a page and what it says, the page that they come from.
REPEATED = [
    ("h200.md", "| # outputs, 0 mismatches", "h200_bits.md", "the first 361 s | # outputs"),
    ("h200.md", "| # recordings, and", "h200_bits.md", "(9 steps) | # recordings"),
    ("h200.md", "and # steps of ten recipes", "h200_bits.md", "| # steps: pre-training"),
    ("h200.md", "| # kernels broken", "h200_broken.md", "All # device kernels"),
    ("h200.md", "| # (row, fast)", "h200_speed.md", "| row, fast | 0.967, # |"),
    ("h200.md", "to # (1x128 by 1x128)", "h200_speed.md", "| 1x128 by 1x128 | 1.158, # |"),
    ("h200.md", "one layout # to", "h200_speed.md", "| e4m3fn/1x32/e8m0 | # |"),
    ("h200.md", "one layout 0.96 to #,", "h200_speed.md", "| e4m3fn/row | # |"),
    ("h200.md", "from one call # to", "h200_speed.md", "| e4m3fn/1x32/e8m0 | 0.96 | 0.94 | # |"),
    ("h200.md", "one call 0.78 to # |", "h200_speed.md", "128x128 | 1.00 | 0.97 | # |"),
    ("h200.md", "| forward #, backward", "h200_speed.md", "| 0.252 (409) | 0.212 | # |"),
    ("h200.md", ", backward # |", "h200_speed.md", "| 0.780 | 1.394 | # |"),
    ("h200.md", "| bf16 #, infir2", "h200_speed.md", "| 68 600 | #, 1.48, 1.47 |"),
    ("h200.md", ", infir2 #, te_current", "h200_speed.md", "| 68 600 | 1.14, #, 1.47 |"),
    ("h200.md", ", te_current # |", "h200_speed.md", "| 68 600 | 1.14, 1.48, # |"),
    ("h200.md", "| #, with recomputation", "h200_speed.md", "infir2 takes # of bf16's memory"),
    ("h200.md", "gate and up # |", "h200_speed.md", "| 28.2 | 25.6 | # |"),
    ("h200.md", "| +# to +32 %", "h200_speed.md", "| Qwen2.5-1.5B | +# to +32 %"),
    ("h200.md", "| +29 to +# %", "h200_speed.md", "| Qwen2.5-1.5B | +29 to +# %"),
    ("h200.md", "| # s | `fp8lab train`", "h200_speed.md", "page-locked chunks, # s for 9.3 GB"),
    ("h200_limits.md", "more | (+# to +32 %", "h200_speed.md", "| Qwen2.5-1.5B | +# to +32 %"),
    ("h200_limits.md", "more | (+29 to +# %", "h200_speed.md", "| Qwen2.5-1.5B | +29 to +# %"),
    ("h200_limits.md", "+32 %, # to 3.2 %", "h200_speed.md", "on the warmest | # to 3.2 % |"),
    ("h200_limits.md", "+32 %, 2.9 to # %", "h200_speed.md", "on the warmest | 2.9 to # % |"),
    ("h200_limits.md", "`loss_chunk` | (#; 0.85", "h200_speed.md", "| 49.0 | 46.4 | # |"),
    ("h200_limits.md", "`loss_chunk` | (0.90; #", "h200_speed.md", "| 28.2 | 25.6 | # |"),
    ("h200_limits.md", "(128x128 #, tensor", "h200_speed.md", "128x128 | 1.00 | 0.97 | # |"),
    ("h200_limits.md", "tensor # and 0.90", "h200_speed.md", "delayed | 0.98 | 0.96 | # |"),
    ("h200_limits.md", "tensor 0.88 and #,", "h200_speed.md", "current | 0.98 + | 0.98 + | # + |"),
    ("h200_limits.md", "0.90, row #,", "h200_speed.md", "n/row | 1.00 | 0.96 + | # + |"),
    ("h200_limits.md", "1x128 #, 1x32/e8m0", "h200_speed.md", "n/1x128 | 0.97 | 0.94 | # |"),
    ("h200_limits.md", "0.82, 1x32/e8m0 #)", "h200_speed.md", "n/1x32/e8m0 | 0.96 | 0.94 | # |"),
    ("h200_limits.md", "by itself; (#) in", "h200_speed.md", "| 6.0 | # | loss |"),
    ("h200_limits.md", "(28 heads #,", "h200_speed.md", "| 0.621 (387) | 0.450 | # |"),
    ("h200_limits.md", "64 columns #)", "h200_speed.md", "| 0.506 (238) | 0.312 | # |"),
    ("h200_limits.md", "(# ms)", "h200_speed.md", "| 1.75 | 0.465 | # |"),
    ("measured.md", "cuda`: # compared", "h200_bits.md", "the first 361 s | # outputs"),
    ("measured.md", "and # of every operation", "h200_bits.md", "# outputs, 0 mismatches (34 s)"),
    (
        "measured.md",
        "the # outputs that the H200",
        "h200_bits.md",
        "# outputs, 0 mismatches (28 s)",
    ),
    ("measured.md", "purpose in # places", "h200_broken.md", "All # device kernels"),
    ("measured.md", "noticed, # of them there", "h200_broken.md", "are noticed: # on an H200"),
    ("measured.md", "runs at # tokens/s", "h200_speed.md", "| 46 800 | # | 69 400"),
    ("measured.md", "in bf16, # in infir2", "h200_speed.md", "| 46 800 | 53 400 | #, 69 100"),
    ("measured.md", "and # in te_current", "h200_speed.md", "| 69 400, 69 100 | # |"),
    ("measured.md", "same states, at #: 1.14", "h200_speed.md", "8 x 2048 | # | 53 400"),
    (
        "measured.md",
        "0.85 where gate and up are computed again, # of",
        "h200_speed.md",
        "the ratio is # for",
    ),
]


@pytest.mark.parametrize("page, here, source, there", REPEATED)
def test_figures_that_pages_repeat(page: str, here: str, source: str, there: str) -> None:
    texts = [(RESULTS / name).read_text(encoding="utf-8") for name in (page, source)]
    repeated, measured = (" ".join(text.replace("**", "").split()) for text in texts)
    assert number_in(here, repeated) == number_in(there, measured)


def test_the_outputs_of_kernels() -> None:
    text = (RESULTS / "measured.md").read_text(encoding="utf-8")
    count = int(number_in("--backend cuda`: # compared elements", text).replace(" ", ""))
    assert f"{count / 1e9:.1f} x 10^9 outputs of the CUDA kernels" in TEXT


def test_numbers_of_the_sources() -> None:
    study = (ROOT / "experiments/studies/quickstart.toml").read_text(encoding="utf-8")
    (gain,) = re.findall(r"gain = (\d+)\.0", study)
    assert f"four channels of the activations grow to {gain} times their size" in TEXT
    process = (ROOT / "src/study/process.hpp").read_text(encoding="utf-8")
    (status,) = re.findall(r"kDivergedStatus = (\d+);", process)
    assert f"diverged says so and ends with status {status}" in TEXT


def test_the_range_after_training() -> None:
    text = (RESULTS / "real_checkpoint" / "README.md").read_text(encoding="utf-8")
    worse = r"worse by (\d\.\d\d) % ± \d\.\d\d %"
    rows = re.findall(rf"(?m)^\| ([\w, ]+) \| {worse} \| {worse} \|$", text)
    fp8 = [row for row in rows if "int8" not in row[0] and "nvfp4" not in row[0]]
    assert sum(name.count(",") + 1 for name, _, _ in fp8) == 11
    assert "each of eleven FP8 recipes is worse than BF16" in TEXT
    for column, stage in ((1, "by # to # %, after SFT"), (2, "after SFT on GSM8K by # to # %")):
        ends = [float(row[column]) for row in fp8]
        low, high = f"{min(ends):.1f}", f"{max(ends):.1f}"
        assert stage.replace("#", low, 1).replace("#", high, 1) in TEXT


def test_the_verdicts_after_training() -> None:
    """The rows of the page are what the script says of the table of losses."""
    page = (RESULTS / "real_checkpoint" / "README.md").read_text(encoding="utf-8")
    script = ROOT / "experiments/studies/real_verdicts.py"
    words = [sys.executable, str(script), str(RESULTS / "real_checkpoint/losses.csv")]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'analysis'}:{ROOT / 'src/python'}"}

    def rows(*more: str) -> list[tuple[str, str, str, str]]:
        """Stage, arm, mean and verdict."""
        command = [*words, *more]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        return [
            (part.split(" ", 1)[0], arm, mean, verdict[0].lower() + verdict[1:])
            for part in done.stdout.split("| after ")[1:]
            for arm, mean, verdict in re.findall(
                r"(?m)^\| (\w+) \| [^|]*\| ([^|]*) \| ([^(|]*) \(", part
            )
        ]

    names = {
        "infir2_1x32": "infir2_1x32, mxfp8",
        "infir2_then_bf16": "CPT in infir2, SFT in bf16",
        "bf16_then_infir2": "CPT in bf16, SFT in infir2",
        "nvfp4_switch": "nvfp4, BF16 for the last 18 %",
    }
    cells = {
        row[0]: {"cpt": row[1], "sft": row[2]}
        for line in page.splitlines()
        if len(row := [cell.strip() for cell in line.strip("|").split("|")]) == 3
        and row[2].startswith(("worse", "equivalent"))
    }
    judged = rows()
    assert len(judged) == 13 + 15
    for stage, arm, _, verdict in judged:
        assert cells[names.get(arm, arm)][stage] == verdict, (arm, stage)
    means = {
        stage: mean
        for stage, arm, mean, _ in rows("--baseline", "infir2_fp32scale")
        if arm == "infir2"
    }
    told = " ".join(page.split())
    for stage, words_of in (("cpt", "after CPT"), ("sft", "after SFT")):
        value, _, half_width = means[stage].lstrip("+").split(" ")
        assert f"{value} % ± {half_width} %" in told and words_of in told


def test_the_verdicts_of_tokens_rate_and_hybrid() -> None:
    """Each row of the page's table is what the script says of its study."""
    page = (RESULTS / "real_checkpoint" / "README.md").read_text(encoding="utf-8")
    script = ROOT / "experiments/studies/real_verdicts.py"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'analysis'}:{ROOT / 'src/python'}"}
    said: dict[tuple[str, str], str] = {}
    for study in ("real_tokens", "real_rate", "real_hybrid"):
        command = [sys.executable, str(script), str(RESULTS / "real_checkpoint/losses.csv")]
        command += ["--study", study]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        for part in done.stdout.split("| after ")[1:]:
            after = part.split(" |")[0].replace("cpt of ", "").replace("sft of ", "")
            row = r"(?m)^\| (\w+) \| ([^|]*) \| [^|]* \| ([^(|]*?) (?:\(|\|)"
            for arm, gaps, words in re.findall(row, part):
                verdict = words[0].lower() + words[1:] if " " in gaps else "one seed"
                key = f"{study} {after}" if study == "real_tokens" else study
                said[key, arm] = said.get((key, arm), "") + f" | {gaps} | {verdict}"
    places = {
        "real_tokens 76 steps": "2.5 M | 1e-4",
        "real_tokens 153 steps": "5 M | 1e-4",
        "real_rate": "10 M | 3e-4",
        "real_hybrid": "10 M | 1e-4",
    }
    rows = [f"| {places[where]} | {arm}{cells} |" for (where, arm), cells in said.items()]
    assert len(rows) == 13
    for row in rows:
        assert f"\n{row}\n" in page, row


def test_the_number_of_systems_with_results() -> None:
    text = (ROOT / "experiments/README.md").read_text(encoding="utf-8")
    table = text.split("| system | runs as | experiments |")[1].split("\n\n")[0]
    assert sum("`results/" in row.split("|")[3] for row in table.splitlines()[2:]) == 20
    assert "Twenty published systems run and have their claim" in TEXT


def test_the_range_of_the_checkpoint() -> None:
    text = (RESULTS / "smollm2.md").read_text(encoding="utf-8")
    costs = {
        row[0].split(" ")[0]: row
        for line in text.split("## After training")[0].splitlines()
        if len(row := [cell.strip() for cell in line.strip("|").split("|")]) == 5
    }
    gaps = {
        name: float(row[3]) for name, row in costs.items() if re.fullmatch(r"\+\d+(\.\d+)?", row[3])
    }
    fp8 = [gap for name, gap in gaps.items() if name not in ("nvfp4", "ptq_int8")]
    assert len(fp8) == 6
    assert f"FP8 recipe costs {min(fp8):.1f} to {max(fp8):.1f} % of the loss" in TEXT
    base = float(costs["bf16"][1])
    for name, gap in gaps.items():  # percent of the losses beside it, to their last digit
        assert 100.0 * (float(costs[name][1]) / base - 1.0) == pytest.approx(gap, abs=0.1), name


def test_kernels_that_are_broken_on_purpose_are_counted() -> None:
    script = ROOT / "tests/kernels/break_kernels.py"
    listed = subprocess.run([sys.executable, script, "list"], capture_output=True, check=True)
    assert f"{len(listed.stdout.splitlines())} kernels and 53 rules broken" in TEXT


# --- the default study ----------------------------------------------------------------------------


def rows(name: str, **chosen: str) -> list[dict[str, str]]:
    """Of a table beside the page of the default study."""
    with (QUICKSTART / f"{name}.csv").open(encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    found = [r for r in found if r["arm"].split(" ")[0] == chosen["arm"]]
    return [row for row in found if row["stage"] == chosen["stage"]]


def test_numbers_of_the_default_study() -> None:
    (cpt,) = rows("stages", arm="switchback_int8", stage="cpt")
    (sft,) = rows("stages", arm="switchback_int8", stage="sft")
    assert cpt["diverged"] == sft["diverged"] == cpt["seeds"] == "3"
    after = [f"{float(row['gap (%)']):.0f}" for row in (cpt, sft)]
    assert f"diverges: +{after[0]} % held-out loss after CPT, +{after[1]} % after SFT" in TEXT
    (fp8,) = rows("stages", arm="te_current", stage="cpt")
    assert fp8["verdict"] == "Equivalent within 5 % (95 %)"
    gap = f"+{float(fp8['gap (%)']):.2f} ± {float(fp8['± (%)']):.2f} %"
    assert f"equivalent to BF16 within the stated 5 %: {gap} after CPT (95 %" in TEXT
    broken = rows("runs", arm="switchback_int8", stage="cpt")
    leads = {int(row["breaks at"]) - int(row["warned at"]) for row in broken}
    assert {row["detector"] for row in broken} == {"outlier_channels"} and len(leads) == 1
    assert f"`outlier_channels` comes {leads.pop()} steps before the break" in TEXT


@needs_program
def test_the_arm_that_diverges_is_made_anew(tmp_path: Path) -> None:
    """Under a minute of processor time: the losses are those of the table, to its last digit."""
    study = ROOT / "experiments/studies/quickstart.toml"
    words = ("ablate", "--study", study, "--out", "runs", "--run")
    fp8lab(*words, "switchback_int8-seed1", folder=tmp_path)
    with h5py.File(tmp_path / "runs/switchback_int8-seed1/run.h5", "r") as file:
        stages, losses = file["eval/stage"][:], file["eval/loss"][:]
    for stage, name in enumerate(("cpt", "sft")):
        told = [r for r in rows("runs", arm="switchback_int8", stage=name) if r["seed"] == "1"]
        assert f"{losses[stages == stage][-1]:.6g}" == told[0]["held-out loss"]


def test_the_front_page_names_its_arithmetic() -> None:
    said = re.search(
        r"Numbers of this page: arithmetic ([\d.]+); those of .*? \(`(.*?)`\) ([\d.]+)", TEXT
    )
    assert said
    source = (ROOT / "src/train/checkpoint/identity.hpp").read_text(encoding="utf-8")
    assert f'kArithmetic[] = "{said[1]}"' in source
    for page in {page for _, page, _ in TOLD_ELSEWHERE} | {"quickstart/README.md"}:
        version = said[3] if page == said[2] else said[1]
        third = (RESULTS / page).read_text(encoding="utf-8").splitlines()[2]
        assert third.startswith(f"Numbers of this page: arithmetic {version}"), page
