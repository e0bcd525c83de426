# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A state: tensors by key (`fedpeft.core.keys`), of an adapter or of whatever else is trained and exchanged.

A state on disk has only those tensors in memory that are in use. Its files are safetensors. A tensor that is read is a
view of its file: the operating system loads its pages when they are needed, and can drop them at any time.
"""

from __future__ import annotations

import functools
import hashlib
import math
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import unwritable

State = dict[str, Tensor]
Args = ParamSpec("Args")
Result = TypeVar("Result")


def plain(function: Callable[Args, Result]) -> Callable[Args, Result]:
    """Let a function compute without gradients, and in the precision of its inputs also within `torch.autocast`."""

    @functools.wraps(function)
    def computed(*args: Args.args, **kwargs: Args.kwargs) -> Result:
        with torch.no_grad(), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            return function(*args, **kwargs)

    return computed


def computable(tensor: Tensor) -> Tensor:
    """Return the tensor without its gradient, in float32 or wider."""
    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))


def dtype_of(state: Mapping[str, Tensor]) -> str:
    """Return the dtype of the tensors that a site exchanges, as torch names it; float32 if it exchanges nothing."""
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in state.values()} or {"float32"}
    if len(dtypes) > 1:
        raise FedpeftError(f"the trained tensors are of {', '.join(sorted(dtypes))}: load the backbone in one dtype.")
    return dtypes.pop()


def common_dtype(tensors: Iterable[Tensor]) -> torch.dtype | None:
    """Return the narrowest dtype that holds all tensors: bfloat16 if all are bfloat16; None for no tensor."""
    common: torch.dtype | None = None
    for tensor in tensors:
        common = tensor.dtype if common is None else torch.promote_types(common, tensor.dtype)
    return common


Store = Callable[[Mapping[str, Tensor]], State]  # returns the same tensors as they are kept from then on


def in_memory(state: Mapping[str, Tensor]) -> State:
    """Return the tensors as they are."""
    return dict(state)


def select_keys(state: Mapping[str, Tensor], keys: Container[str]) -> State:
    """Return the tensors of a state that have one of these keys; none is read from disk."""
    if part := getattr(state, "select_keys", None):
        return part(keys)
    return {key: tensor for key, tensor in state.items() if key in keys}


def copied(state: Mapping[str, Tensor]) -> State:
    """Return a copy that shares no memory with the state."""
    return {key: tensor.detach().clone() for key, tensor in state.items()}


def equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Return whether two states have the same keys and values."""
    return one.keys() == other.keys() and all(torch.equal(tensor, other[key]) for key, tensor in one.items())


def digest(state: Mapping[str, Tensor], *, after: bytes = b"") -> str:
    """Return the SHA-256 of a state as 64 hexadecimal digits: of keys, dtypes, shapes and bytes, in the keys' order.

    The bytes of `after` come first.
    """
    summed = hashlib.sha256(after)
    for key, tensor in sorted(state.items()):
        values = tensor.detach().cpu().contiguous()
        summed.update(f"{key} {values.dtype} {list(values.shape)}\n".encode())
        summed.update(values.flatten().view(torch.uint8).numpy().tobytes())
    return summed.hexdigest()


Shapes = Mapping[str, Sequence[int]]


class Misfit(NamedTuple):
    """The first way in which a state differs from its schema."""

    # `form`: no dense tensor of plain numbers, or not floating-point where no dtype is expected
    what: Literal["keys", "form", "dtype", "shape", "finite", "size"]
    key: str = ""  # of the tensor; empty for `keys`
    missing: tuple[str, ...] = ()  # keys of the schema that the state lacks, in its order
    unknown: tuple[Any, ...] = ()  # keys that the schema lacks; they may be anything
    value: float = 0.0  # the number furthest beyond the bound, with its sign


