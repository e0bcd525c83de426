# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Tuning methods by name. A new one is one file with a `TUNING` and one registration below."""

from dataclasses import replace
from typing import Any

from fedpeft.methods import setting_limits as limits
from fedpeft.methods.method import METHODS, TuningMethod, bottleneck_adapter, feddat, with_bases

__all__ = ["METHODS", "TuningMethod", "bottleneck_adapter", "feddat", "get", "names", "register", "with_bases"]

register, names, get = METHODS.register, METHODS.names, METHODS.get
BOTTLENECKS = "fedpeft.methods.bottleneck.adapters"
FROZEN = {"leaves_matrices": True, "four_bits": True}  # the backbone's matrices stay as they are
ADDED = FROZEN | {"unequal_backbones": True}  # its tensors are added, and fit any backbone of the family
PEFT_ADAPTER = FROZEN | {"exports": True}
ONE_DRAWN_LAYER = {"solver": "drawn", "budget": 1, "budget_range": ()}
VIT_PAPER = "Alkhunaizi et al. 2024, arXiv:2407.11573"


def _add(name: str, home: str, label: str, source: str, **declared: Any) -> None:
    """Register a method whose code is `fedpeft.methods.HOME`."""
    register(name, TuningMethod(home=f"fedpeft.methods.{home}", label=label, source=source, **declared))


register(
    "houlsby",
    bottleneck_adapter(
        f"{BOTTLENECKS}:HOULSBY",
        label="houlsby adapters",
        source="Houlsby et al. 2019, Parameter-Efficient Transfer Learning for NLP",
    ),
)
register(
    "pfeiffer",
    bottleneck_adapter(
        f"{BOTTLENECKS}:PFEIFFER", label="pfeiffer adapters", source="Pfeiffer et al. 2021, AdapterFusion"
    ),
)
register(
    "parallel",
    bottleneck_adapter(
        f"{BOTTLENECKS}:PARALLEL",
        label="parallel adapters",
        source="He et al. 2022, Towards a Unified View of Parameter-Efficient Transfer Learning",
        limits=limits.PARALLEL,
    ),
)
register(
    "compacter",
    replace(
        bottleneck_adapter(
            "fedpeft.methods.bottleneck.adapters:COMPACTER",
            label="compacter adapters",
            source="Karimi Mahabadi et al. 2021, Compacter",
            limits=limits.COMPACTER,
        ),
        neurons="fedpeft.alignment.neurons:COMPACTER",
        unequal_widths=False,
    ),
)
_add(
    "lora",
    "lora:TUNING",
    "lora adapters",
    "Hu et al. 2022, LoRA",
    neurons="fedpeft.alignment.neurons:LORA",
    products=True,
    factors="fedpeft.methods.lora:of_lora",
    exports=True,
    limits=limits.LORA,
    **ADDED,
)
_add(
    "classifier",
    "backbone_part:TUNING",
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
_add(
    "layernorm",
    "peft_tuners:LAYERNORM",
    "layer norms",
    "Zhao et al. 2024, Tuning LayerNorm in Attention",
    limits=limits.MODULES,
    **PEFT_ADAPTER,
)
_add(
    "ia3",
    "peft_tuners:IA3",
    "ia3 scales",
    "Liu et al. 2022, Few-Shot Parameter-Efficient Fine-Tuning",
    limits=limits.MODULES,
    **PEFT_ADAPTER | ADDED,
)
_add(
    "oft",
    "peft_tuners:OFT",
    "oft rotations",
    "Qiu et al. 2023, Orthogonal Finetuning",
    limits=limits.OFT,
    **PEFT_ADAPTER | ADDED,
)
_add(
    "hra",
    "peft_tuners:HRA",
    "hra reflections",
    "Yuan et al. 2024, Householder Reflection Adaptation",
    limits=limits.RANKED,
    **PEFT_ADAPTER | ADDED | {"four_bits": False},
)
_add(
    "vera", "peft_tuners:VERA", "vera scales", "Kopiczko et al. 2024, VeRA", limits=limits.VERA, **PEFT_ADAPTER | ADDED
)
_add(
    "fourierft",
    "peft_tuners:FOURIERFT",
    "fourier coefficients",
    "Gao et al. 2024, Parameter-Efficient Fine-Tuning with Discrete Fourier Transform",
    limits=limits.FOURIERFT,
    **PEFT_ADAPTER,
)
_add(
    "miss",
    "peft_tuners:MISS",
    "miss blocks",
    "Kang and Yin 2024, MiSS: Balancing LoRA Performance and Efficiency with Simple Shard Sharing",
    limits=limits.MISS,
    **PEFT_ADAPTER | ADDED,
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
LORA_PART = {"products": True, "factors": "fedpeft.methods.lora:of_part", **ADDED}
_add(
    "lora_vpt",
    "combined:LORA_VPT",
    "lora adapters and visual prompts",
    VIT_PAPER,
    parts=("lora", "vpt"),
    limits={"lora": limits.each(limits.LORA), "vpt": limits.each(limits.PROMPTS)},
    **LORA_PART,
)
_add(
    "lora_dvpt",
    "combined:LORA_DVPT",
    "lora adapters and decomposed visual prompts",
    VIT_PAPER,
    parts=("lora", "dvpt"),
    limits={"lora": limits.each(limits.LORA), "dvpt": limits.each(limits.FACTORED_PROMPTS)},
    **LORA_PART,
)
_add(
    "attention_vpt",
    "combined:ATTENTION_VPT",
    "attention and visual prompts",
    VIT_PAPER,
    parts=("attention", "vpt"),
    limits={"vpt": limits.each(limits.PROMPTS)},
)
_add(
    "sba_vpt",
    "combined:SBA_VPT",
    "attention of a drawn layer and visual prompts",
    VIT_PAPER,
    parts=("attention", "vpt"),
    schedule=ONE_DRAWN_LAYER,
    limits={"vpt": limits.each(limits.PROMPTS)},
)
_add(
    "adapterfusion",
    "bottleneck.branches:FusionTuning",
    "adapterfusion",
    "Pfeiffer et al. 2021, AdapterFusion",
    base="pfeiffer",
    limits=limits.BOTTLENECK,
    **ADDED,
)
for _base in ("adapterfusion", "houlsby", "parallel", "compacter"):
    register(f"feddat_{_base}", feddat(_base))
