"""Stages with an objective of their own: what they read, log and refuse."""

import json
import sys
from pathlib import Path

import numpy as np
from test_provenance import (
    column,
    interrupted,
    open_run,
    refused,
    run,
    stage,
    train,
    trained,
    write_config,
)

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "analysis"))
sys.path.insert(0, str(ROOT / "src/python"))

from fp8lab_analysis.read.run_reader import load_run  # noqa: E402

OBJECTIVE = 'objective.kind = "policy_gradient"\n'


def records(path: Path, advantages: list[object]) -> str:
    """JSON lines of answers with these advantages, None for none, as the data of a stage."""
    with path.open("w") as file:
        for i, advantage in enumerate(advantages):
            line: dict[str, object] = {"question": f"{i} and {i}?", "answer": f"{2 * i}"}
            if advantage is not None:
                line["advantage"] = advantage
            file.write(json.dumps(line) + "\n")
    return f'data = {{kind = "jsonl", path = "{path}"}}\n'


def test_a_policy_gradient_trains_resumes_and_logs_its_advantages(tmp_path: Path) -> None:
    data = records(tmp_path / "records.jsonl", [1.0, -0.5, 0.25, 0.0] * 10)
    stages = (
        stage("sft", "sft", steps=3, more=data),
        stage("rl", "sft", steps=20, more=data + OBJECTIVE),
    )
    config = write_config(tmp_path, *stages)
    trained(config, tmp_path / "whole")
    advantage = np.array(column(tmp_path / "whole", "metrics/advantage"))
    assert np.isnan(advantage[:3]).all()
    assert np.isfinite(advantage[3:]).all()
    assert len(set(advantage[3:].tolist())) > 3 and np.abs(advantage[3:]).max() < 1.0
    with open_run(tmp_path / "whole") as file:
        attributes = dict(file["metrics/advantage"].attrs)
    assert attributes["units"] == b"1" and b"advantage" in attributes["description"]

    (tmp_path / "other").mkdir()
    again = write_config(tmp_path / "other", stages[1])
    trained(again, tmp_path / "again")
    interrupted(again, tmp_path / "half")
    trained(again, tmp_path / "half", "--resume")
    for path in ("metrics/loss", "metrics/advantage", "hashes/weights", "complete"):
        whole, half = column(tmp_path / "again", path), column(tmp_path / "half", path)
        assert np.array_equal(whole, half), path

    read = load_run(tmp_path / "whole" / "run.h5")
    assert np.array_equal(read.metrics.objective["advantage"], advantage, equal_nan=True)
    from fp8lab.runs import read_run

    assert np.array_equal(read_run(tmp_path / "whole").metrics["advantage"], advantage, True)


def test_advantages_of_one_are_cross_entropy_and_a_run_of_it_logs_none(tmp_path: Path) -> None:
    data = records(tmp_path / "records.jsonl", [1.0] * 20)
    for name, objective in (("plain", ""), ("policy", OBJECTIVE)):
        (tmp_path / name).mkdir()
        trained(
            write_config(tmp_path / name, stage("sft", "sft", more=data + objective)),
            tmp_path / name / "run",
        )
    plain, policy = tmp_path / "plain/run", tmp_path / "policy/run"
    assert column(plain, "metrics/loss") == column(policy, "metrics/loss")
    assert column(plain, "complete") == column(policy, "complete")
    assert set(column(policy, "metrics/advantage")) == {1.0}
    with open_run(plain) as file:
        assert "advantage" not in file["metrics"]
    assert load_run(plain / "run.h5").metrics.objective == {}


def test_data_and_settings_that_do_not_fit_an_objective_are_refused(tmp_path: Path) -> None:
    data = records(tmp_path / "records.jsonl", [1.0, 2.0, None])
    config = write_config(tmp_path, stage("rl", "sft", more=data + OBJECTIVE))
    refused(train(config, tmp_path / "run"), "records.jsonl:3: ", '"advantage"')
    refused(train(config, tmp_path / "run", "--dry-run"), "records.jsonl:3: ", '"advantage"')
    config = write_config(tmp_path, stage("rl", "sft", more=OBJECTIVE))
    refused(train(config, tmp_path / "run"), "arithmetic", '"advantage"', 'kind = "jsonl"')
    spike = 'fallback = {recipe = "bf16", when = {loss_spike = 2.0}}\n'
    config = write_config(tmp_path, stage("rl", "sft", more=data + OBJECTIVE + spike))
    refused(train(config, tmp_path / "run"), "config.toml:", "loss_spike", "gradient_norm")
    config = write_config(tmp_path, stage("rl", "sft", more='objective.kind = "reward"\n'))
    refused(train(config, tmp_path / "run"), "objective.kind", "cross_entropy, policy_gradient")


def test_other_advantages_make_another_run(tmp_path: Path) -> None:
    data = records(tmp_path / "records.jsonl", [1.0, -1.0] * 10)
    config = write_config(tmp_path, stage("rl", "sft", steps=40, more=data + OBJECTIVE))
    interrupted(config, tmp_path / "run")
    records(tmp_path / "records.jsonl", [-1.0, 1.0] * 10)
    refused(train(config, tmp_path / "run", "--resume"), "training data of stage rl")
    records(tmp_path / "records.jsonl", [1.0, -1.0] * 10)
    verified = run("verify", tmp_path / "run" / "run.h5")
    assert verified.returncode == 0, (verified.stdout, verified.stderr)
