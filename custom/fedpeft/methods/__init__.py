# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Tuning methods by name. A new one is one file with a `TUNING` and one registration below."""

from dataclasses import replace

from fedpeft.methods import setting_limits
from fedpeft.methods.method import METHODS, TuningMethod, bottleneck_adapter, feddat, with_bases

__all__ = ["METHODS", "TuningMethod", "bottleneck_adapter", "feddat", "get", "names", "register", "with_bases"]

register, names, get = METHODS.register, METHODS.names, METHODS.get
ONE_DRAWN_LAYER = {"solver": "drawn", "budget": 1, "budget_range": ()}
VIT_PAPER = "Alkhunaizi et al. 2024, arXiv:2407.11573"

register(
    "houlsby",
    bottleneck_adapter(
        "fedpeft.methods.bottleneck.adapters:HOULSBY",
        label="houlsby adapters",
        source="Houlsby et al. 2019, Parameter-Efficient Transfer Learning for NLP",
    ),
)
register(
    "pfeiffer",
    bottleneck_adapter(
        "fedpeft.methods.bottleneck.adapters:PFEIFFER",
        label="pfeiffer adapters",
        source="Pfeiffer et al. 2021, AdapterFusion",
    ),
)
register(
    "parallel",
    bottleneck_adapter(
        "fedpeft.methods.bottleneck.adapters:PARALLEL",
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
        leaves_matrices=True,
        four_bits=True,
        neurons="fedpeft.alignment.neurons:LORA",
        products=True,
        factors="fedpeft.methods.lora:of_lora",
        exports=True,
        unequal_backbones=True,
        limits=setting_limits.LORA,
    ),
)
register(
    "classifier",
    TuningMethod(
        home="fedpeft.methods.backbone_part:TUNING",
        label="classifier only",
        source="the lower bound of FedPIA",
        leaves_matrices=True,
        four_bits=True,
        exchanges=False,
        unequal_backbones=True,
        layers=False,
    ),
)
register(
    "full",
    TuningMethod(
        home="fedpeft.methods.backbone_part:FULL",
        label="full fine-tuning",
        source="the upper bound of FedPIA",
        sends_backbone=True,
    ),
)
register(
    "bias",
    TuningMethod(
        home="fedpeft.methods.backbone_part:BIAS",
        label="biases",
        source="Ben Zaken et al. 2022, BitFit",
        leaves_matrices=True,
    ),
)
register(
    "attention",
    TuningMethod(
        home="fedpeft.methods.backbone_part:ATTENTION",
        label="attention",
        source="Touvron et al. 2022, Three things everyone should know about Vision Transformers",
    ),
)
register(
    "sba",
    TuningMethod(
        home="fedpeft.methods.backbone_part:ATTENTION",
        label="attention of a drawn layer",
        source=VIT_PAPER,
        schedule=ONE_DRAWN_LAYER,
    ),
)
register(
    "dora",
    TuningMethod(
        home="fedpeft.methods.lora:DORA",
        label="dora adapters",
        source="Liu et al. 2024, DoRA",
        four_bits=True,
        exports=True,
        limits=setting_limits.LORA,
    ),
)
register(
    "layernorm",
    TuningMethod(
        home="fedpeft.methods.peft_tuners:LAYERNORM",
        label="layer norms",
        source="Zhao et al. 2024, Tuning LayerNorm in Attention",
        leaves_matrices=True,
        four_bits=True,
        exports=True,
        limits=setting_limits.MODULES,
    ),
)
register(
    "ia3",
    TuningMethod(
        home="fedpeft.methods.peft_tuners:IA3",
        label="ia3 scales",
        source="Liu et al. 2022, Few-Shot Parameter-Efficient Fine-Tuning",
        leaves_matrices=True,
        four_bits=True,
        exports=True,
        unequal_backbones=True,
        limits=setting_limits.MODULES,
    ),
)
register(
    "oft",
    TuningMethod(
        home="fedpeft.methods.peft_tuners:OFT",
        label="oft rotations",
        source="Qiu et al. 2023, Orthogonal Finetuning",
        leaves_matrices=True,
        four_bits=True,
        exports=True,
        unequal_backbones=True,
        limits=setting_limits.OFT,
    ),
)
register(
    "hra",
    TuningMethod(
        home="fedpeft.methods.peft_tuners:HRA",
        label="hra reflections",
        source="Yuan et al. 2024, Householder Reflection Adaptation",
        leaves_matrices=True,
        exports=True,
        unequal_backbones=True,
        limits=setting_limits.RANKED,
    ),
)
register(
    "vera",
    TuningMethod(
        home="fedpeft.methods.peft_tuners:VERA",
        label="vera scales",
        source="Kopiczko et al. 2024, VeRA",
        leaves_matrices=True,
        four_bits=True,
        exports=True,
        unequal_backbones=True,
        limits=setting_limits.VERA,
    ),
)
register(
    "fourierft",
    TuningMethod(
        home="fedpeft.methods.peft_tuners:FOURIERFT",
        label="fourier coefficients",
        source="Gao et al. 2024, Parameter-Efficient Fine-Tuning with Discrete Fourier Transform",
        leaves_matrices=True,
        four_bits=True,
        exports=True,
        limits=setting_limits.FOURIERFT,
    ),
)
register(
    "miss",
    TuningMethod(
        home="fedpeft.methods.peft_tuners:MISS",
        label="miss blocks",
        source="Kang and Yin 2024, MiSS: Balancing LoRA Performance and Efficiency with Simple Shard Sharing",
        leaves_matrices=True,
        four_bits=True,
        exports=True,
        unequal_backbones=True,
        limits=setting_limits.MISS,
    ),
)
register(
    "vpt",
    TuningMethod(
        home="fedpeft.methods.prompts:VPT",
        label="visual prompts",
        source="Jia et al. 2022, Visual Prompt Tuning",
        leaves_matrices=True,
        four_bits=True,
        unequal_backbones=True,
        limits=setting_limits.PROMPTS,
    ),
)
register(
    "dvpt",
    TuningMethod(
        home="fedpeft.methods.prompts:DVPT",
        label="decomposed visual prompts",
        source=VIT_PAPER,
        leaves_matrices=True,
        four_bits=True,
        products=True,
        unequal_backbones=True,
        limits=setting_limits.FACTORED_PROMPTS,
    ),
)
register(
    "promptfl",
    TuningMethod(
        home="fedpeft.methods.prompts:PROMPTFL",
        label="soft tokens before the first layer",
        source="Guo et al. 2023, PromptFL",
        leaves_matrices=True,
        four_bits=True,
        layers=False,
        unequal_backbones=True,
        limits=setting_limits.PROMPTS,
    ),
)
register(
    "lora_vpt",
    TuningMethod(
        home="fedpeft.methods.combined:LORA_VPT",
        label="lora adapters and visual prompts",
        parts=("lora", "vpt"),
        source=VIT_PAPER,
        leaves_matrices=True,
        four_bits=True,
        products=True,
        factors="fedpeft.methods.lora:of_part",
        unequal_backbones=True,
        limits={"lora": setting_limits.each(setting_limits.LORA), "vpt": setting_limits.each(setting_limits.PROMPTS)},
    ),
)
register(
    "lora_dvpt",
    TuningMethod(
        home="fedpeft.methods.combined:LORA_DVPT",
        label="lora adapters and decomposed visual prompts",
        parts=("lora", "dvpt"),
        source=VIT_PAPER,
        leaves_matrices=True,
        four_bits=True,
        products=True,
        factors="fedpeft.methods.lora:of_part",
        unequal_backbones=True,
        limits={
            "lora": setting_limits.each(setting_limits.LORA),
            "dvpt": setting_limits.each(setting_limits.FACTORED_PROMPTS),
        },
    ),
)
register(
    "attention_vpt",
    TuningMethod(
        home="fedpeft.methods.combined:ATTENTION_VPT",
        label="attention and visual prompts",
        parts=("attention", "vpt"),
        source=VIT_PAPER,
        limits={"vpt": setting_limits.each(setting_limits.PROMPTS)},
    ),
)
register(
    "sba_vpt",
    TuningMethod(
        home="fedpeft.methods.combined:SBA_VPT",
        label="attention of a drawn layer and visual prompts",
        parts=("attention", "vpt"),
        source=VIT_PAPER,
        schedule=ONE_DRAWN_LAYER,
        limits={"vpt": setting_limits.each(setting_limits.PROMPTS)},
    ),
)
register(
    "adapterfusion",
    TuningMethod(
        home="fedpeft.methods.adapterfusion:FusionTuning",
        base="pfeiffer",
        label="adapterfusion",
        source="Pfeiffer et al. 2021, AdapterFusion",
        leaves_matrices=True,
        four_bits=True,
        unequal_backbones=True,
        limits=setting_limits.BOTTLENECK,
    ),
)
register("feddat_adapterfusion", feddat("adapterfusion"))
register("feddat_houlsby", feddat("houlsby"))
register("feddat_parallel", feddat("parallel"))
register("feddat_compacter", feddat("compacter"))
