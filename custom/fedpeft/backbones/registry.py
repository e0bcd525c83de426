# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The backbones by name: one registration for each, and those of installed plugins."""

from pathlib import Path

from fedpeft.backbones.backbone import FEATURES, LIKELIHOODS, TEXT, Pretrained
from fedpeft.core.registry import Registry

TINY_FOLDER = Path(__file__).parent / "tiny_vilt"
TINY_VIT_FOLDER = Path(__file__).parent / "tiny_vit"
TINY_ALBEF_FOLDER = Path(__file__).parent / "tiny_albef"
ALBEF_PICKLE = "ALBEF.pth"
TINY_RATE = 5e-3  # width 96; the papers' 1e-4 moves adapters of that width next to nothing in ten rounds
# bottlenecks of 24 of 96 neurons; the papers' reductions would leave 6 or 3 of so narrow a backbone
WIDE_BOTTLENECKS = {name: {"reduction_factor": 4} for name in ("houlsby", "pfeiffer", "parallel", "compacter")}

BACKBONES: Registry[Pretrained] = Registry("backbone", "fedpeft.backbones", Pretrained)
BACKBONES.register(
    "tiny-vilt",
    Pretrained(
        build="fedpeft.backbones.vilt:build_tiny",
        skeleton="fedpeft.backbones.vilt:tiny_skeleton",
        source="Kim et al. 2021, ViLT",
        bare=True,
        any_size=True,
        usual=str(TINY_FOLDER),
        license="Apache-2.0",
        method_settings=WIDE_BOTTLENECKS,
        learning_rate=TINY_RATE,
        tiny=True,
    ),
)
BACKBONES.register(
    "vilt",
    Pretrained(
        build="fedpeft.backbones.vilt:build_full",
        skeleton="fedpeft.backbones.vilt:skeleton",
        source="Kim et al. 2021, ViLT",
        bare=True,
        any_size=True,
        usual="dandelin/vilt-b32-mlm",
        license="Apache-2.0",
    ),
)
BACKBONES.register(
    "tiny-vit",
    Pretrained(
        build="fedpeft.backbones.vit:build",
        skeleton="fedpeft.backbones.vit:tiny_skeleton",
        source="Dosovitskiy et al. 2020, An Image is Worth 16x16 Words",
        any_size=True,
        usual=str(TINY_VIT_FOLDER),
        license="Apache-2.0",
        tokenizer=False,
        reads_questions=False,
        method_settings={"compacter": {"reduction_factor": 4}},  # of its own 32 its 4 blocks cannot share 3 neurons
        learning_rate=TINY_RATE,
        tiny=True,
    ),
)
BACKBONES.register(
    "vit",
    Pretrained(
        build="fedpeft.backbones.vit:build",
        skeleton="fedpeft.backbones.vit:skeleton",
        source="Dosovitskiy et al. 2020, An Image is Worth 16x16 Words",
        any_size=True,
        usual="google/vit-base-patch16-224-in21k",
        license="Apache-2.0",
        tokenizer=False,
        reads_questions=False,
    ),
)
BACKBONES.register(
    "tiny-albef",
    Pretrained(
        build="fedpeft.backbones.albef:build",
        skeleton="fedpeft.backbones.albef:tiny_skeleton",
        source="Li et al. 2021, Align before Fuse",
        bare=True,
        any_size=True,
        usual=str(TINY_ALBEF_FOLDER),
        license="Apache-2.0",
        pickle=ALBEF_PICKLE,
        method_settings=WIDE_BOTTLENECKS,
        learning_rate=TINY_RATE,
        tiny=True,
    ),
)
BACKBONES.register(
    "tiny-albef-decoder",
    Pretrained(
        build="fedpeft.backbones.albef:build_decoder",
        skeleton="fedpeft.backbones.albef:tiny_decoder_skeleton",
        source="Li et al. 2021, Align before Fuse",
        bare=True,
        any_size=True,
        makes=(LIKELIHOODS,),
        usual=str(TINY_ALBEF_FOLDER),
        license="Apache-2.0",
        pickle=ALBEF_PICKLE,
        method_settings=WIDE_BOTTLENECKS,
        learning_rate=TINY_RATE,
        tiny=True,
    ),
)
BACKBONES.register(
    "albef",
    Pretrained(
        build="fedpeft.backbones.albef:build",
        skeleton="fedpeft.backbones.albef:skeleton",
        source="Li et al. 2021, Align before Fuse",
        bare=True,
        any_size=True,
        sized=True,  # its weights are a download that no hub has in this layout
        pickle=ALBEF_PICKLE,
    ),
)
BACKBONES.register(
    "albef-decoder",
    Pretrained(
        build="fedpeft.backbones.albef:build_decoder",
        skeleton="fedpeft.backbones.albef:decoder_skeleton",
        source="Li et al. 2021, Align before Fuse",
        bare=True,
        any_size=True,
        makes=(LIKELIHOODS,),
        sized=True,
        pickle=ALBEF_PICKLE,
    ),
)
BACKBONES.register(
    "llava",
    Pretrained(
        build="fedpeft.backbones.llava:build",
        skeleton="fedpeft.backbones.llava:skeleton",
        source="Liu et al. 2024, LLaVA-1.5",
        bare=True,
        half=True,
        makes=(FEATURES, TEXT),
        usual="llava-hf/llava-1.5-7b-hf",
        license="Llama 2 Community License",
        prompts=True,
    ),
)
BACKBONES.register(
    "blip2",
    Pretrained(
        build="fedpeft.backbones.blip2:build",
        skeleton="fedpeft.backbones.blip2:skeleton",
        source="Li et al. 2023, BLIP-2",
        bare=True,
        half=True,
        makes=(FEATURES, TEXT),
        usual="Salesforce/blip2-opt-2.7b",
        license="MIT; that of OPT is for research only",
        prompts=True,
    ),
)
BACKBONES.register(
    "transformers",
    Pretrained(
        build="fedpeft.backbones.transformers_model:build",
        skeleton="fedpeft.backbones.transformers_model:skeleton",
        source="Wolf et al. 2020, Transformers",
        bare=True,
        half=True,
        makes=(FEATURES, TEXT),  # text if it is a causal language model, which its source says
        prompts=True,
        tokenizer=False,  # a model of images has none; building it says what is missing
    ),
)
