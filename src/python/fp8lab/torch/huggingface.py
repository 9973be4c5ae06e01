"""fp8lab.torch in the Trainer of transformers.

    from fp8lab.torch.huggingface import StepCallback
    trainer = Trainer(fp8lab.torch.convert(model), arguments, callbacks=[StepCallback()], ...)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from fp8lab.torch.steps import end_step, load_state, state

FILE = "fp8lab.pt"
"""In each checkpoint folder: the state of the converted model."""


class StepCallback(TrainerCallback):
    """Ends the steps of a converted model, and keeps its state in the Trainer's checkpoints."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Continues from the checkpoint of the step that the Trainer resumes from."""
        if state.global_step == 0:
            return
        folder = args.resume_from_checkpoint
        if not isinstance(folder, str):
            folder = f"{args.output_dir}/checkpoint-{state.global_step}"
        load_state(kwargs["model"], torch.load(Path(folder) / FILE, weights_only=True))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """After the optimizer's step."""
        end_step(kwargs["model"])

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """After the Trainer has written a checkpoint."""
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            torch.save(_state_of(kwargs["model"]), folder / FILE)


_state_of = state