def first_misfit(
    state: Mapping[Any, Any],
    shapes: Shapes,
    *,
    dtype: str | None = None,  # of every tensor, as torch names it; None: any floating-point one
    whole: bool = True,  # every key of the schema must be there
    max_side: int | None = None,  # any side up to it fits; None: shapes are exactly those of the schema
    bound: float | None = None,  # largest absolute value; None: values are not looked at
) -> Misfit | None:
    """Compare a state, whose keys and values may be anything, with its schema; None: they agree."""
    missing = tuple(key for key in shapes if key not in state) if whole else ()
    unknown = tuple(key for key in state if key not in shapes)
    if missing or unknown:
        return Misfit("keys", missing=missing, unknown=unknown)
    for key, tensor in state.items():
        if not _is_dense(tensor):
            return Misfit("form", key)
        if dtype is None and not tensor.is_floating_point():
            return Misfit("form", key)
        if dtype is not None and str(tensor.dtype) != f"torch.{dtype}":
            return Misfit("dtype", key)
        if not _fits(list(tensor.shape), list(shapes[key]), max_side):
            return Misfit("shape", key)
        if bound is None or not tensor.numel():
            continue
        low, high = (float(end) for end in torch.aminmax(tensor))
        if not (math.isfinite(low) and math.isfinite(high)):
            return Misfit("finite", key)
        if max(-low, high) > bound:
            return Misfit("size", key, value=low if -low > high else high)
    return None


def _is_dense(tensor: Any) -> bool:
    """Return whether a value is a plain tensor with values in memory; nested ones are strided, but have no shape."""
    plain = type(tensor) is torch.Tensor and tensor.layout == torch.strided and not tensor.is_nested
    return plain and not tensor.is_quantized and tensor.device.type != "meta"


def _fits(shape: list[int], own: list[int], max_side: int | None) -> bool:
    if max_side is None:
        return shape == own
    return len(shape) == len(own) and max(shape, default=0) <= max_side


MAX_SMALL = 2**16  # bytes of a tensor that is not worth a file


def on_disk(state: Mapping[str, Tensor], folder: Path) -> State:
    """Return the tensors as views of a file in a folder, already without a name: it vanishes with the last view.

    Small tensors stay in memory.
    """
    large = {key: tensor.contiguous() for key, tensor in state.items() if tensor.nbytes > MAX_SMALL}
    if not large:
        return dict(state)
    file = folder / f"state-{threading.get_ident()}"
    try:
        save_file(large, file)
        views = load_file(file)
        file.unlink()
    except (OSError, SafetensorError) as error:
        file.unlink(missing_ok=True)
        raise unwritable(file, error) from error
    return {key: views.get(key, tensor) for key, tensor in state.items()}


class Stored(NamedTuple):
    """Where a tensor is stored: its file, and its name there."""

    file: str | Path
    name: str


class StoredState(Mapping[str, Tensor]):
    """A state whose tensors are read from disk each time that they are used.

    Args:
        places: by key, where its tensor is stored.
        holder: an object that keeps the files from being removed while this state exists.

    Example:
        >>> import tempfile, torch
        >>> from safetensors.torch import save_file
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_file({"t": torch.ones(2)}, f"{folder}/chunk")
        ...     StoredState({"shared.rule": Stored(f"{folder}/chunk", "t")})["shared.rule"]
        tensor([1., 1.])
    """

    def __init__(self, places: Mapping[str, Stored], holder: Any = None) -> None:
        self._places, self._holder = dict(places), holder

    def __getitem__(self, key: str) -> Tensor:
        file, name = self._places[key]
        with safe_open(file, framework="pt") as opened:
            return opened.get_tensor(name)

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def select_keys(self, keys: Container[str]) -> StoredState:
        """Return the part of this state with these keys."""
        return StoredState({key: place for key, place in self._places.items() if key in keys}, self._holder)


def shared_tensors(model: torch.nn.Module) -> list[Tensor]:
    """Return the tensors of active adapters that several layers share, which torch lists as nobody's parameters."""
    layers: list[Any] = [one for one in model.modules() if hasattr(one, "shared_parameters")]
    shared = [layer.shared_parameters(name) for layer in layers for name in layer.active_adapters]
    return [*{id(tensor): tensor for tensors in shared for tensor in tensors.values()}.values()]
