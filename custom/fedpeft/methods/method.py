# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Registration of a tuning method: what server, sites and settings must know before its code is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedpeft.core.errors import FedpeftError
from fedpeft.core.registry import Registry, imported
from fedpeft.methods.setting_limits import BOTTLENECK, Limits, goes_with_others, refused_settings

if TYPE_CHECKING:
    from fedpeft.alignment.neurons import Neurons
    from fedpeft.methods.trainable import Tuning


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """How the tensors of a method can be aligned.

    Args:
        neurons: layout of the hidden neurons in its tensors, "package.module:object" of an `alignment.Neurons`; empty:
            it has no neurons that PIA could align.
        activations: whether the activations of these neurons can be read at a site.
        companion: whether a second, frozen copy can run beside the trained one (PIA's `two_branches`).
        unequal_widths: whether sites may have different numbers of neurons.
        same_at_all_sites: settings with which equal tensors compute something else.
    """

    neurons: str = ""
    activations: bool = False
    companion: bool = False
    unequal_widths: bool = False
    same_at_all_sites: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What a method sends, and how the server may combine that.

    Args:
        exchanges: whether anything besides the head is trained and exchanged.
        sends_backbone: whether it exchanges the whole backbone, which the site policy must allow by name.
        products: whether its tensors are pairs of factors (`fedpeft.alignment.factors`) whose products can be averaged
            and factored again (`aggregation: svd`).
        factors: if its tensors, or those of a part, are LoRA's A and B beside frozen matrices: the function from its
            settings to the scale of a product, "package.module:object". Sites may then differ in rank, and products
            can be added to the matrices (`aggregation: stack`, see `stackable`).
        layers: whether its layers can be trained and sent one by one (F3OCUS).
        schedule: values of the section `schedule` that belong to the method, which a job cannot set otherwise.
        uniform: whether by default all sites count alike in the mean, whatever their number of samples.
        goes_on: whether a site continues with its own tensors instead of the global ones.
    """

    exchanges: bool = True
    sends_backbone: bool = False
    products: bool = False
    factors: str = ""
    layers: bool = True
    schedule: Mapping[str, Any] = field(default_factory=dict)
    uniform: bool = False
    goes_on: bool = False


@dataclass(frozen=True, kw_only=True)
class BackboneSupport:
    """The backbones and precisions that a method supports.

    Args:
        unequal_backbones: whether sites may have different backbones of one family: its tensors are added to a
            backbone, contain none of its values and do not belong to places in its matrices.
        leaves_matrices: whether it neither trains matrices of the backbone nor computes its first values from them, so
            that a large backbone can be read in bfloat16.
        four_bits: whether linear layers may be in four bits: it neither trains their weights or biases nor computes
            with their values itself.
    """

    unequal_backbones: bool = False
    leaves_matrices: bool = False
    four_bits: bool = False


@dataclass(frozen=True, kw_only=True)
class TuningMethod(Alignment, Exchange, BackboneSupport):
    """The registration of a tuning method with its declarations; this imports neither torch nor PEFT.

    Args:
        home: import path of its code, "package.module:object", a `fedpeft.methods.trainable.Tuning`; with a base, a
            function from the base's code to its own.
        label: what it trains, for tables.
        source: the paper.
        base: the method that it is built on, whose code it gets, whose settings in a job apply to it too, and whose
            tensors it exchanges; empty: none.
        parts: registered methods that it combines, each with its settings under its name; empty: it is one method.
        peft_tuner: whether its code registers a tuner with PEFT.
        exports: whether it can be saved as a PEFT folder.
        limits: by name, the settings that a job may set at a site, with a check of the value
            (`fedpeft.methods.setting_limits`); a job may set no others.
    """

    home: str
    label: str
    source: str
    base: str = ""
    parts: tuple[str, ...] = ()
    peft_tuner: bool = False
    exports: bool = False
    limits: Limits = field(default_factory=dict)

    @property
    def stackable(self) -> bool:
        """Whether all factors that it trains are LoRA's, which can be put side by side (`aggregation: stack`)."""
        parts = map(METHODS.get, self.parts)
        return bool(self.factors) and all(part.factors or not part.products for part in parts)

    def tuning(self) -> Tuning:
        """Import and return its code; this imports torch and, for most methods, PEFT."""
        code = imported(self.home)
        return code(METHODS.get(self.base).tuning()) if self.base else code

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Check the settings of a job; the code is imported only if they are not within `limits`."""
        if self._is_doubtful(settings) and (check := getattr(self.tuning(), "check", None)):
            check(settings)

    def _is_doubtful(self, settings: Mapping[str, Any]) -> bool:
        """Return whether only the code knows if it takes these settings, all of them together."""
        if None in settings.values() or any(refused_settings(settings, self.limits)):
            return True
        own = {part: settings.get(part, {}) for part in self.parts}
        return goes_with_others(settings, self.limits) or any(METHODS.get(part)._is_doubtful(own[part]) for part in own)

    def reads_half(self, settings: Mapping[str, Any]) -> bool:
        """Return whether matrices of the backbone can be read in bfloat16 with these settings of a job."""
        return self.leaves_matrices and not any(refused_settings(settings, self.limits))

    def product_scale(self, settings: Mapping[str, Any]) -> float | None:
        """Return the scale of the product of its factors with these settings; None if they are wrong."""
        return imported(self.factors)(settings)

    def neuron_layout(self) -> Neurons | None:
        """Return the layout of its hidden neurons, and let it align them from now on; None if it has none."""
        if not self.neurons:
            return None
        from fedpeft.alignment.neurons import KINDS

        try:
            layout: Neurons = imported(self.neurons)
            known = KINDS.setdefault(layout.kind, layout)
        except Exception as error:
            raise FedpeftError(
                f"the neurons of {self.label}, {self.neurons}, cannot be imported ({type(error).__name__}: {error}): "
                f"correct or update the package that declares them.",
                code="plugin-unusable",
            ) from error
        if known is not layout:
            raise FedpeftError(
                f"the neurons of {self.label}, {self.neurons}, have the kind {layout.kind!r:.80}, which others have "
                f"already: give them another.",
                code="plugin-unusable",
            )
        return layout


def bottleneck_adapter(home: str, *, label: str, source: str, limits: Limits = BOTTLENECK) -> TuningMethod:
    """Declare a method whose adapters are built with `fedpeft.methods.bottleneck`; see `TuningMethod`."""
    return TuningMethod(
        home=home,
        label=label,
        source=source,
        neurons="fedpeft.alignment.neurons:BOTTLENECK",
        activations=True,
        companion=True,
        unequal_widths=True,
        same_at_all_sites=("activation", "scaling"),
        unequal_backbones=True,
        leaves_matrices=True,
        four_bits=True,
        peft_tuner=True,
        exports=True,
        limits=limits,
    )


def feddat(base: str) -> TuningMethod:
    """Declare FedDAT over a registered method of bottleneck adapters, or one that is built on such a method."""
    below = METHODS.get(base)
    return TuningMethod(
        home="fedpeft.methods.feddat:FedDATTuning",
        base=base,
        label=f"FedDAT over {below.label}",
        source="Chen et al. 2024, FedDAT",
        uniform=True,
        unequal_backbones=below.unequal_backbones,
        leaves_matrices=below.leaves_matrices,
        four_bits=below.four_bits,
        limits=below.limits,
    )


METHODS: Registry[TuningMethod] = Registry("method", "fedpeft.methods", TuningMethod)


def with_bases(name: str) -> tuple[str, ...]:
    """Return the methods that a method is built on, the innermost first, followed by itself."""
    base = METHODS.get(name).base
    return (*with_bases(base), name) if base else (name,)


def names() -> tuple[str, ...]:
    """Return the names that `fedpeft.adapters.config` takes: the methods that are adapters in PEFT's format."""
    return tuple(name for name, method in METHODS.usable() if method.exports)
