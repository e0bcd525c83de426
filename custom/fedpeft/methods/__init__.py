# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Tuning methods by name. A new one is one file with a `TUNING` and one registration below."""

from dataclasses import replace

from fedpeft.methods import setting_limits
from fedpeft.methods.method import METHODS, TuningMethod, bottleneck_adapter

__all__ = ["METHODS", "TuningMethod", "bottleneck_adapter", "get", "names", "register"]

register, names, get = METHODS.register, METHODS.names, METHODS.get

register(
    "houlsby",
    bottleneck_adapter(
        "fedpeft.methods.houlsby:TUNING",
        label="houlsby adapters",
        source="Houlsby et al. 2019, Parameter-Efficient Transfer Learning for NLP",
    ),
)
register(
    "pfeiffer",
    bottleneck_adapter(
        "fedpeft.methods.pfeiffer:TUNING",
        label="pfeiffer adapters",
        source="Pfeiffer et al. 2021, AdapterFusion",
    ),
)
register(
    "parallel",
    bottleneck_adapter(
        "fedpeft.methods.parallel:TUNING",
        label="parallel adapters",
        source="He et al. 2022, Towards a Unified View of Parameter-Efficient Transfer Learning",
        limits=setting_limits.PARALLEL,
    ),
)
register(
    "compacter",
    replace(
        bottleneck_adapter(
            "fedpeft.methods.compacter:TUNING",
            label="compacter adapters",
            source="Karimi Mahabadi et al. 2021, Compacter",
            limits=setting_limits.COMPACTER,
        ),
        neurons="fedpeft.alignment.neurons:COMPACTER",
        unequal_widths=False,
    ),
)
register(
    "lora",
    TuningMethod(
        home="fedpeft.methods.lora:TUNING",
        label="lora adapters",
        source="Hu et al. 2022, LoRA",
        neurons="fedpeft.alignment.neurons:LORA",
        exports=True,
        limits=setting_limits.LORA,
    ),
)
register(
    "classifier",
    TuningMethod(
        home="fedpeft.methods.classifier:TUNING",
        label="classifier only",
        source="the lower bound of FedPIA",
        exchanges=False,
        layers=False,
    ),
)
register(
    "full",
    TuningMethod(
        home="fedpeft.methods.full:TUNING",
        label="full fine-tuning",
        source="the upper bound of FedPIA",
        sends_backbone=True,
    ),
)
