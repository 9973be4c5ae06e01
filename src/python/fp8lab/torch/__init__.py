"""FP8 numerics of a recipe for models of PyTorch, with the bits of the emulator and of the kernels.

    import fp8lab.torch
    fp8lab.torch.convert(model, "infir2")           # every nn.Linear but the language model's head
    loss = model(**batch).loss                      # forward and backward pass as before
    loss.backward()
    optimizer.step()
    fp8lab.torch.end_step(model)                    # delayed scales and random words move on

The parameters, their names and the state_dict of the model stay what they were. `README.md` of
src/python says what belongs to which type, and how states are saved.
"""

from __future__ import annotations

from fp8lab.errors import Error, RuntimeFailure
from fp8lab.torch.conversion import Layers, convert, converted
from fp8lab.torch.layer import Recipe
from fp8lab.torch.operators import fp8_matmul
from fp8lab.torch.run_file import RunFile
from fp8lab.torch.steps import end_step, end_steps_of, load_state, state

__all__ = [
    "Error",
    "Layers",
    "Recipe",
    "RunFile",
    "RuntimeFailure",
    "convert",
    "converted",
    "end_step",
    "end_steps_of",
    "fp8_matmul",
    "load_state",
    "state",
]
