# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Images and questions as the inputs of any transformers model, by the tokenizer and image processor of its folder.

What a model reads is what its forward function takes: `input_ids`, `pixel_values` or both. Where the image is a part of
the text's tokens (PaliGemma, Qwen-VL, LLaVA), `backbone.prompt` says what is around it; no chat template is applied.
Image processors are transformers' PIL ones: torchvision is not needed.

What they and the tokenizer may make of an input is limited, because a few numbers in other people's files decide it.

    pixels made = side^2 * tiles * frames

Where only sizes decide the tiles, there are at most (largest size / smallest size)^2, each resized to the largest
side. Qwen's processors bound the number of pixels instead of a side, and cut into patches. A tokenizer with a few steps
that each double a text would fill the memory.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from fedpeft.backbones.checkpoint import (
    MAX_SIDE,
    check_config,
    check_kinds,
    check_text_length,
    check_vocabulary,
    refuse_kind,
)
from fedpeft.backbones.images import Images, pictures
from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import read_json
from fedpeft.core.settings import is_number

if TYPE_CHECKING:
    from fedpeft.backbones.registry import BackboneSettings


DEFAULT_SIDE, MAX_DEFAULT_SIDE = 224, 1024
OWN_CODE = {"trust_remote_code": False}

MAX_PATCH, MAX_PIXELS, MAX_TOKENS = 256, 2**24, 2**14
MAX_MADE, MAX_PATCHES = 2**26, 2**17
KINDS_OF_NUMBERS = (  # by their names; the first match counts
    ("pixels", re.compile(r"(min|max)_pixels"), MAX_PIXELS),
    ("tiles", re.compile(r"(?s)^(?!.*num_patches).*(tiles|slice|crops|max_patches|temporal|frames)"), MAX_SIDE),
    (
        "patch",
        re.compile(r"patch_size|merge_size|expand_factor|pooling_kernel_size|ensure_multiple_of|size_divisor"),
        MAX_PATCH,
    ),
    ("canvas", re.compile(r"pinpoints|resolution"), MAX_SIDE),
    ("side", re.compile(r"size|edge|height|width"), MAX_SIDE),
)
NO_SIDE = re.compile(r"(^|\.)min_|text_size|patch_size\.width")
TOKEN = re.compile(r"_ids?($|\.)")
OTHERS = re.compile(r".*(processor|extractor)")  # of images: checked above; of videos and sound: not read

MAX_PADDED = 512  # tokens that every text of a model without a mask is padded to, at most
PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
MAX_GROWTH = 2**10
MAX_SPECIAL = 64  # tokens that a tokenizer adds to each text
GROWTH = {"ByteLevel": 2, "Precompiled": 32}  # a byte becomes a letter of two; one letter can stand for a word


