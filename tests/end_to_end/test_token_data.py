"""Token shards and mixtures through the program: inspected, trained on, killed, resumed."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from test_training import PROGRAM, final_hash, kill_after, open_run, step_hashes, train

GOLDEN = Path(__file__).resolve().parents[1] / "golden/tokens"

MODEL = """
name = "tokens"
recipe = "infir2"
seed = 3
[model]
hidden_size = 128
intermediate_size = 256
num_hidden_layers = 1
num_attention_heads = 2
num_key_value_heads = 1
head_dim = 64
vocab_size = 288
[logging]
statistics_every_steps = 0
checkpoint_every_steps = 2
"""

MIXTURE = """
[[stages]]
name = "cpt"
kind = "cpt"
steps = 8
batch_sequences = 3
micro_batch_sequences = 1
sequence_length = 48
[stages.learning_rate]
warmup_steps = 1
[stages.data]
form = "running_text"
[[stages.data.sources]]
kind = "tokens"
path = "shards"
weight = 2.0
[[stages.data.sources]]
kind = "tokens"
path = ["gpt2.bin", "again.bin"]
document_begin = 5
[[stages.data.sources]]
kind = "tokens"
path = "megatron.bin"
weight = 0.5
range = [0.0, 0.5]
"""

SUMS = """
[[stages]]
name = "sft"
kind = "sft"
steps = 60
batch_sequences = 2
sequence_length = 96
[stages.learning_rate]
kind = "constant"
peak = 4e-3
warmup_steps = 5
[stages.data]
kind = "tokens"
path = "shards"
range = [0.0, 0.05]
[stages.eval]
every_steps = 60
sequences = 2
exact_match = 2
max_new_tokens = 24
[stages.eval.data]
kind = "tokens"
path = "shards/sums-00000.tokens"
"""


def llm_c(tokens: list[int]) -> bytes:
    header = struct.pack("<3i", 20240520, 1, len(tokens)).ljust(1024, b"\0")
    return header + struct.pack(f"<{len(tokens)}H", *tokens)


def megatron_index(lengths: list[int]) -> bytes:
    count = len(lengths)
    offsets = [2 * sum(lengths[:i]) for i in range(count)]
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, count, count + 1)
    arrays = struct.pack(f"<{count}i{count}q", *lengths, *offsets)
    return head + arrays + struct.pack(f"<{count + 1}q", *range(count + 1))


@pytest.fixture(name="folder")
def fixture_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of the run, with data of three formats."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(GOLDEN, "shards")
    numbers = [(i * i * 7 + i) % 200 + 10 for i in range(600)]
    Path("gpt2.bin").write_bytes(llm_c([5 if i % 31 == 0 else n for i, n in enumerate(numbers)]))
    Path("again.bin").write_bytes(llm_c([5, 40, 41, 42, 43, 5, 44, 45]))
    Path("megatron.bin").write_bytes(struct.pack("<60H", *range(100, 160)))
    Path("megatron.idx").write_bytes(megatron_index([20, 10, 25, 5]))
    return tmp_path


def write(folder: Path, stages: str) -> Path:
    config = folder / "run.toml"
    config.write_text(MODEL + stages)
    return config


def test_a_mixture_of_three_formats_resumes_to_the_same_bits(folder: Path) -> None:
    config = write(folder, MIXTURE)
    result = train(config, folder / "whole")
    assert result.returncode == 0, result.stderr
    expected = step_hashes(folder / "whole")
    assert len(set(expected)) == 8
    killed = 0
    for index, (checkpoints, delay) in enumerate([(1, 0), (2, 0.01), (3, 0)]):
        out = folder / f"killed{index}"
        process = subprocess.Popen(
            [PROGRAM, "train", "--config", str(config), "--out", str(out)],
            stdout=subprocess.DEVNULL,
        )
        killed += kill_after(process, out, checkpoints, delay)
        result = train(config, out, "--resume")
        assert result.returncode == 0, result.stderr
        assert step_hashes(out) == expected
        assert final_hash(out) == final_hash(folder / "whole")
    assert killed >= 2, "the runs must really have been killed"
    other = config.read_text().replace("weight = 2.0", "weight = 1.0")
    (folder / "other.toml").write_text(other)
    assert train(folder / "other.toml", folder / "other").returncode == 0
    assert step_hashes(folder / "other") != expected


def test_the_run_file_names_all_data_with_hashes(folder: Path) -> None:
    config = write(folder, MIXTURE.replace("steps = 8", "steps = 1"))
    assert train(config, folder / "run").returncode == 0
    with open_run(folder / "run") as run:
        (stage,) = json.loads(run["meta"].attrs["extra.data_manifest"])
    paths = ["shards/sums-00000.tokens", "gpt2.bin", "again.bin", "megatron.bin"]
    files = [file for source in stage["sources"] for file in source["files"]]
    assert [file["path"] for file in files] == paths
    assert [source["weight"] for source in stage["sources"]] == [2.0, 1.0, 0.5]
    command = [PROGRAM, "data", "inspect", "--json", "--document-begin", "5", *paths[1:3]]
    inspected = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert [facts["hash"] for facts in inspected] == [file["hash"] for file in files[1:3]]
    assert [facts["documents"] for facts in inspected] == [file["documents"] for file in files[1:3]]


def test_answers_are_read_through_the_table_of_token_bytes(folder: Path) -> None:
    """Two sums learnt by heart: the ids that are generated must read as "#### n"."""
    config = write(folder, SUMS)
    result = train(config, folder / "run")
    assert result.returncode == 0, result.stderr
    with open_run(folder / "run") as run:
        assert run["/eval/exact_match_count"][-1] == 2
        assert run["/eval/exact_match"][-1] == 1.0


def test_data_that_does_not_fit_is_refused_before_anything_is_written(folder: Path) -> None:
    config = write(folder, SUMS)
    cases = {
        "model.vocab_size=272": "needs a vocabulary of 284, model.vocab_size is 272",
        "stages.sft.data.path=gpt2.bin": "no loss mask",
        "stages.sft.data.path=none": "cannot open",
        "stages.sft.data.path=run.toml": "not a token file",
        'stages.sft.eval.data={kind="arithmetic", problems=5}': "beside data of the tokenizer",
        "stages.sft.data.weight=2": "unknown key 'stages.data.weight'",
        "stages.sft.data.sources=[]": "at least one",
    }
    for assignment, message in cases.items():
        result = train(config, folder / "run", "--set", assignment)
        assert result.returncode == 2, assignment
        assert message in result.stderr and result.stderr.count("\n") == 1, result.stderr
    (folder / "shards/token_bytes.json").unlink()
    result = train(config, folder / "run")
    assert result.returncode == 2 and "no token_bytes.json" in result.stderr
    assert not (folder / "run").exists()


def test_inspect_prints_what_a_file_holds_and_refuses_what_is_damaged(folder: Path) -> None:
    def inspect(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [PROGRAM, "data", "inspect", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    result = inspect("shards", "gpt2.bin")
    assert result.returncode == 0 and result.stdout.count("\n") == 2
    for words in ("documents 40", "tokens 1328", "trained_tokens 656", "format llm.c"):
        assert words in result.stdout
    (facts,) = json.loads(inspect("shards", "--document", "3", "--json").stdout)
    said = "Question: What is 3 plus 9?\nAnswer: 3 + 9 = 12\n#### 12"
    assert facts["text"] == f"<|begin|>{said}<|end|>"
    damaged = bytearray((folder / "shards/sums-00000.tokens").read_bytes())
    damaged[-100] ^= 1
    (folder / "damaged.tokens").write_bytes(damaged)
    for arguments, message in {
        ("damaged.tokens",): "damaged: its contents have the hash",
        ("none.tokens",): "cannot open",
        ("shards", "--document", "40"): "no document 40",
        (): "no path",
    }.items():
        result = inspect(*arguments)
        assert result.returncode == 2 and result.stdout == ""
        assert message in result.stderr and result.stderr.count("\n") == 1


def obeyed(text: bytes) -> list[int]:
    """Bytes that a terminal obeys, but for the ends of lines and tabs."""
    characters = text.decode()  # strict: nothing that is no UTF-8
    return [ord(c) for c in characters if (c < " " and c not in "\n\t") or "\x7f" <= c <= "\x9f"]


def test_a_document_is_printed_without_what_a_terminal_obeys(folder: Path) -> None:
    table = json.loads((folder / "shards/token_bytes.json").read_text())
    said = b"\x1b[2J\x07\xc2\x9b1m\x9b\x7f\r\nnew\tline \xc3\xa9 " + b"long " * 60
    table["tokens"][222] = said.hex()  # a token of every document
    (folder / "shards/token_bytes.json").write_text(json.dumps(table))
    command = [PROGRAM, "data", "inspect", "shards", "--document", "3"]
    printed = subprocess.run(command, capture_output=True, check=True).stdout
    assert obeyed(printed) == []
    lines = printed.decode().splitlines()
    assert max(map(len, lines[1:])) <= 100
    assert lines.pop(1) == "  ids, in brackets those that are not trained on"
    text = "".join(line.removeprefix("  | ") for line in lines if line.startswith("  | "))
    spelled = "\\x1b[2J\\x07\\x9b1m\\x9b\\x7f\\x0dnew\tline é " + "long " * 60
    assert text.count(spelled) == 6
    # The ids, in brackets where they are not trained on; --json has all as it is.
    (facts,) = json.loads(subprocess.run([*command, "--json"], capture_output=True).stdout)
    ids = " ".join(line.strip() for line in lines[1:] if not line.startswith("  | ")).split()
    marks = zip(facts["ids"], facts["trained"], strict=True)
    assert ids == [str(i) if trained == "1" else f"[{i}]" for i, trained in marks]
    assert "\x1b[2J" in facts["text"]


def test_completions_are_printed_without_what_a_terminal_obeys(tmp_path: Path) -> None:
    """A model that has learnt nothing says any bytes."""
    (tmp_path / "text.txt").write_text("some words\n\n" * 40)
    (tmp_path / "run.toml").write_text(
        MODEL
        + '[[stages]]\nname = "cpt"\nkind = "cpt"\nsteps = 1\nbatch_sequences = 1\n'
        + "sequence_length = 16\n[stages.learning_rate]\nwarmup_steps = 0\n"
        + '[stages.data]\nkind = "text"\npath = "TEXT"\n'.replace(
            "TEXT", str(tmp_path / "text.txt")
        )
    )
    assert train(tmp_path / "run.toml", tmp_path / "run").returncode == 0
    words = ["--prompt", "a", "--samples", "4", "--max-new-tokens", "100", "--temperature", "1"]
    command = [PROGRAM, "generate", str(tmp_path / "run"), *words]
    printed = subprocess.run(command, capture_output=True, check=True).stdout
    assert obeyed(printed) == []
    assert b"\\x" in printed


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q"]))
