"""Handles of the C interface: a recipe, a device, and the layers that compute on it."""

from __future__ import annotations

import ctypes
import itertools
import threading
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fp8lab._library import (
    CPU,
    CUDA,
    Handle,
    LinearDescription,
    LinearPass,
    Module,
    Moment,
    call,
    text,
)
from fp8lab.errors import Error
from fp8lab.library_recipes import toml_of

HIGH_PRECISION = -1
"""FP8LAB_HIGH_PRECISION: the recipe keeps the layer in high precision."""

SEED, STEP, FORWARDS, MEASURED = range(4)
"""Elements of a clock, an int64 tensor on the host: the seed of random words, the step, the forward
passes of the model in it, and whether operands are measured."""

MOST_HISTORIES = 6
"""One for each operand of the three GEMMs."""

_TYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


class ModuleName(NamedTuple):
    """A linear layer by its full name in a model."""

    name: str
    is_head: bool = False


def _modules(modules: Sequence[ModuleName]) -> Any:
    return (Module * len(modules))(*[Module(text(m.name), m.is_head) for m in modules])


def match_modules(patterns: Sequence[str], modules: Sequence[ModuleName]) -> list[int]:
    """Returns for each module the index of the first pattern that matches it, or -1."""
    texts = (ctypes.c_char_p * len(patterns))(*[text(pattern) for pattern in patterns])
    found = (ctypes.c_int32 * len(modules))()
    call("match_modules", texts, len(patterns), _modules(modules), len(modules), found)
    return list(found)


class Recipe:
    """A recipe by its name, the path of its file, or its TOML."""

    def __init__(self, source: str) -> None:
        handle = self.handle = Handle("recipe_new", source)
        self.name: str = call("recipe_name", handle).decode()
        self.text: str = call("recipe_text", handle).decode()
        """TOML that needs no other files."""
        has_state, is_random = ctypes.c_int32(), ctypes.c_int32()
        call("recipe_traits", handle, ctypes.byref(has_state), ctypes.byref(is_random))
        self.has_state = bool(has_state.value)
        """True if layers carry amax histories or smoothing factors from step to step."""
        self.is_random = bool(is_random.value)
        """True if roundings or transforms draw random words."""

    def __repr__(self) -> str:
        return f"Recipe({self.name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return recipe_of, (self.text,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Recipe:
        return self

    def choose(self, modules: Sequence[ModuleName]) -> list[int]:
        """Returns the numerics of each module: HIGH_PRECISION, or a number for Layer."""
        numerics = (ctypes.c_int32 * len(modules))()
        call("recipe_choose", self.handle, _modules(modules), len(modules), numerics)
        return list(numerics)


_recipes: dict[str, Recipe] = {}


def recipe_of(source: Any) -> Recipe:
    """Returns the recipe of a name, path, TOML or object of another library; one for each TOML."""
    if isinstance(source, Recipe):
        return source
    if not isinstance(source, str):
        source = toml_of(source)
    if "\n" in source and source in _recipes:
        return _recipes[source]
    recipe = Recipe(source)
    return _recipes.setdefault(recipe.text, recipe)


class _Where(NamedTuple):
    """The device of a layer's tensors; `threads` are those of torch on the host."""

    type: str
    ordinal: int
    threads: int


def _where(device: torch.device) -> _Where:
    if device.type == "cpu":
        return _Where("cpu", 0, torch.get_num_threads())
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        return _Where("cuda", index, 0)
    raise Error(f"tensors on {device.type}; accepted: cpu, cuda")


_devices: dict[_Where, Handle] = {}
_devices_lock = threading.Lock()


