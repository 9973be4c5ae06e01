"""fp8lab.Model: what it computes follows from its own definition, and what it refuses."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

fp8lab = pytest.importorskip("fp8lab", reason="the package fp8lab is not built")
from fp8lab import _library as library  # noqa: E402

SHAPE = """
vocab_size = 61
hidden_size = 48
intermediate_size = 80
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
head_dim = 20
qkv_bias = false
qk_norm = true
initializer_range = 0.2
"""


@pytest.fixture
def shape(tmp_path: Path) -> Path:
    file = tmp_path / "model.toml"
    file.write_text(SHAPE)
    return file


def make(source: Path, **options: Any) -> Any:
    return fp8lab.Model(source, threads=1, **{"recipe": "fp32", **options})


def tokens(seed: int = 1) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 61, (2, 12))


def test_loss_is_the_cross_entropy_of_the_logits(shape: Path) -> None:
    model = make(shape)
    batch = tokens()
    targets = np.full_like(batch, -100)
    targets[:, 2:-1] = batch[:, 3:]
    logits = model.logits(batch).astype(np.float64)
    assert logits.shape == (2, 12, 61)
    log_sum = np.log(np.exp(logits).sum(-1))
    rows, columns = np.nonzero(targets >= 0)
    picked = logits[rows, columns, targets[rows, columns]]
    expected = (log_sum[rows, columns] - picked).mean()
    assert model.loss(batch, targets) == pytest.approx(expected, rel=1e-6)
    following = np.full_like(batch, -1)
    following[:, :-1] = batch[:, 1:]
    assert model.loss(batch) == model.loss(batch, following) != model.loss(batch, targets)


def test_gradients_are_slopes_of_the_loss(shape: Path) -> None:
    model = make(shape, backend="truth")
    loss, gradients = model.gradients(tokens())
    weights = model.parameters()
    assert loss == model.loss(tokens())
    assert gradients.keys() == weights.keys()
    for name in ("model.layers.1.self_attn.k_norm.weight", "model.layers.0.mlp.up_proj.weight"):
        assert gradients[name].shape == weights[name].shape
        losses = []
        for sign in (1, -1):
            moved = dict(weights)
            moved[name] = weights[name].copy()
            moved[name].flat[7] += np.float32(sign * 2.0**-10)
            model.set_parameters(moved)
            losses.append(model.loss(tokens()))
        slope = (losses[0] - losses[1]) * 2.0**9
        assert gradients[name].flat[7] == pytest.approx(slope, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("keys", ["lora_rank = 2", "qk_norm = true\nqk_norm_frozen = true"])
def test_frozen_weights_have_no_gradient(tmp_path: Path, keys: str) -> None:
    text = "vocab_size = 61\nhidden_size = 32\nintermediate_size = 48\nnum_hidden_layers = 2\n"
    model_file = tmp_path / "model.toml"
    model_file.write_text(f"{text}num_attention_heads = 2\n{keys}\n")
    model = make(model_file)
    _, gradients = model.gradients(tokens())
    weights = model.parameters()
    frozen = weights.keys() - gradients.keys()
    if "lora" in keys:
        assert gradients and all(".lora_" in name for name in gradients)
        assert not any(".lora_" in name for name in frozen)
    else:
        assert len(frozen) == 4 and all(name.endswith("_norm.weight") for name in frozen)
    total = sum(float(np.square(one.astype(np.float64)).sum()) for one in gradients.values())
    norm = model.step(tokens(), learning_rate=0.0).gradient_norm
    assert total**0.5 == pytest.approx(norm, rel=1e-6)


def test_a_step_is_adamw(shape: Path) -> None:
    options = {"weight_decay": 0.5, "clip_norm": 0.25, "beta1": 0.8, "beta2": 0.9}
    model = make(shape, **options)
    before = model.parameters()
    loss, gradients = model.gradients(tokens())
    norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in gradients.values()))
    step = model.step(tokens(), learning_rate=0.01)
    assert step.loss == loss
    assert step.gradient_norm == pytest.approx(norm, rel=1e-6)
    assert model.steps == 1
    for name, weight in model.parameters().items():
        gradient = gradients[name] * min(1.0, 0.25 / (norm + 1e-6))
        decay = 0.5 if weight.ndim > 1 else 0.0
        expected = before[name] * (1 - 0.01 * decay)
        expected = expected - 0.01 * gradient / (np.abs(gradient) + 1e-8)
        assert np.allclose(weight, expected, rtol=1e-5, atol=1e-7), name


def test_saved_models_are_the_same(shape: Path, tmp_path: Path) -> None:
    model = make(shape, recipe="infir2", seed=5)
    model.step(tokens(), learning_rate=1e-3)
    model.save(tmp_path / "saved", dtype="f32")
    loaded = make(tmp_path / "saved", recipe="infir2")
    assert loaded.config == model.config
    assert np.array_equal(loaded.logits(tokens()), model.logits(tokens()))
    other = make(shape, recipe="infir2")
    assert not np.array_equal(other.logits(tokens()), model.logits(tokens()))
    other.set_parameters(model.parameters())
    assert np.array_equal(other.logits(tokens()), model.logits(tokens()))


@pytest.mark.parametrize("recipe", [None, "infir2", "fp8_block128"])
def test_models_of_no_family_are_not_saved(recipe: str | None, tmp_path: Path) -> None:
    file = tmp_path / "model.toml"
    file.write_text(SHAPE + 'feed_forward = "xielu"\n')
    with pytest.raises(fp8lab.Error, match="no family of transformers has .*xielu"):
        make(file).save(tmp_path / "saved", recipe=recipe)
    assert not (tmp_path / "saved").exists()


def test_greedy_completions_follow_the_logits(shape: Path) -> None:
    model = make(shape, recipe="infir2", seed=5)
    prompts = [[3, 1, 4], [1, 5, 9, 2, 6, 5, 3]]
    found = model.generate(prompts, max_new_tokens=6)
    for prompt, completion in zip(prompts, found):
        assert len(completion.tokens) == len(completion.log_probabilities) == 6
        sequence = prompt + completion.tokens
        best = model.logits([sequence])[0].argmax(axis=1)
        assert list(best[len(prompt) - 1 : -1]) == completion.tokens
        scored = model.log_probabilities([sequence])[0, len(prompt) - 1 :]
        assert np.array_equal(scored, np.float32(completion.log_probabilities))
    end = found[0].tokens[2]
    assert model.generate(prompts, end=end)[0].tokens[-1] == end
    assert model.generate(prompts, end=end)[0].ended


def test_log_probabilities_are_those_of_a_softmax(shape: Path) -> None:
    model = make(shape, recipe="fp32", seed=5)
    logits = model.logits(tokens()).astype(np.float64)
    exact = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    expected = np.take_along_axis(exact[:, :-1], tokens()[:, 1:, None], axis=-1)[..., 0]
    assert np.allclose(model.log_probabilities(tokens()), expected, rtol=1e-6, atol=1e-6)


def test_samples_depend_on_their_keys_alone(shape: Path) -> None:
    model = make(shape, recipe="infir2", seed=5)
    prompts = [[3, 1, 4], [1, 5], [9, 2, 6, 5]]
    how: dict[str, Any] = {"temperature": 2.0, "max_new_tokens": 10, "seed": 3}
    found = model.generate(prompts, **how)
    assert found == model.generate(prompts, **how, together=1)
    assert found[:1] == model.generate(prompts[:1], **how)
    assert found != model.generate(prompts, **how, sample=1)
    for completion in model.generate(prompts, **{**how, "top_k": 1}):
        assert completion in model.generate(prompts, max_new_tokens=10)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_weights_that_are_no_numbers_are_refused(shape: Path, value: float, dtype: type) -> None:
    model = make(shape)
    before = model.parameters()
    weights = {name: (array * 2).astype(dtype) for name, array in before.items()}
    weights["model.norm.weight"][3] = value
    word = "NaN" if np.isnan(value) else "infinite"
    with pytest.raises(fp8lab.Error, match=rf"tensor 'model.norm.weight' is {word} at \(3\)"):
        model.set_parameters(weights)
    after = model.parameters()
    assert all(np.array_equal(after[name], array) for name, array in before.items())


@pytest.mark.parametrize(
    "rate",
    [np.nan, np.inf, -np.inf, -1e-3, 10.5, 1e300, pytest.param(10**400, id="beyond floats")],
)
def test_learning_rates_beyond_those_of_runs_are_refused(shape: Path, rate: float) -> None:
    model = make(shape)
    before = model.parameters()
    with pytest.raises(fp8lab.Error, match=r"learning_rate: .*; accepted: a number from 0 to 10$"):
        model.step(tokens(), learning_rate=rate)
    after = model.parameters()
    assert model.steps == 0
    assert all(np.array_equal(after[name], array) for name, array in before.items())
    model.step(tokens(), learning_rate=np.float32(0.5))
    assert model.steps == 1


def test_the_library_itself_refuses_such_rates(shape: Path) -> None:
    """For callers of the C interface: the package checks nothing before the call."""
    model = make(shape)
    batch = [library.numpy_array(array, "tokens") for array in model._batch(tokens(), None)]
    results = [ctypes.byref(ctypes.c_double()) for _ in range(2)]
    for rate in (np.nan, np.inf, -1e-3, 10.5):
        with pytest.raises(fp8lab.Error, match=r"^learning_rate: .*; accepted: a number from 0"):
            none = ctypes.byref(library.Columns())
            library.call("model_step", model._model, *batch, none, float(rate), *results)
    assert model.steps == 0


def test_a_model_whose_weights_overflowed_is_not_saved(shape: Path, tmp_path: Path) -> None:
    model = make(shape, weight_decay=10.0)
    for _ in range(60):
        if not all(np.isfinite(array).all() for array in model.parameters().values()):
            break
        model.step(tokens(), learning_rate=10.0)
    with pytest.raises(
        fp8lab.Error, match=r"^tensor 'model.* is (NaN|infinite) at \(\d+"
    ) as caught:
        model.save(tmp_path / "saved")
    assert "\n" not in str(caught.value) and not (tmp_path / "saved").exists()


def test_arguments_of_another_type_are_type_errors(shape: Path, tmp_path: Path) -> None:
    model = make(shape)
    weights = model.parameters()
    first = next(iter(weights.values()))
    cases: list[tuple[str, Any]] = [
        ("learning_rate", lambda: model.step(tokens(), learning_rate="0.1")),
        ("learning_rate", lambda: model.step(tokens(), learning_rate=None)),
        ("dtype", lambda: model.save(tmp_path / "saved", dtype=None)),
        ("folder", lambda: model.save(None)),
        ("recipe", lambda: model.save(tmp_path / "saved", recipe=8)),
        ("weights", lambda: model.set_parameters(None)),
        ("a name of weights", lambda: model.set_parameters({**weights, 8: first})),
        ("prompts", lambda: model.generate(None)),
        ("prompts", lambda: model.generate([1, 2])),
        ("prompts", lambda: model.generate([[1.5]])),
        ("max_new_tokens", lambda: model.generate([[1]], max_new_tokens="8")),
        ("together", lambda: model.generate([[1]], together=None)),
        ("sample", lambda: model.generate([[1]], sample=0.5)),
    ]
    for name, call in cases:
        with pytest.raises(TypeError) as caught:
            call()
        assert str(caught.value).startswith(name) and "\n" not in str(caught.value)
    assert not (tmp_path / "saved").exists()


def test_threads_take_turns_with_a_model(shape: Path) -> None:
    """In a process of its own: two calls at once abort it."""
    words = [sys.executable, "-c", THREADS, str(shape)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout == "equal\n", done.stderr[-2000:]


THREADS = """
import sys, threading, fp8lab, numpy as np
model = fp8lab.Model(sys.argv[1], recipe="infir2", threads=1)
batches = [np.random.default_rng(seed).integers(0, 61, (2, 12)) for seed in (1, 2)]


