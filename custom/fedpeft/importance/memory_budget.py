# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""How many layers a site can train with the memory it has: L_max.

    available = free memory * (1 - margin)
    for each layer: stop if its memory exceeds what is available, else subtract it and count the layer

A layer's memory is measured as the increase when the layer is trained as well: its weights, gradients and
optimizer state, and the activations that backpropagation has to keep. On CUDA from the allocator's peak over a step;
elsewhere from the tensors that autograd saves during a forward pass, or, where layers are computed again on the way
back (checkpointing), from the bytes of all tensors that are alive at once.

It matters which layers train: in a frozen backbone, the first layer pays for the whole way back to it, and every later
one only for itself. With `choice="any"` (default) every layer is measured together with the first, and the costliest
are charged first, so that any choice of that many layers fits. With `choice="last"` they are added from the last on;
every layer then pays for its own activations, which is the independent estimate per layer of the paper, and only the
last layers surely fit.

Source: Saha et al., F3OCUS (CVPR 2025), supplement, Algorithm 46.
"""

from __future__ import annotations

import itertools
import math
import resource
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from fedpeft.core.errors import FedpeftError, is_out_of_memory
from fedpeft.importance.registry import MemorySettings
from fedpeft.importance.scoring_task import checked_layers

MIB = 2**20


def layer_budget(
    model_fn: Callable[[Any], Tensor],
    layers: Mapping[Hashable, Iterable[Tensor]],
    batch: Any,
    loss: Callable[[Tensor, Any], Tensor],
    *,
    model: nn.Module,
    settings: MemorySettings | None = None,
) -> int:
    """Return L_max, the number of layers that fit, between 0 and L.

    Args:
        model_fn, layers, loss: as for `fedpeft.importance.score`.
        batch: one batch of the training's batch size, on the training device.
        model: the whole module, head included, in training mode (dropout keeps its masks); parameters that require
            gradients and are in no layer (the head) always train and are subtracted first.
        settings: margin, optimizer and free memory.

    Raises:
        FedpeftError: the free memory of this kind of device is not known.

    Example:
        >>> import torch
        >>> from fedpeft.importance import MemorySettings
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        >>> layers = {number: list(layer.parameters()) for number, layer in enumerate(model)}
        >>> loss = lambda outputs, batch: outputs.square().sum(dim=1)
        >>> layer_budget(model, layers, torch.ones(4, 2), loss, model=model, settings=MemorySettings(available_mib=1))
        2
    """
    settings, layers = settings or MemorySettings(), checked_layers(layers)
    fixed, costs = layer_memory(model_fn, layers, batch, loss, model=model, settings=settings)
    device = next(iter(layers.values()))[0].device
    given = settings.available_mib
    available = available_memory(device) if given is None else given * MIB
    if device.type != "cuda":
        available -= settings.reserved_mib * MIB
    return count_layers(costs.tolist(), available * (1 - settings.margin) - fixed)


def count_layers(costs: Sequence[float], available: float) -> int:
    """Count the layers that, in order, fit into `available` (same unit as `costs`), by Algorithm 46.

    Example:
        >>> count_layers([3, 2, 1], available=5.5)
        2
    """
    count = 0
    for cost in costs:
        if not cost <= available:  # NaN fits nowhere
            break
        available -= cost
        count += 1
    return count


def layer_memory(
    model_fn: Callable[[Any], Tensor],
    layers: Mapping[Hashable, Iterable[Tensor]],
    batch: Any,
    loss: Callable[[Tensor, Any], Tensor],
    *,
    model: nn.Module,
    settings: MemorySettings | None = None,
) -> tuple[float, Tensor]:
    """Return the bytes of a training step without any layer, and those that each further layer adds, (L,) float64.

    The budget counts the costliest layer first, or with `choice="last"` the last one, and the values are in that order.
    What does not fit into the device's memory takes an infinite number, or NaN after an infinite one.
    The optimizer's state of parameters in no layer (the head) is part of the step. Arguments as for `layer_budget`.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        >>> layers = {number: list(layer.parameters()) for number, layer in enumerate(model)}
        >>> step, added = layer_memory(model, layers, torch.ones(4, 2), lambda y, _: y.sum(dim=1), model=model)
        >>> added.shape
        torch.Size([2])
    """
    settings = settings or MemorySettings()
    groups = [list(group) for group in checked_layers(layers).values()]
    everything = [parameter for group in groups for parameter in group]
    flags = [parameter.requires_grad for parameter in everything]
    recomputes = any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
    measure = _cuda_peak if everything[0].is_cuda else _allocated_peak if recomputes else _saved_bytes
    inside = {id(parameter) for parameter in everything}
    head = [p for p in model.parameters() if p.requires_grad and id(p) not in inside]

    def needed(trained: Sequence[list[Tensor]]) -> float:
        for parameter in everything:
            parameter.requires_grad_(False)
        for parameter in itertools.chain(*trained):
            parameter.requires_grad_(True)
        try:
            return measure(lambda: loss(model_fn(batch), batch).mean(), model)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        if device.type == "cuda":
            torch.cuda.empty_cache()
        return math.inf

    device = everything[0].device
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]  # training mode changes them
    try:
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        ):
            least = needed([])
            if settings.choice == "last":
                groups.reverse()
                steps = [needed(groups[: n + 1]) for n in range(len(groups))]
                before = [least, *steps[:-1]]
            else:
                first, *others = groups
                steps = [needed([first]), *(needed([first, other]) for other in others)]
                before = [least, *[steps[0]] * len(others)]
    finally:
        for parameter, flag in zip(everything, flags, strict=True):
            parameter.requires_grad_(flag)
        with torch.no_grad():
            for buffer, kept in buffers:
                buffer.copy_(kept)
    own = [_bytes(group) * (1 + settings.optimizer_tensors) for group in groups]
    added = [max(0, step - start) + size for start, step, size in zip(before, steps, own, strict=True)]
    if settings.choice == "any":
        added = _costliest_first(added, alone=own[0] + _bytes(groups[0]))
    return float(least + _bytes(head) * settings.optimizer_tensors), torch.tensor(added, dtype=torch.float64)


def _costliest_first(costs: Sequence[float], alone: float) -> list[float]:
    """Return what the n-th layer adds to the most that any n - 1 layers need.

    `costs` has the first layer with the way back to it, and each other layer together with the first. `alone` is the
    first layer's cost without the way back: any other choice pays for the way, not for this.
    """
    way = max(0, costs[0] - alone)
    others = sorted(costs[1:], reverse=True)
    peaks = [way + max(alone + sum(others[:n]), sum(others[: n + 1])) for n in range(len(costs))]
    return [after - before for before, after in zip([0, *peaks[:-1]], peaks, strict=True)]


def available_memory(device: torch.device) -> float:
    """Return the bytes that can still be allocated on a device: free in CUDA's driver, or in torch's cache.

    What this process is limited to counts as well, such as by `memory_gib` of a site policy; on CUDA if torch tells.
    """
    if device.type == "cuda":
        free, whole = torch.cuda.mem_get_info(device)
        used = torch.cuda.memory_allocated(device)
        fraction = getattr(torch.cuda, "get_per_process_memory_fraction", None)  # newer than torch 2.6
        share = fraction(device) if fraction else 1.0
        return float(min(free + torch.cuda.memory_reserved(device), share * whole) - used)
    if device.type == "cpu":
        import psutil  # a dependency of PEFT's

        limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
        free = psutil.virtual_memory().available
        if limit != resource.RLIM_INFINITY:
            free = min(free, limit - getattr(psutil.Process().memory_info(), "data", 0))
        return float(max(free, 0))
    raise FedpeftError(f"the free memory of device {device} is not known: set available_mib.")


def _cuda_peak(step: Callable[[], Tensor], model: nn.Module) -> int:
    """Return how many bytes a forward and backward pass adds to the device's peak, gradients included."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    device = next(model.parameters()).device
    peak = 0
    for _ in range(2):  # the first pass also allocates workspaces that stay
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        value = step()
        if trained and value.requires_grad:
            torch.autograd.grad(value, trained, allow_unused=True)
        del value
        torch.cuda.synchronize(device)
        peak = torch.cuda.max_memory_allocated(device) - before
    return peak