class ModelInputs:
    """Turns images and questions into a batch, with the tokenizer and image processor of a folder.

    A model with images in its text has a prompt with `{image}` and `{question}`; None: one after the other.
    """

    def __init__(
        self,
        model: nn.Module,
        source: str,
        *,
        text_length: int,
        image_size: int | None = None,
        prompt: str | None = None,
    ) -> None:
        self.names = set(inspect.signature(type(model).forward).parameters)
        self.text_length = text_length
        config = model.config
        image_token = getattr(config, "image_token_id", None) or getattr(config, "image_token_index", None)
        self.tokenizer = _tokenizer(source) if "input_ids" in self.names else None
        self.images = image_processor(source, image_size) if "pixel_values" in self.names else None
        if not self.tokenizer and not self.images:
            raise FedpeftError(
                f"{type(model).__name__} reads neither input_ids nor pixel_values: name a model of text or images as "
                f"backbone.source.",
                code="backbone-unusable",
            )
        self.max_text: int | None = None
        if self.tokenizer:
            text = config.get_text_config()
            check_vocabulary(self.tokenizer, text.vocab_size, source)
            around = self.tokenizer(prompt or "", add_special_tokens=False)["input_ids"]
            if set(around) & set(self.tokenizer.all_special_ids) - {self.tokenizer.unk_token_id}:
                raise FedpeftError(
                    f"prompt is {prompt!r}, and parts of it are special tokens of {source!r}: leave them out.",
                    setting="backbone.prompt",
                )
            max_length = getattr(text, "max_position_embeddings", None)
            self.max_text = max_length - len(around) - first_position(model) if max_length else None
            check_text_length(text_length, self.max_text or text_length, source)
            if (added := self.tokenizer.num_special_tokens_to_add()) >= text_length:
                raise FedpeftError(
                    f"text_length is {text_length}, and {source} adds {added} special tokens: raise it.",
                    setting="backbone.text_length",
                )
        self.joint = _processor(config, source, self.images) if image_token and self.images else None
        self.mark = _mark(config, self.joint) if self.joint else ""
        self.prompt = prompt or "{image}{question}"
        if prompt and not self.joint:
            raise FedpeftError(
                f"prompt is set, and {type(model).__name__} does not read images as tokens of its text: leave it out.",
                setting="backbone.prompt",
            )

    @classmethod
    def from_settings(cls, model: nn.Module, settings: BackboneSettings) -> ModelInputs:
        return cls(
            model,
            settings.source,
            text_length=settings.text_length,
            image_size=settings.image_size,
            prompt=settings.prompt,
        )

    @property
    def image_size(self) -> int:
        """Pixels of an image's sides."""
        size = dict(self.images.size) if self.images else {}
        side = size.get("height") or size.get("shortest_edge") or DEFAULT_SIDE
        return side if side <= MAX_DEFAULT_SIDE else DEFAULT_SIDE  # Qwen's processors count all pixels there

    @property
    def has_first(self) -> bool:
        return bool(self.tokenizer and self.tokenizer.cls_token)

    def __call__(
        self, images: Images, questions: Sequence[str], *, padding_side: str | None = None
    ) -> dict[str, Tensor]:
        """Return a batch of B images and B questions, padded on a side; None: the tokenizer's own."""
        side = {} if padding_side is None else {"padding_side": padding_side}
        shown = pictures(images) if self.images else []
        for image in shown:
            check_scaled(self.images, image.size)
        if self.joint:
            before, after = self.prompt.replace("{image}", self.mark).split("{question}")
            texts = [f"{before}{self._cut(question)}{after}" for question in questions]
            batch = dict(self.joint(images=shown, text=texts, padding=True, return_tensors="pt", **side))
            return {name: value for name, value in batch.items() if name in self.names}
        batch = {}
        if self.tokenizer:
            texts = [question or " " for question in questions]
            cut = self.tokenizer(texts, truncation=True, max_length=self.text_length)
            # without a mask a sample must not depend on its batch: such a model has learned texts of its whole length
            whole = "attention_mask" not in self.tokenizer.model_input_names
            longest = self.max_text if self.max_text and self.max_text <= MAX_PADDED else self.text_length
            length = {"padding": "max_length", "max_length": longest} if whole else {}
            batch |= self.tokenizer.pad(cut, return_tensors="pt", verbose=False, **length, **side)
        if self.images:
            batch |= self.images(shown, return_tensors="pt")
        return {name: value for name, value in batch.items() if name in self.names and isinstance(value, Tensor)}

    def text_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return how many tokens each text has before it is cut to `text_length`."""
        if not self.tokenizer:
            return [0] * len(texts)
        if self.joint:
            return [len(self._ids(text)) for text in texts]
        return [len(ids) for ids in self.tokenizer(list(texts), verbose=False)["input_ids"]]

    def answer(self, answer: str) -> list[int]:
        """Return the tokens of an answer after a prompt, with the one that ends it."""
        ids = self.tokenizer(f" {answer}", add_special_tokens=False, verbose=False)["input_ids"]
        return [*ids, self.tokenizer.eos_token_id]

    def save(self, folder: Path) -> None:
        for part in (self.tokenizer, self.images, self.joint):
            if part:
                part.save_pretrained(folder)

    def _cut(self, question: str) -> str:
        """Return a question cut to `text_length` tokens, without special tokens such as that of images."""
        tokens = self._ids(question := self._plain(question))
        if len(tokens) <= self.text_length:
            return question
        return self.tokenizer.decode(tokens[: self.text_length])

    def _plain(self, question: str) -> str:
        for token in self.tokenizer.all_special_tokens:
            question = question.replace(token, " ")
        return question

    def _ids(self, question: str) -> list[int]:
        return self.tokenizer(self._plain(question), add_special_tokens=False, verbose=False)["input_ids"]


def first_position(model: nn.Module) -> int:
    """Return the first token's position: RoBERTa and similar models begin after that of padding."""
    embeddings = getattr(model, "embeddings", None)
    padding = getattr(getattr(embeddings, "position_embeddings", None), "padding_idx", None)
    return 0 if padding is None else padding + 1


