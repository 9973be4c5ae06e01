"""fp8lab.torch.huggingface.StepCallback in the Trainer of transformers, which needs accelerate, and
in a loop of our own that calls it through the CallbackHandler of transformers as Trainer does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from torch_llama import batch, llama  # noqa: E402
from transformers.trainer_callback import (  # noqa: E402
    CallbackHandler,
    TrainerControl,
    TrainerState,
)

import fp8lab.torch  # noqa: E402
from fp8lab.torch.huggingface import FILE, StepCallback  # noqa: E402

STEPS, SAVED, SEQUENCES = 6, 3, 2
Train = Callable[[Any, Path, bool, list[Any]], None]


def by_trainer(model: Any, folder: Path, resumes: bool, callbacks: list[Any]) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        save_steps=SAVED,
        per_device_train_batch_size=SEQUENCES,
        learning_rate=2e-3,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    tokens = torch.cat([batch(1, step, SEQUENCES) for step in range(STEPS)])
    data = [{"input_ids": row, "labels": row} for row in tokens]
    trainer = transformers.Trainer(model, arguments, train_dataset=data, callbacks=callbacks)
    trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{SAVED}") if resumes else None)


def by_stand_in(model: Any, folder: Path, resumes: bool, callbacks: list[Any]) -> None:
    """Steps of AdamW with the events of Trainer that the callback hears."""
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    saved = folder / f"checkpoint-{SAVED}"
    arguments = SimpleNamespace(
        output_dir=str(folder), resume_from_checkpoint=str(saved) if resumes else None
    )
    state, control = TrainerState(), TrainerControl()
    if resumes:
        found = torch.load(saved / "model.pt")
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        state.global_step = SAVED
    handler = CallbackHandler(callbacks, model, None, optimizer, None)
    handler.on_train_begin(arguments, state, control)
    for step in range(state.global_step, STEPS):
        handler.on_step_begin(arguments, state, control)
        tokens = batch(1, step, SEQUENCES)
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        state.global_step += 1
        handler.on_step_end(arguments, state, control)
        if state.global_step % SAVED == 0:
            target = folder / f"checkpoint-{state.global_step}"
            target.mkdir(exist_ok=True)
            both = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(both, target / "model.pt")
            handler.on_save(arguments, state, control)
    handler.on_train_end(arguments, state, control)


def weights(model: Any) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def histories(model: Any) -> torch.Tensor:
    layers = fp8lab.torch.state(model)["layers"]
    assert layers
    return torch.cat([values for own in layers.values() for values, _ in own.values()])


@pytest.mark.parametrize("train", [by_trainer, by_stand_in])
def test_a_training_resumes_with_the_same_bits(train: Train, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    whole, resumed, forgetful = (fp8lab.torch.convert(llama(3), "te_delayed") for _ in range(3))
    train(whole, tmp_path, False, [StepCallback()])
    assert fp8lab.torch.state(whole)["clock"].tolist() == [1, STEPS, 0, 0]
    saved = torch.load(tmp_path / f"checkpoint-{SAVED}" / FILE, weights_only=True)
    assert saved["clock"].tolist() == [1, SAVED, 0, 0]
    train(resumed, tmp_path, True, [StepCallback()])
    assert fp8lab.torch.state(resumed)["clock"].tolist() == [1, STEPS, 0, 0]
    assert torch.equal(weights(resumed), weights(whole))
    assert torch.equal(histories(resumed), histories(whole))
    # Without the callback no step ends, and the histories stay empty: other scales, other bits.
    train(forgetful, tmp_path, True, [])
    assert not torch.equal(weights(forgetful), weights(whole))


def test_a_checkpoint_without_the_state_is_refused(tmp_path: Path) -> None:
    model = fp8lab.torch.convert(llama(3), "te_delayed")
    (tmp_path / f"checkpoint-{SAVED}").mkdir()
    arguments = SimpleNamespace(output_dir=str(tmp_path), resume_from_checkpoint=None)
    state, control = TrainerState(global_step=SAVED), TrainerControl()
    handler = CallbackHandler([StepCallback()], model, None, None, None)
    with pytest.raises(FileNotFoundError, match=FILE):
        handler.on_train_begin(arguments, state, control)
