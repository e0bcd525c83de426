# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a site trains and how: the `method` and `training` sections of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedpeft.errors import FedpeftError
from fedpeft.settings import at_least, one_of

TRAINS = ("adapters", "head", "all")
AGGREGATIONS = ("pia", "fedavg", "none")
LORA_PIA = {"support": "weights", "integration": "merge"}  # it has neither activations nor a second branch


@dataclass(frozen=True, kw_only=True)
class MethodSettings:
    """What is trained, and what the federation does with it.

    Args:
        trains: `adapters` (plus the head), `head` (the papers' lower bound), or `all` (full fine-tuning).
        adapter: one of `fedpeft.adapters.names()`; used when `trains` is `adapters`.
        adapter_settings: by adapter, settings that replace its defaults, e.g. `{"houlsby": {"reduction_factor": 8}}`.
        site_adapter_settings: by site, settings of the chosen adapter that replace those (sites of unequal width).
        aggregation: `pia` (align, then integrate), `fedavg` (weighted mean), or `none` (every site alone).
        pia: settings of `fedpeft.alignment.PIASettings`; `fedavg` uses only their `weighting`. With `lora`,
            `support` is `weights` and `integration` is `merge` where they are not set.
        robust: settings of `fedpeft.alignment.RobustSettings`: what the server does against sites that send wrong
            updates.
        probe_samples: m, the random training samples whose activations align the global adapter at a site.
        initialisation: `shared` (every site starts from one adapter) or `own` (from a seed of its own).
        secure_sum: the sites mask what they send, so that the server learns the weighted mean of all sites and no
            single adapter; every site must answer in every round. Needs an aggregation that only adds up: `fedavg`, or
            `pia` with `aligned_at: site` or `server: false`.
    """

    trains: str = "adapters"
    adapter: str = "houlsby"
    adapter_settings: Mapping[str, Any] = field(default_factory=dict)
    site_adapter_settings: Mapping[str, Any] = field(default_factory=dict)
    aggregation: str = "pia"
    pia: Mapping[str, Any] = field(default_factory=dict)
    robust: Mapping[str, Any] = field(default_factory=dict)
    probe_samples: int = 64
    initialisation: str = "shared"
    secure_sum: bool = False

    def __post_init__(self) -> None:
        one_of("trains", self.trains, TRAINS)
        one_of("aggregation", self.aggregation, AGGREGATIONS)
        at_least("probe_samples", self.probe_samples, 1)
        one_of("initialisation", self.initialisation, ("shared", "own"))
        if self.trains == "head" and self.aggregation != "none":
            raise FedpeftError(
                f"a head never leaves its site, so trains='head' needs aggregation='none', not {self.aggregation!r}."
            )
        if self.trains == "adapters" and self.adapter == "lora" and self.aggregation == "pia":
            object.__setattr__(self, "pia", {**LORA_PIA, **self.pia})
            self._check_lora()
        if self.site_adapter_settings:
            self._check_unequal_widths()
        if self.secure_sum:
            self._check_secure_sum()
        for name, settings in (*self.adapter_settings.items(), *self.site_adapter_settings.items()):
            if not isinstance(settings, Mapping) or {"init_seed", "modules_to_save"} & set(settings):
                raise FedpeftError(
                    f"the settings of {name!r} are {settings!r}, not an object without init_seed and modules_to_save."
                )
        if self.trains == "all" and self.aggregation == "pia":
            raise FedpeftError(
                "aggregation='pia' aligns adapters, so trains='all' needs aggregation='fedavg' or 'none'."
            )

    def _check_lora(self) -> None:
        if not self.pia.get("client", True):
            return
        if self.pia["support"] != "weights":
            raise FedpeftError(
                "adapter='lora' has no hidden activations to align by: leave method.pia.support out, or set it "
                "to 'weights'."
            )
        if self.pia["integration"] != "merge":
            raise FedpeftError(
                "adapter='lora' has no second branch beside it: leave method.pia.integration out, or set it to 'merge'."
            )

    def _check_secure_sum(self) -> None:
        if not self.exchanges:
            raise FedpeftError("secure_sum hides what sites send, but with aggregation='none' they send nothing.")
        if self.aggregation == "pia" and self.pia.get("server", True) and self.pia.get("aligned_at") != "site":
            raise FedpeftError(
                "secure_sum hides the adapters that server PIA must see: set method.pia.aligned_at to 'site'."
            )
        if self.robust:
            raise FedpeftError(
                "secure_sum hides the adapters that robust averages, max_share and update_factor must see: leave out "
                "method.robust."
            )
        if self.initialisation == "own":
            raise FedpeftError("secure_sum needs adapters in one order from the start: use initialisation='shared'.")

    def _check_unequal_widths(self) -> None:
        aligned = self.pia.get("server", True) and self.pia.get("client", True) and self.pia.get("solver") != "identity"
        aligned = aligned and self.pia.get("aligned_at") != "site"
        if self.aggregation != "pia" or not aligned:
            raise FedpeftError(
                "unequal widths (site_adapter_settings) need alignment both at the server and at the sites."
            )
        if self.adapter in ("lora", "compacter"):
            raise FedpeftError(
                f"unequal widths (site_adapter_settings) are not supported for adapter={self.adapter!r}."
            )

    def adapter_settings_of(self, site: str) -> dict[str, Any]:
        """The adapter settings of one site: the common ones, replaced by its own."""
        return {**self.adapter_settings.get(self.adapter, {}), **self.site_adapter_settings.get(site, {})}

    @property
    def label(self) -> str:
        """What tables call the method."""
        names = {"pia": "FedPIA", "fedavg": "FedAvg", "none": "local"}
        if self.trains == "head":
            return "classifier only"
        what = "full fine-tuning" if self.trains == "all" else f"{self.adapter} adapters"
        return f"{names[self.aggregation]}, {what}"

    @property
    def exchanges(self) -> bool:
        """Whether tensors travel at all."""
        return self.aggregation != "none"


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The local recipe: AdamW with linear warm-up and decay over all rounds.

    Args:
        rounds: communication rounds of the whole job.
        local_epochs: passes over the site's training split per round.
        batch_size: samples per step.
        learning_rate: peak learning rate of adapters (or of the backbone when all of it is trained).
        head_learning_rate: peak learning rate of the head; None: the same.
        weight_decay: AdamW's, not applied to biases and LayerNorm.
        warmup: fraction of all steps over which the learning rate rises linearly.
        optimizer_state: `keep` the moments from round to round on the site's disk, or `reset` them every round.
        head: `linear`, or `mlp` (Linear, LayerNorm, GELU, Linear).
        evaluation_batch_size: samples per step of evaluation.
        threads: torch threads of a site's process; fixed, so that results do not depend on the machine's cores.
        workers: processes that decode images, 0 for none.
        device: a torch device, or `auto` (CUDA where there is one).
        seed: every random number of training, initial values and alignment derives from it; data have `data.seed`.
    """

    rounds: int
    local_epochs: int = 1
    batch_size: int = 16
    learning_rate: float = 1e-4
    head_learning_rate: float | None = None
    weight_decay: float = 0.01
    warmup: float = 0.1
    optimizer_state: str = "keep"
    head: str = "linear"
    evaluation_batch_size: int = 64
    threads: int = 1
    workers: int = 0
    device: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rounds", "local_epochs", "batch_size", "evaluation_batch_size", "threads"):
            at_least(name, getattr(self, name), 1)
        for name in ("workers", "weight_decay", "warmup", "seed"):
            at_least(name, getattr(self, name), 0)
        at_least("learning_rate", self.learning_rate, 0, exclusive=True)
        if self.head_learning_rate is not None:
            at_least("head_learning_rate", self.head_learning_rate, 0, exclusive=True)
        if self.warmup > 1:
            raise FedpeftError(f"warmup is {self.warmup!r}, it is a fraction of all steps and must be at most 1.")
        one_of("optimizer_state", self.optimizer_state, ("keep", "reset"))
        one_of("head", self.head, ("linear", "mlp"))