def _device(where: _Where) -> Handle:
    with _devices_lock:
        if where not in _devices:
            kind = CUDA if where.type == "cuda" else CPU
            _devices[where] = Handle("device_new", kind, where.ordinal, where.threads)
        return _devices[where]


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Restores the current device of the thread, which a call makes that of its tensors."""
    guard: AbstractContextManager[Any] = nullcontext()
    if device.type == "cuda":
        guard = torch.cuda.device(device)
    return guard


def _stream(device: torch.device) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else 0


class _Form(NamedTuple):
    """What a handle is made for, besides a number of rows."""

    where: _Where
    activation: torch.dtype
    weight: torch.dtype


class _Handle:
    """fp8lab_linear for tensors of one form and up to `rows` rows."""

    def __init__(self, layer: Layer, form: _Form, rows: int, has_backward: bool, stream: int):
        self.form, self.rows, self.has_backward = form, rows, has_backward
        for what, dtype in (("activations", form.activation), ("weights", form.weight)):
            if dtype not in _TYPES:
                raise Error(f"{layer.name}: {what} of {dtype}; accepted: float32, bfloat16")
        description = LinearDescription(
            text(layer.name),
            _TYPES[form.activation].encode(),
            _TYPES[form.weight].encode(),
            layer.in_features,
            layer.out_features,
            rows,
            layer.index,
            layer.numerics,
            has_backward,
        )
        self.device = _device(form.where)
        self.pointer = Handle(
            "linear_new", self.device, layer.recipe.handle, ctypes.byref(description), stream
        )
        self.workspace_bytes: int = call("linear_workspace_bytes", self.pointer)
        self.states = self._state_names()

    def _state_names(self) -> list[tuple[str, int]]:
        names: list[tuple[str, int]] = []
        while True:
            name, length = ctypes.c_char_p(), ctypes.c_int64()
            call("linear_state", self.pointer, len(names), ctypes.byref(name), ctypes.byref(length))
            if name.value is None:
                return names
            names.append((name.value.decode(), length.value))


class LayerState(NamedTuple):
    """One array that a layer carries from step to step."""

    values: Tensor
    """float32 on the host."""
    steps: int
    """Steps in an amax history; 0 for smoothing factors."""


_numbers = itertools.count(1)
_layers: weakref.WeakValueDictionary[int, Layer] = weakref.WeakValueDictionary()


def layer_of(number: Tensor) -> Layer:
    """Returns the layer with this number."""
    return _layers[int(number)]


class Layer:
    """A linear layer of a recipe, with its state. It holds no parameter and no activation."""

    def __init__(
        self, recipe: Recipe, numerics: int, name: str, index: int, in_features: int, out: int
    ) -> None:
        self.recipe, self.numerics, self.name, self.index = recipe, numerics, name, index
        self.in_features, self.out_features = in_features, out
        self.is_stateful = recipe.has_state
        self._waiting: dict[str, LayerState] = {}  # a state for the next handle
        self._begin()

    def _begin(self) -> None:
        self._handle: _Handle | None = None
        self._lock = threading.RLock()
        number = next(_numbers)
        self.number = torch.tensor(number)
        """Identifies the layer in the operators; a tensor, so that no graph depends on it."""
        _layers[number] = self

    # A copy has a state of its own.
    def __getstate__(self) -> dict[str, Any]:
        kept = ("recipe", "numerics", "name", "index", "in_features", "out_features", "is_stateful")
        return {"waiting": self.state(), **{name: getattr(self, name) for name in kept}}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self._waiting = saved.pop("waiting")
        self.__dict__.update(saved)
        self._begin()

    def __repr__(self) -> str:
        return f"Layer({self.name!r}, {self.recipe.name!r})"

    # --- passes -----------------------------------------------------------------------------------

    def forward(
        self, x: Tensor, w: Tensor, bias: Tensor | None, clock: Tensor, training: bool
    ) -> Tensor:
        """y (rows, out) of the type of x."""
        y = x.new_empty((x.shape[0], self.out_features))
        if x.shape[0] == 0:
            return y
        with self._lock, _current(x.device):
            handle = self._handle_for(x, w, training)
            arguments, _kept = self._pass(handle, x, w, clock, training)
            kept_bias = None if bias is None else _ready(bias.detach().to(w.dtype))
            call("linear_forward", handle.pointer, arguments, _address(kept_bias), y.data_ptr())
        return y

    def backward(
        self,
        x: Tensor,
        w: Tensor,
        dy: Tensor,
        clock: Tensor,
        training: bool,
        wanted: Sequence[bool],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """dx, dw and dbias; empty tensors for those that are not wanted."""
        shapes = ((x, x.shape), (w, w.shape), (w, (self.out_features,)))
        results = [
            like.new_empty(shape if is_wanted else (0,))
            for (like, shape), is_wanted in zip(shapes, wanted, strict=True)
        ]
        if x.shape[0] == 0:
            return results[0], results[1].zero_(), results[2].zero_()
        with self._lock, _current(x.device):
            handle = self._handle_for(x, w, True)
            arguments, _kept = self._pass(handle, x, w, clock, training)
            dy = _ready(dy)
            outputs = [result.data_ptr() if result.numel() else None for result in results]
            call("linear_backward", handle.pointer, arguments, dy.data_ptr(), *outputs)
        return results[0], results[1], results[2]

    def _handle_for(self, x: Tensor, w: Tensor, has_backward: bool) -> _Handle:
        form, rows = _Form(_where(x.device), x.dtype, w.dtype), x.shape[0]
        has_backward = has_backward or self.is_stateful  # else a state would lose its other part
        old = self._handle
        if old is not None and old.form == form:
            if old.rows >= rows and old.has_backward >= has_backward:
                return old
            rows, has_backward = max(rows, old.rows), has_backward or old.has_backward
        state = self.state()
        self._handle = _Handle(self, form, rows, has_backward, _stream(x.device))
        self.load_state(state)
        return self._handle

    def _pass(
        self, handle: _Handle, x: Tensor, w: Tensor, clock: Tensor, training: bool
    ) -> tuple[Any, Any]:
        """Returns the arguments of a pass, and the tensors that must outlive the call."""
        seed, step, forwards, measured = clock.tolist()
        x, w = _ready(x), _ready(w)
        workspace = torch.empty(handle.workspace_bytes + 256, dtype=torch.uint8, device=x.device)
        start = workspace.data_ptr()
        arguments = LinearPass(
            Moment(seed, step, max(forwards - 1, 0), measured, training),
            x.shape[0],
            start + -start % 256,
            _stream(x.device),
            x.data_ptr(),
            w.data_ptr(),
        )
        return ctypes.byref(arguments), (arguments, x, w, workspace)

    # --- from step to step ------------------------------------------------------------------------

    def end_step(self) -> None:
        """Enters the amaxes of the step into the histories."""
        if self._handle is not None and self.is_stateful:
            call("linear_end_step", self._handle.pointer, self.stream())

    def state(self) -> dict[str, LayerState]:
        """Returns the amax histories and static smoothing factors; empty before the first pass."""
        handle = self._handle
        if handle is None:
            return dict(self._waiting)
        state = {}
        for index, (name, length) in enumerate(handle.states):
            values, steps = torch.empty(length), ctypes.c_int64()
            stream, to = self.stream(), ctypes.cast(values.data_ptr(), _FLOATS)
            call("linear_read_state", handle.pointer, index, stream, to, ctypes.byref(steps))
            state[name] = LayerState(values, steps.value)
        return state

    def load_state(self, state: dict[str, LayerState]) -> None:
        """Continues with the state of another layer of the same recipe."""
        handle = self._handle
        if handle is None:
            self._waiting = dict(state)
            return
        self._waiting = {}
        known = dict(handle.states)
        for name, (values, _) in state.items():
            if known.get(name) == values.numel():
                continue
            if name in known and name.endswith(".factors"):
                continue  # factors along the tokens of passes of another length
            raise Error(
                f"{self.name}: a state '{name}' of {values.numel()} numbers; accepted by recipe "
                f"{self.recipe.name}: "
                + (", ".join(f"'{n}' of {length}" for n, length in handle.states) or "none")
            )
        for index, (name, length) in enumerate(handle.states):
            if name not in state or state[name].values.numel() != length:
                continue
            values = state[name].values.to("cpu", torch.float32).contiguous()
            stream, source = self.stream(), ctypes.cast(values.data_ptr(), _FLOATS)
            call("linear_write_state", handle.pointer, index, stream, source, state[name].steps)

    def amaxes(self) -> Tensor:
        """Returns the amaxes of the step so far, float32 on the host, in MOST_HISTORIES places;
        zeros for what has not run."""
        amaxes = torch.zeros(MOST_HISTORIES)
        if self._handle is not None:
            to = ctypes.cast(amaxes.data_ptr(), _FLOATS)
            call("linear_read_amaxes", self._handle.pointer, self.stream(), to)
        return amaxes

    def set_amaxes(self, amaxes: Tensor) -> None:
        """Replaces the amaxes of the step so far."""
        if self._handle is not None:
            source = ctypes.cast(amaxes.contiguous().data_ptr(), _FLOATS)
            call("linear_write_amaxes", self._handle.pointer, self.stream(), source)

    @property
    def has_run(self) -> bool:
        """True after the first pass."""
        return self._handle is not None

    @property
    def address(self) -> int | None:
        """The handle that computes, of a layer that has run."""
        assert self._handle is not None
        return self._handle.pointer.address

    def stream(self) -> int:
        """The current stream of the device of a layer that has run; 0 on the host."""
        assert self._handle is not None
        where = self._handle.form.where
        return _stream(torch.device(where.type, where.ordinal))


_FLOATS = ctypes.POINTER(ctypes.c_float)


def _ready(tensor: Tensor) -> Tensor:
    """Returns the tensor itself if it has no gaps and is aligned to 16 bytes, else a copy."""
    tensor = tensor.detach().contiguous()
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else int(tensor.data_ptr())
