# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Tuning methods by name. A new one is one file with a `TUNING` and one registration in this file."""

from dataclasses import replace
from typing import Any

from fedpeft.methods import setting_limits as limits
from fedpeft.methods.method import METHODS, TuningMethod, bottleneck_adapter, feddat, with_bases
from fedpeft.methods.setting_limits import Limits

__all__ = ["METHODS", "TuningMethod", "bottleneck_adapter", "feddat", "get", "names", "register", "with_bases"]

register, names, get = METHODS.register, METHODS.names, METHODS.get
FROZEN = {"leaves_matrices": True, "four_bits": True}  # the backbone's matrices stay as they are
ADDED = FROZEN | {"unequal_backbones": True}  # its tensors are added, and fit any backbone of the family
LORA_PART = ADDED | {"products": True, "factors": "fedpeft.methods.lora:lora_part_scale"}
ONE_DRAWN_LAYER = {"solver": "drawn", "budget": 1, "budget_range": (), "site_budgets": {}}
VIT_PAPER = "Alkhunaizi et al. 2024, arXiv:2407.11573"


def _add(name: str, home: str, label: str, source: str, **declared: Any) -> None:
    """Register a method whose code is `fedpeft.methods.HOME`."""
    register(name, TuningMethod(home=f"fedpeft.methods.{home}", label=label, source=source, **declared))


def _bottleneck(name: str, source: str, own: Limits = limits.BOTTLENECK, **declared: Any) -> None:
    """Register one of the bottleneck adapters of fedpeft."""
    home = f"fedpeft.methods.bottleneck.adapters:{name.upper()}"
    method = bottleneck_adapter(home, label=f"{name} adapters", source=source, limits=own)
    register(name, replace(method, **declared))


def _tuner(name: str, label: str, source: str, own: Limits, **declared: Any) -> None:
    """Register one of PEFT's own tuners."""
    _add(name, f"peft_tuners:{name.upper()}", label, source, exports=True, limits=own, **FROZEN | declared)


def _combined(name: str, label: str, *parts: str, **declared: Any) -> None:
    """Register a combination of methods that train together, each with its own limits."""
    own = {part: limits.each(get(part).limits) for part in parts if get(part).limits}
    _add(name, f"combined:{name.upper()}", label, VIT_PAPER, parts=parts, limits=own, **declared)


_bottleneck("houlsby", "Houlsby et al. 2019, Parameter-Efficient Transfer Learning for NLP")
_bottleneck("pfeiffer", "Pfeiffer et al. 2021, AdapterFusion", limits.PFEIFFER)
_bottleneck(
    "parallel", "He et al. 2022, Towards a Unified View of Parameter-Efficient Transfer Learning", limits.PARALLEL
)
_bottleneck(
    "compacter",
    "Karimi Mahabadi et al. 2021, Compacter",
    limits.COMPACTER,
    neurons="fedpeft.alignment.neurons:COMPACTER",
    unequal_widths=False,
)
_add(
    "lora",
    "lora:TUNING",
    "lora adapters",
    "Hu et al. 2022, LoRA",
    neurons="fedpeft.alignment.neurons:LORA",
    products=True,
    factors="fedpeft.methods.lora:lora_scale",
    same_at_all_sites=("rank_pattern", "alpha_pattern"),
    exports=True,
    limits=limits.LORA,
    **ADDED,
)
_add(
    "classifier",
    "backbone_part:CLASSIFIER",
    "classifier only",
    "the lower bound of FedPIA",
    exchanges=False,
    layers=False,
    **ADDED,
)
_add("full", "backbone_part:FULL", "full fine-tuning", "the upper bound of FedPIA", sends_backbone=True)
_add("bias", "backbone_part:BIAS", "biases", "Ben Zaken et al. 2022, BitFit", leaves_matrices=True)
_add(
    "attention",
    "backbone_part:ATTENTION",
    "attention",
    "Touvron et al. 2022, Three things everyone should know about Vision Transformers",
)
_add("sba", "backbone_part:ATTENTION", "attention of a drawn layer", VIT_PAPER, schedule=ONE_DRAWN_LAYER)
_add("dora", "lora:DORA", "dora adapters", "Liu et al. 2024, DoRA", four_bits=True, exports=True, limits=limits.LORA)
_tuner("layernorm", "layer norms", "Zhao et al. 2024, Tuning LayerNorm in Attention", limits.MODULES)
_tuner("ia3", "ia3 scales", "Liu et al. 2022, Few-Shot Parameter-Efficient Fine-Tuning", limits.MODULES, **ADDED)
_tuner("oft", "oft rotations", "Qiu et al. 2023, Orthogonal Finetuning", limits.OFT, **ADDED)
_tuner(
    "hra",
    "hra reflections",
    "Yuan et al. 2024, Householder Reflection Adaptation",
    limits.RANKED,
    unequal_backbones=True,
    four_bits=False,
)
_tuner("vera", "vera scales", "Kopiczko et al. 2024, VeRA", limits.VERA, **ADDED)
_tuner(
    "fourierft",
    "fourier coefficients",
    "Gao et al. 2024, Parameter-Efficient Fine-Tuning with Discrete Fourier Transform",
    limits.FOURIERFT,
)
_tuner(
    "miss",
    "miss blocks",
    "Kang and Yin 2024, MiSS: Balancing LoRA Performance and Efficiency with Simple Shard Sharing",
    limits.MISS,
    **ADDED,
)
_add("vpt", "prompts:VPT", "visual prompts", "Jia et al. 2022, Visual Prompt Tuning", limits=limits.PROMPTS, **ADDED)
_add(
    "dvpt",
    "prompts:DVPT",
    "decomposed visual prompts",
    VIT_PAPER,
    products=True,
    limits=limits.FACTORED_PROMPTS,
    **ADDED,
)
_add(
    "promptfl",
    "prompts:PROMPTFL",
    "soft tokens before the first layer",
    "Guo et al. 2023, PromptFL",
    layers=False,
    limits=limits.PROMPTS,
    **ADDED,
)
_combined("lora_vpt", "lora adapters and visual prompts", "lora", "vpt", **LORA_PART)
_combined("lora_dvpt", "lora adapters and decomposed visual prompts", "lora", "dvpt", **LORA_PART)
_combined("attention_vpt", "attention and visual prompts", "attention", "vpt")
_combined("sba_vpt", "attention of a drawn layer and visual prompts", "attention", "vpt", schedule=ONE_DRAWN_LAYER)
_add(
    "adapterfusion",
    "bottleneck.branches:FusionTuning",
    "adapterfusion",
    "Pfeiffer et al. 2021, AdapterFusion",
    base="pfeiffer",
    goes_on=True,
    limits=limits.PFEIFFER,
    **ADDED,
)
for _base in ("adapterfusion", "houlsby", "parallel", "compacter"):
    register(f"feddat_{_base}", feddat(_base))