class ReadsText(nn.Module):
    """A backbone that reads texts through its `inputs`."""

    inputs: ModelInputs

    @property
    def text_length(self) -> int:
        return self.inputs.text_length

    @property
    def max_text(self) -> int | None:
        return self.inputs.max_text

    def text_tokens(self, texts: Sequence[str]) -> list[int]:
        return self.inputs.text_tokens(texts)

    def save_inputs(self, folder: Path) -> None:
        self.inputs.save(folder)


def _tokenizer(source: str) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source, **OWN_CODE)
    check_growth(tokenizer)
    if (added := tokenizer.num_special_tokens_to_add()) > MAX_SPECIAL:
        raise ValueError(
            f"its tokenizer.json adds {added:,} special tokens to each text, at most {MAX_SPECIAL} are read: give the "
            f"tokenizer of a whole checkpoint"
        )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    return tokenizer


def image_processor(source: str, image_size: int | None = None) -> Any:
    """Return transformers' image processor of a folder, which needs no torchvision."""
    from transformers import AutoImageProcessor
    from transformers.utils import CONFIG_NAME, IMAGE_PROCESSOR_NAME, PROCESSOR_NAME

    for name in (CONFIG_NAME, PROCESSOR_NAME, IMAGE_PROCESSOR_NAME):  # each may name the processor's class
        check_kinds(_content(Path(source) / name))
    processor = AutoImageProcessor.from_pretrained(source, backend="pil", **OWN_CODE)
    refuse_kind(type(processor).__name__)  # of a kind of model that has the processor of another
    check_image_processor(processor)
    if image_size is not None:
        if _counts_pixels(processor):
            raise FedpeftError(
                f"image_size is {image_size}, and {type(processor).__name__} keeps the size of each image, within its "
                f"own limits: leave it out.",
                setting="backbone.image_size",
            )
        if image_size > MAX_SIDE:
            raise FedpeftError(f"image_size is {image_size}, at most {MAX_SIDE}.", setting="backbone.image_size")
        processor.size = _resized(processor.size, image_size)
        if getattr(processor, "crop_size", None):
            processor.crop_size = _resized(processor.crop_size, image_size)
    return processor


def _counts_pixels(processor: Any) -> bool:
    """Return whether `size` has numbers of pixels, as in Qwen's processors and those like them."""
    return hasattr(type(processor), "merge_size")


def _content(file: Path) -> Any:
    return read_json(file) if file.exists() else {}


def _resized(size: Any, pixels: int) -> dict[str, int]:
    names = [name for name in ("height", "width", "shortest_edge") if dict(size).get(name)]
    return dict.fromkeys(names or ("height", "width"), pixels)


def _check_processor(source: str, images: Any) -> None:
    """Refuse a processor that writes huge texts, or names a model for sound, which would be loaded unchecked."""
    from transformers.utils import AUDIO_TOKENIZER_NAME, PROCESSOR_NAME

    sound = (Path(source) / AUDIO_TOKENIZER_NAME).exists()
    content = _content(Path(source) / PROCESSOR_NAME)
    if sound or "audio_tokenizer" in content:
        raise ValueError(
            f"its {AUDIO_TOKENIZER_NAME if sound else PROCESSOR_NAME} names a model for sound, which is never loaded: "
            f"remove it"
        )
    check_config(content)
    check_processor(content, images)


def _processor(config: Any, source: str, images: Any) -> Any:
    """Return transformers' processor of a model with images as tokens of its text, with our image processor."""
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

    kind = PROCESSOR_MAPPING.get(type(config), None)
    if kind is None:
        raise ValueError(f"transformers has no processor for {config.model_type}, whose text has tokens for images")

    def attributes(cls: Any) -> list[str]:
        return [name for name in kind.get_attributes() if name in ("image_processor", "tokenizer")]

    # videos are not read, and their processors need torchvision
    images_only = type(kind.__name__, (kind,), {"get_attributes": classmethod(attributes)})
    _check_processor(source, images)
    processor = images_only.from_pretrained(source, **OWN_CODE)
    processor.image_processor = images
    return processor


def _mark(config: Any, processor: Any) -> str:
    """Return the image's token, with those that the model wants around it; empty: the processor writes them itself."""
    if hasattr(processor, "num_query_tokens"):
        return ""
    around = [getattr(config, f"vision_{end}_token_id", None) for end in ("start", "end")]
    if None in around:
        return processor.image_token
    first, last = processor.tokenizer.convert_ids_to_tokens(around)
    return f"{first}{processor.image_token}{last}"


