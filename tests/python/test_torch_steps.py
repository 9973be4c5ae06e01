"""fp8lab.torch: what a model carries from step to step."""

from __future__ import annotations

import copy
import io

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch_small import Model, inputs, model, run, same  # noqa: E402

import fp8lab.torch  # noqa: E402

Tensor = torch.Tensor


def steps(converted: Model, first: int, last: int) -> dict[str, Tensor]:
    found = {}
    for step in range(first, last):
        found = run(converted, inputs(step))
        fp8lab.torch.end_step(converted)
    return found


@pytest.mark.parametrize("recipe", ["infir2", "te_delayed", "nvfp4_no_rht"])
def test_a_state_continues_with_the_same_bits(recipe: str) -> None:
    whole = fp8lab.torch.convert(model(), recipe)
    steps(whole, 0, 2)
    file = io.BytesIO()
    torch.save(fp8lab.torch.state(whole), file)
    copied = copy.deepcopy(whole)
    file.seek(0)
    resumed = fp8lab.torch.convert(model(), recipe)
    fp8lab.torch.load_state(resumed, torch.load(file, weights_only=True))
    expected = steps(whole, 2, 4)
    assert same(steps(resumed, 2, 4), expected)
    assert same(steps(copied, 2, 4), expected)
    if recipe != "infir2":
        assert not same(steps(fp8lab.torch.convert(model(), recipe), 2, 4), expected)


def in_parts(recipe: str, *seeds: int) -> Model:
    converted = model()
    for layer, seed in zip(converted.layers, seeds):
        fp8lab.torch.convert(layer, recipe, seed=seed)
    return converted


@pytest.mark.parametrize("recipe", ["te_delayed", "nvfp4_no_rht"])
def test_parts_converted_apart_all_move_on(recipe: str) -> None:
    whole = in_parts(recipe, 1, 2)
    steps(whole, 0, 2)
    saved = fp8lab.torch.state(whole)
    assert saved["clock"].tolist() == [[1, 2, 0, 0], [2, 2, 0, 0]]
    resumed = in_parts(recipe, 1, 2)
    fp8lab.torch.load_state(resumed, saved)
    assert same(steps(resumed, 2, 4), steps(whole, 2, 4))
    with pytest.raises(fp8lab.torch.Error, match="a state of 2 parts .* accepted: 1"):
        fp8lab.torch.load_state(in_parts(recipe, 1), {**saved, "layers": {}})


def test_parts_do_not_share_random_words() -> None:
    converted = in_parts("nvfp4_no_rht", 1, 1)
    for act in (fp8lab.torch.end_step, fp8lab.torch.state):
        with pytest.raises(fp8lab.torch.Error, match="layers.0.up_proj and layers.1.up_proj were"):
            act(converted)
    fp8lab.torch.end_step(in_parts("infir2", 1, 1))


def test_a_state_of_the_beginning_rewinds() -> None:
    converted = fp8lab.torch.convert(model(), "te_delayed")
    beginning = fp8lab.torch.state(converted)
    expected = steps(converted, 0, 2)
    fp8lab.torch.load_state(converted, beginning)
    assert same(steps(converted, 0, 2), expected)


@pytest.mark.parametrize("passes", [1, 2])
def test_a_step_continues_in_a_copy(passes: int) -> None:
    """A copy and a saved state in mid-step keep the amaxes; also steps that end before a pass."""
    whole = fp8lab.torch.convert(model(), "te_delayed")
    steps(whole, 0, 2)
    for index in range(passes):
        run(whole, 9 * inputs(index))
    copied = copy.deepcopy(whole)
    loaded = fp8lab.torch.convert(model(), "te_delayed")
    saved = fp8lab.torch.state(whole)
    fp8lab.torch.load_state(loaded, saved)
    for own in saved["layers"].values():
        own.pop("amaxes")
    lossy = fp8lab.torch.convert(model(), "te_delayed")
    fp8lab.torch.load_state(lossy, saved)
    for each in (whole, copied, loaded, lossy):
        fp8lab.torch.end_step(each)
    later = copy.deepcopy(loaded)
    for each in (whole, copied, loaded, lossy, later):
        fp8lab.torch.end_step(each)
    expected = steps(whole, 4, 6)
    assert all(same(steps(each, 4, 6), expected) for each in (copied, loaded, later))
    assert not same(steps(lossy, 4, 6), expected)


def test_more_rows_in_a_step_keep_its_amaxes() -> None:
    converted = fp8lab.torch.convert(model(), "te_delayed")
    few, many = 9 * inputs(1, (2,)), inputs(2, (40,))
    for x in (few, many):
        run(converted, x)
    fp8lab.torch.end_step(converted)
    history = fp8lab.torch.state(converted)["layers"]["layers.0.up_proj"]["x"][0]
    assert history.max() == few.abs().max() > many.abs().max()


def test_an_evaluation_leaves_the_histories() -> None:
    converted = fp8lab.torch.convert(model(), "te_delayed")
    run(converted, inputs())
    before = fp8lab.torch.state(converted)["layers"]
    converted.eval()
    with torch.no_grad():
        converted(1000 * inputs())
    after = fp8lab.torch.state(converted)["layers"]
    assert before.keys() == after.keys() and before
    for name, own in before.items():
        for key, (values, _) in own.items():
            assert torch.equal(values, after[name][key][0])


def test_random_words_differ_by_step_micro_batch_and_seed() -> None:
    def outputs(seed: int) -> list[Tensor]:
        converted = fp8lab.torch.convert(model(), "nvfp4_no_rht", seed=seed)
        found = []
        for _ in range(2):
            found += [run(converted, inputs())["layers.0.up_proj.weight"] for _ in range(2)]
            fp8lab.torch.end_step(converted)
        return found

    first, again, other = outputs(1), outputs(1), outputs(2)
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    distinct = [*first, *other]
    for i, a in enumerate(distinct):
        assert not any(torch.equal(a, b) for b in distinct[:i])


def test_an_optimizer_can_end_the_steps() -> None:
    converted = fp8lab.torch.convert(model(), "te_delayed")
    optimizer = torch.optim.SGD(converted.parameters(), 0.1)
    hook = fp8lab.torch.end_steps_of(optimizer, converted)
    run(converted, inputs())
    optimizer.step()
    assert fp8lab.torch.state(converted)["clock"].tolist() == [1, 1, 0, 0]
    hook.remove()
    optimizer.step()
    assert fp8lab.torch.state(converted)["clock"].tolist() == [1, 1, 0, 0]


def test_a_state_of_another_model_is_refused() -> None:
    saved = fp8lab.torch.convert(model(), "te_delayed")
    run(saved, inputs())
    state = fp8lab.torch.state(saved)
    other = fp8lab.torch.convert(model(), "infir2")
    run(other, inputs())
    with pytest.raises(fp8lab.torch.Error, match="accepted by recipe infir2: none"):
        fp8lab.torch.load_state(other, state)
    state["layers"]["layers.9.up_proj"] = state["layers"].pop("layers.0.up_proj")
    with pytest.raises(fp8lab.torch.Error, match="layers.9.up_proj, which is not a converted"):
        fp8lab.torch.load_state(other, state)