class _Allocated(TorchDispatchMode):
    """While active, counts the bytes of new tensors, and their largest sum at one time (`peak`)."""

    def __init__(self, resident: Iterable[Tensor]) -> None:
        super().__init__()
        self.alive = self.peak = 0
        self._known = weakref.WeakSet(tensor.untyped_storage() for tensor in resident)

    def __torch_dispatch__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tree_map_only(Tensor, self._count, result)
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage not in self._known:
            self._known.add(storage)
            self.alive += storage.nbytes()
            self.peak = max(self.peak, self.alive)
            weakref.finalize(storage, self._free, storage.nbytes())

    def _free(self, size: int) -> None:
        self.alive -= size


def _allocated_peak(step: Callable[[], Tensor], model: nn.Module) -> int:
    """Return the most bytes that a forward and backward pass holds, with gradients and what is computed again."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with _Allocated((*model.parameters(), *model.buffers())) as allocated:
        value = step()
        if trained and value.requires_grad:
            torch.autograd.grad(value, trained, allow_unused=True)
    return allocated.peak


def _saved_bytes(step: Callable[[], Tensor], model: nn.Module) -> int:
    """Return the bytes that autograd keeps between a forward and its backward pass, and those of the gradients."""
    resident = {tensor.untyped_storage().data_ptr() for tensor in model.state_dict().values()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in resident:
            kept[storage.data_ptr()] = (
                storage.nbytes()
            )  # alive until the graph is freed, so that no other tensor gets its address
        return tensor.detach()  # the tensor itself would keep the graph and everything in it

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        value = step()
    saved = sum(kept.values())
    del value
    return saved + _bytes(p for p in model.parameters() if p.requires_grad)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