def check_image_processor(processor: Any) -> None:
    """Refuse an image processor that would make a huge image; the check itself makes none."""
    in_pixels = _counts_pixels(processor)
    sides, canvases, pixels, patches, tiles = [1.0], [1.0], [1.0], [1.0], [1.0]
    for path, number in _numbers(processor.to_dict()):
        kind, maximum = _kind(path, in_pixels)
        _check_maximum(path, number, maximum)
        if number > 0 and kind and not NO_SIDE.search(path):
            {"side": sides, "canvas": canvases, "pixels": pixels, "patch": patches, "tiles": tiles}[kind].append(number)
    step, both = math.prod(patches), sides[1:] + canvases[1:]
    cuts = (max(both) / min(both)) ** 2 if both else 1
    made = max(max(sides) ** 2 * cuts, max(canvases) ** 2, *pixels, step**2)
    _check_maximum("all its tiles together", made * math.prod(tiles), MAX_MADE)
    _check_maximum("the number of its patches", max(pixels) / step**2, MAX_PATCHES)


def check_processor(content: Mapping[str, Any], images: Any) -> None:
    """Refuse a processor that would write a huge text, with a huge number of tokens for an image."""
    own = {name: value for name, value in content.items() if not OTHERS.fullmatch(name)}
    for path, number in _numbers(own):
        if not TOKEN.search(path):
            _check_maximum(path, number, MAX_TOKENS)
    patch = own.get("patch_size")
    if isinstance(patch, int | float) and not _counts_pixels(images):
        sizes = {name: value for name, value in images.to_dict().items() if name in ("size", "crop_size")}
        side = max((number for _, number in _numbers(sizes)), default=1)
        _check_maximum("the number of its patches", (side / max(patch, 1)) ** 2, MAX_PATCHES)


def check_scaled(processor: Any, size: tuple[int, int]) -> None:
    """Refuse an image so narrow that a processor which only sets the shortest side would make it huge."""
    sides = {name: value for name, value in dict(processor.size).items() if value}
    if set(sides) == {"shortest_edge"}:
        edge = sides["shortest_edge"]
        made = edge**2 * max(size) / min(size)
        if made > MAX_MADE:
            raise ValueError(f"an image of {size} would be scaled to {made:,.0f} pixels, at most {MAX_MADE:,} are made")


def _kind(path: str, in_pixels: bool) -> tuple[str, int]:
    """Return which kind of size a number is (empty: none), and the largest that is read."""
    if in_pixels and path.startswith("size."):
        return "pixels", MAX_PIXELS
    found = ((kind, maximum) for kind, name, maximum in KINDS_OF_NUMBERS if name.search(path))
    return next(found, ("", MAX_TOKENS))


def _check_maximum(name: str, number: float, maximum: int) -> None:
    if not abs(number) <= maximum:  # NaN as well
        raise ValueError(f"its image processor has {name} = {number:.15g}, at most {maximum:,} is read")


def _numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number with the names that lead to it, joined by a dot."""
    waiting = [(path, value)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += [(f"{path}.{key}".lstrip("."), inner) for key, inner in value.items()]
        elif isinstance(value, list | tuple):
            waiting += [(path, inner) for inner in value]
        elif is_number(value):
            yield path, value


def check_growth(tokenizer: Any) -> None:
    """Refuse a tokenizer whose steps can make a text far longer; only one from a tokenizer.json has such steps."""
    backend, growth = getattr(tokenizer, "backend_tokenizer", None), 1
    for part in PARTS if backend is not None else ():
        step = getattr(backend, part)
        for entry in _steps(json.loads(step.__getstate__())) if step is not None else ():
            growth *= max(1, _growth(entry))
            if growth > MAX_GROWTH:
                raise ValueError(
                    f"its tokenizer.json has steps that make a text more than {MAX_GROWTH:,} times as long, at "
                    f"{entry.get('type')!s:.40} of its {part}: give the tokenizer of a whole checkpoint"
                )


def _growth(step: Mapping[str, Any]) -> int:
    """Return how many times as long a text can become by one step."""
    if step.get("type") == "Replace":
        between = not step.get("pattern", {}).get("String")  # a pattern can match between two letters
        return len(step.get("content", "")) + between
    if step.get("type") == "TemplateProcessing":
        return sum("Sequence" in piece for piece in step.get("single", ()))
    return GROWTH.get(str(step.get("type")), 1)


def _steps(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every step of a part, including those of sequences."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            if "type" in value:
                yield value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