def all_of(batch):
    loss, gradients = model.gradients(batch)
    completion = model.generate([batch[0].tolist()], max_new_tokens=2)[0]
    return [model.logits(batch), loss, *gradients.values(), completion.log_probabilities]


def use(batch, found):
    for _ in range(20):
        found.append(all_of(batch))


expected = [all_of(batch) for batch in batches]
found = [[], []]
threads = [threading.Thread(target=use, args=pair) for pair in zip(batches, found)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for results, right in zip(found, expected):
    assert len(results) == 20
    for result in results:
        assert all(np.array_equal(part, other) for part, other in zip(result, right))
print("equal")
"""


def test_refusals(shape: Path, tmp_path: Path) -> None:
    model = make(shape)
    batch = tokens()
    weights = model.parameters()
    cases: list[tuple[Any, str]] = [
        (lambda: model.logits(batch[0]), r"shape \(12,\); accepted: integers of shape"),
        (lambda: model.logits(batch * 1.0), "float64"),
        (lambda: model.logits(batch + 61), "not in the vocabulary of 61"),
        (lambda: model.logits(batch - 100), "token -1 is not in the vocabulary"),
        (lambda: model.loss(batch, batch[:1]), "24 tokens and 12 targets"),
        (lambda: model.loss(batch, batch + 61), "target .* is not in the vocabulary"),
        (lambda: model.set_parameters({}), "no tensor 'model.embed_tokens.weight'"),
        (lambda: model.set_parameters({**weights, "x": batch[:1]}), "x: elements are int64"),
        (lambda: model.save(tmp_path / "f8", dtype="f8"), "accepted: bf16, f16, f32"),
        (lambda: model.generate([[]]), "prompt 0 has 0 tokens"),
        (lambda: model.generate([[1], [61]]), "prompt 1: token 61 is not in the vocabulary of 61"),
        (lambda: model.generate([[1]], temperature=-1), "'temperature' is -1; accepted: a number"),
        (lambda: model.generate([[1]], top_k=0.5), "'top_k' is 0.5; accepted: an integer"),
        (lambda: make(shape, beta1=1.0), "'beta1' is 1.0; accepted: a number from 0 to 0.99999"),
        (lambda: make(shape, clip_norm=10**400), "'clip_norm' is inf; accepted: a number from 0"),
        (lambda: model.generate([[1]], temperature=np.nan), "'temperature' is nan; accepted"),
        (lambda: make(tmp_path / "none"), "unknown model|does not exist"),
        (lambda: make(shape, recipe="none"), "unknown recipe 'none'"),
        (lambda: make(shape, backend="none"), "unknown backend 'none'"),
    ]
    for call, message in cases:
        with pytest.raises(fp8lab.Error, match=message):
            call()


# --- objectives -----------------------------------------------------------------------------------

OBJECTIVES = ("cross_entropy", "policy_gradient")
LENGTH = 48
RUN = """
name = "r"
recipe = "infir2"
seed = 3
[model]
{shape}
[[stages]]
name = "s"
kind = "sft"
steps = 4
batch_sequences = 1
sequence_length = {length}
learning_rate = {{peak = 0.01, warmup_steps = 1}}
objective.kind = "{objective}"
data = {{kind = "jsonl", path = "{data}"}}
[logging]
statistics_every_steps = 0
"""


@pytest.mark.skipif("FP8LAB_PROGRAM" not in os.environ, reason="FP8LAB_PROGRAM names no program")
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_objectives_train_as_the_program_does(tmp_path: Path, objective: str) -> None:
    """One document, longer than a sequence, so that each step has the same tokens."""
    prompt, completion = "What is the sum of 2 and 3? ", "It is 5, as is that of 1 and 4."
    record = {"prompt": prompt, "completion": completion, "advantage": -0.375}
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps(record) + "\n")
    shape_text = SHAPE.replace("vocab_size = 61", "vocab_size = 272")
    words = {"shape": shape_text, "length": LENGTH, "objective": objective, "data": data}
    (tmp_path / "run.toml").write_text(RUN.format(**words))
    (tmp_path / "model.toml").write_text(shape_text)
    command = [os.environ["FP8LAB_PROGRAM"], "train", "--config", tmp_path / "run.toml"]
    done = subprocess.run([*command, "--out", tmp_path / "run"], capture_output=True, text=True)
    assert done.returncode in (0, 5), done.stderr
    metrics = fp8lab.read_run(tmp_path / "run").metrics
    begin = 256  # the id after those of bytes
    ids = np.array([[begin, *(prompt + completion).encode()][: LENGTH + 1]])
    batch, targets = ids[:, :-1], ids[:, 1:].copy()
    targets[:, : len(prompt)] = -1
    more = {} if objective == "cross_entropy" else {"advantage": np.full(batch.shape, -0.375)}
    model = make(tmp_path / "model.toml", recipe="infir2", seed=3, objective=objective)
    plain = make(tmp_path / "model.toml", recipe="infir2", seed=3)
    likelihood = plain.loss(batch, targets)
    assert model.loss(batch, targets) == likelihood  # whatever it trains
    assert (model.gradients(batch, targets, columns=more)[0] == likelihood) == (not more)
    for row, rate in enumerate(metrics["learning_rate"]):
        step = model.step(batch, targets, learning_rate=rate, columns=more)
        logged = metrics["loss"][row], metrics["grad_norm"][row]
        assert (step.loss, step.gradient_norm) == logged, row
    assert len(metrics["loss"]) == 4 and len(set(metrics["loss"])) == 4


def test_columns_that_do_not_fit_an_objective_are_refused(shape: Path) -> None:
    model = make(shape, objective="policy_gradient")
    advantage = np.ones((2, 12))

    def refused(words: str, **columns: Any) -> None:
        for call in (model.gradients, lambda *a, **k: model.step(*a, learning_rate=0.1, **k)):
            with pytest.raises(fp8lab.Error, match=words):
                call(tokens(), columns=columns)

    refused("column 'advantage' is missing; accepted: float32 of the shape of the tokens")
    refused("unknown column 'reward'; accepted: advantage", advantage=advantage, reward=advantage)
    refused(
        r"'advantage' is float32 of shape \(2, 11\); accepted: .* \(2, 12\)",
        advantage=np.ones((2, 11)),
    )
    refused("column 'advantage': <U1; accepted: numbers", advantage=np.array([["a"]]))
    refused("column 'advantage': rows of unequal length", advantage=[[1.0, 2.0], [1.0]])
    wrong = advantage.copy()
    for value, words in ((1e39, r"1e\+39"), (-1e300, r"1e\+300")):
        wrong[1, 4] = value
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            refused(f"column 'advantage': {words}; accepted: float32, at most", advantage=wrong)
    wrong[1, 4] = np.inf
    refused(r"column 'advantage' is inf at \(1, 4\); accepted: finite numbers", advantage=wrong)
    wrong[1, 4] = np.nan
    refused(r"column 'advantage' is nan at \(1, 4\); accepted: finite numbers", advantage=wrong)
    wrong[1, 4], wrong[0, 11] = 1.0, np.inf  # the last token has no target
    assert model.gradients(tokens(), columns={"advantage": wrong})[0] == model.loss(tokens())
    assert model.steps == 0
    with pytest.raises(TypeError, match="columns: list; accepted: a mapping of names to arrays"):
        model.gradients(tokens(), columns=[advantage])
    with pytest.raises(fp8lab.Error, match="unknown column 'advantage'; accepted: none, for this"):
        make(shape).step(tokens(), learning_rate=0.1, columns={"advantage": advantage})
    expected = "'objective' is 'policy' .*policy_gradient.*; accepted: cross_entropy, policy_"
    with pytest.raises(fp8lab.Error, match=expected):
        make(shape, objective="policy")
    with pytest.raises(TypeError, match="objective"):
        make(shape, objective=None)
