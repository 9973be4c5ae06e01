"""`train --dry-run --kernels` prints the CUDA kernels of a step on a machine without a GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from program import refused, succeeded

FEW = ("batch_sequences=1", "micro_batch_sequences=1", "sequence_length=128")


def plan(folder: Path, recipe: str, *options: str) -> str:
    """A dry run, which times the operations of a step: of few tokens."""
    few = [word for setting in FEW for word in ("--set", f"stages.*.{setting}")]
    words = ("train", "--preset", "quickstart", "--recipe", recipe, *few, "--dry-run")
    return succeeded(*words, *options, cwd=folder)


@pytest.mark.parametrize(
    ("recipe", "kernels"),
    [
        (
            "te_current",
            [
                "amax of the tensor, scale_kernel, block_kernel with the e4m3 instruction",
                "rows with sums of columns in registers",
                "tensor core sm90_wgmma_fp8/fast",
            ],
        ),
        ("deepseek_v3", ["block_kernel with the e4m3 instruction, both orientations"]),
        ("bf16", ["rows in registers", "tensor core sm90_bf16"]),
    ],
)
def test_the_kernels_of_a_step(tmp_path: Path, recipe: str, kernels: list[str]) -> None:
    said = plan(tmp_path, recipe, "--kernels")
    heading = "CUDA kernels of a step: "
    assert said.count(heading) == 1
    listed = said.split(heading, 1)[1]
    assert f"stage pretrain, recipe {recipe}:\n" in listed
    assert f"stage cpt, recipe {recipe}: as stage pretrain\n" in listed
    for text in kernels:
        assert text in listed
    if recipe == "bf16":
        assert heading not in plan(tmp_path, recipe)


def test_equal_stages_are_timed_once_and_others_by_themselves(tmp_path: Path) -> None:
    sizes = {"pretrain": 1, "cpt": 8, "sft": 1}
    words = ["--set", "stages.*.sequence_length=128"]
    for stage, size in sizes.items():
        for key in ("batch_sequences", "micro_batch_sequences"):
            words += ["--set", f"stages.{stage}.{key}={size}"]
    said = succeeded("train", "--preset", "quickstart", *words, "--dry-run", cwd=tmp_path)
    pretrain, cpt, sft = re.findall(r"time about ([\d.e-]+) s a step, from .*", said)
    assert float(cpt) > 2 * float(pretrain) and sft == pretrain


def test_kernels_are_of_a_plan(tmp_path: Path) -> None:
    assert "--kernels is for --dry-run" in refused(
        "train", "--preset", "quickstart", "--kernels", cwd=tmp_path
    )
