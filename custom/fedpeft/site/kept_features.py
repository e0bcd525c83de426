# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Keep the inputs of the first trained layer, computed once for each sample, while nothing below that layer changes.

A sample is identified by the bytes of its inputs without padding. The part below is identified by the bytes of its
tensors and by its active adapters, so that all begins anew when another layer is the first one or an adapter below has
changed. Values are those of the batch in which a sample was first seen: in another batch they may differ by rounding,
if batches have other sizes or questions are padded to another length.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedpeft.backbones.backbone import Backbone, Enterable
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import BACKBONE, layer_of
from fedpeft.core.states import shared_tensors
from fedpeft.methods.trainable import Trainable

MIB = 2**20
SETTING = "training.features_mib"


class KeptFeatures:
    """Features of samples below the first trained layer, in main memory.

    Args:
        backbone: an `Enterable`; another one is refused.
        trainable: of the method.
        mib: memory for the samples; those beyond it are computed every time.
        some_layers: whether a schedule assigns layers; without one the same layers train in every round.
        half: whether matrix products are in bfloat16.

    Raises:
        FedpeftError: the backbone or the method cannot do this, or nothing could be kept.
    """

    def __init__(
        self, backbone: Backbone, trainable: Trainable, mib: float, *, some_layers: bool, half: bool = False
    ) -> None:
        self._backbone = cast(Enterable, backbone)
        self._trainable, self._half = trainable, half
        self._limit, self._held = mib * MIB, 0
        self._samples: dict[bytes, Tensor] = {}
        self._below = b""
        self._layer = 0
        _check_supported(backbone, trainable, self._first_trained(), some_layers=some_layers)

    @property
    def held_mib(self) -> float:
        """The memory in use."""
        return self._held / MIB

    @contextmanager
    def used(self) -> Iterator[None]:
        """Let the backbone compute with kept features; in this block nothing below the trained layers changes."""
        self._layer = self._first_trained()
        if not self._layer:
            yield
            return
        below = fingerprint(self._backbone.model, self._layer)
        if below != self._below:
            self._samples.clear()
            self._below, self._held = below, 0
        attributes = vars(self._backbone)
        own = attributes.get("forward")
        attributes["forward"] = self._forward
        try:
            yield
        finally:
            attributes.pop("forward") if own is None else attributes.update(forward=own)

    def _first_trained(self) -> int:
        """Return the first layer with a trained parameter; 0 if something outside the layers trains.

        If only the head trains, it is the last layer, which may pass on a single token (`FirstTokenLayer`).
        """
        trained = [key for key, parameter in self._trainable.parameters().items() if parameter.requires_grad]
        numbers = [layer_of(key) for key in trained]
        return min((0 if number is None else number for number in numbers), default=self._backbone.num_layers - 1)

    def _forward(self, **batch: Any) -> Tensor:
        device = next(iter(self._backbone.parameters())).device
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=self._half):
            samples = self._entered(batch)
            if samples is None:
                kind: Any = type(self._backbone)  # whose `forward` is a module's own
                return kind.forward(self._backbone, **batch).float()
            moved = [sample.to(device) for sample in samples]
            return self._backbone.leaving(moved, batch, self._layer).float()

    def _entered(self, batch: dict[str, Tensor]) -> list[Tensor] | None:
        """Return each sample's tokens at the first trained layer; None if they cannot be told apart."""
        names = sample_names(batch)
        missing = [row for row, name in enumerate(names) if name not in self._samples]
        computed: dict[bytes, Tensor] = {}
        if missing:
            with torch.inference_mode(False), torch.no_grad():
                rows = torch.tensor(missing, device=next(iter(batch.values())).device)
                entered = self._backbone.entering({key: tensor[rows] for key, tensor in batch.items()}, self._layer)
            if entered is None:
                return None
            computed = {names[row]: tokens for row, tokens in zip(missing, entered, strict=True)}
            self._keep(computed)
        return [computed[name] if name in computed else self._samples[name] for name in names]

    def _keep(self, computed: Mapping[bytes, Tensor]) -> None:
        for name, tokens in computed.items():
            size = tokens.numel() * tokens.element_size()
            if self._held + size <= self._limit:
                self._samples[name] = tokens.cpu().clone()
                self._held += size


def sample_names(batch: Mapping[str, Tensor]) -> list[bytes]:
    """Return a name for each sample of a batch: a hash of its inputs without padding."""
    rows = {name: tensor.cpu() for name, tensor in batch.items()}
    mask = rows.get("attention_mask")
    names = []
    for row in range(len(next(iter(rows.values())))):
        digest = hashlib.blake2b(digest_size=16)
        for name, tensor in rows.items():
            values = tensor[row]
            if mask is not None and tensor.shape == mask.shape:
                values = values[mask[row].bool()]
            digest.update(f"{name} {tuple(values.shape)} {values.dtype} ".encode())
            digest.update(_bytes(values))
        names.append(digest.digest())
    return names


def fingerprint(model: nn.Module, layer: int) -> bytes:
    """Return a hash of all tensors and active adapters outside the layers from this one on."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if _below(name, layer) and not tensor.requires_grad:  # what trains is not below, whatever its name
            digest.update(name.encode())
            digest.update(_bytes(tensor.detach().cpu()))
    for name, module in model.named_modules():
        if hasattr(module, "active_adapters") and _below(f"{name}.", layer):
            state = [getattr(module, part, None) for part in ("active_adapters", "weights", "scaling")]
            digest.update(f"{name} {state} {module.disable_adapters}".encode())
    for tensor in shared_tensors(model):
        if not tensor.requires_grad:
            digest.update(_bytes(tensor.detach().cpu()))
    return digest.digest() + layer.to_bytes(4, "big")


def _below(name: str, layer: int) -> bool:
    number = layer_of(f"{BACKBONE}{name}")
    return number is None or number < layer


def _bytes(tensor: Tensor) -> Any:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy()


def _check_supported(backbone: Backbone, trainable: Trainable, first: int, *, some_layers: bool) -> None:
    reason = ""
    if not hasattr(backbone, "entering"):
        reason = f"a backbone of family {backbone.family!r} cannot be entered at a layer"
    elif not trainable.one_model:
        reason = "this method computes a batch with several adapters in turn"
    elif not first and not some_layers:
        reason = "this method trains in the first layer, or outside the layers"
    elif drops(backbone):
        reason = "dropout makes the features other ones every time"
    if reason:
        raise FedpeftError(f"features_mib is set, and {reason}: leave it out.", setting=SETTING)


def drops(backbone: Backbone) -> bool:
    """Return whether dropout makes two passes over the same samples differ in training."""
    # of modules that call the function, as OPT's, or leave out whole layers, as BEiT's
    rates = (
        *("dropout", "attention_dropout", "activation_dropout", "hidden_dropout", "attn_dropout_p"),
        *("dropout_prob", "drop_prob", "layerdrop"),
    )
    return any(
        (isinstance(module, nn.Dropout) and module.p)
        or any(isinstance(rate := getattr(module, name, 0), int | float) and rate for name in rates)
        for module in backbone.model.modules()
    )
