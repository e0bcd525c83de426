# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a folder's image processor and tokenizer may make of an input.

What a folder's image processor may make of an image: a few numbers decide it, and others wrote them.

    pixels made = side^2 * tiles * frames

Where an image is cut into tiles by sizes alone, there are at most (largest size / smallest size)^2, and each is resized
to the largest side. Qwen's processors bound the number of pixels instead of a side, and cut into patches.

What a folder's tokenizer may make of a text: a few steps that each double it fill the memory.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

LARGEST_SIDE, LARGEST_PATCH, MAX_PIXELS, MAX_TOKENS = 4096, 256, 2**24, 2**14
MAX_MADE, MAX_PATCHES = 2**26, 2**17
COUNTED = re.compile(r"(min|max)_pixels")
PATCH = re.compile(r"patch_size|merge_size|expand_factor|pooling_kernel_size|ensure_multiple_of|size_divisor")
TILES = re.compile(r"tiles|slice|crops|max_patches|temporal|frames")
SIDE, CANVAS = re.compile(r"size|edge|height|width"), re.compile(r"pinpoints|resolution")
NO_SIDE = re.compile(r"(^|\.)min_|text_size|patch_size\.width")
TOKEN = re.compile(r"_ids?($|\.)")
OTHERS = re.compile(r".*(processor|extractor)")  # of images: checked above; of videos and sound: not read


def check_image_processor(processor: Any) -> None:
    """Refuse an image processor that would make a huge image; none is made for this."""
    in_pixels = hasattr(type(processor), "merge_size")  # Qwen's and its kin: `size` has numbers of pixels
    sides, canvases, pixels, patches, tiles = [1.0], [1.0], [1.0], [1.0], [1.0]
    for path, number in _numbers(processor.to_dict()):
        kind, most = _kind(path, in_pixels)
        _check(path, number, most)
        if number > 0 and kind and not NO_SIDE.search(path):
            {"side": sides, "canvas": canvases, "pixels": pixels, "patch": patches, "tiles": tiles}[kind].append(number)
    step, both = math.prod(patches), sides[1:] + canvases[1:]
    cuts = (max(both) / min(both)) ** 2 if both else 1
    made = max(max(sides) ** 2 * cuts, max(canvases) ** 2, *pixels, step**2)
    _check("all its tiles together", made * math.prod(tiles), MAX_MADE)
    _check("the number of its patches", max(pixels) / step**2, MAX_PATCHES)


def check_processor(content: Mapping[str, Any], images: Any) -> None:
    """Refuse a processor that would write a huge text, in which an image has that many tokens."""
    own = {name: value for name, value in content.items() if not OTHERS.fullmatch(name)}
    for path, number in _numbers(own):
        if not TOKEN.search(path):
            _check(path, number, MAX_TOKENS)
    patch = own.get("patch_size")
    if isinstance(patch, int | float) and not hasattr(type(images), "merge_size"):
        sizes = {name: value for name, value in images.to_dict().items() if name in ("size", "crop_size")}
        side = max((number for _, number in _numbers(sizes)), default=1)
        _check("the number of its patches", (side / max(patch, 1)) ** 2, MAX_PATCHES)


def check_scaled(processor: Any, size: tuple[int, int]) -> None:
    """Refuse an image so narrow that a processor that sets its shortest side alone would make it huge."""
    sides = {name: value for name, value in dict(processor.size).items() if value}
    if set(sides) == {"shortest_edge"}:
        edge = sides["shortest_edge"]
        made = edge**2 * max(size) / min(size)
        if made > MAX_MADE:
            raise ValueError(f"an image of {size} would be scaled to {made:,.0f} pixels, at most {MAX_MADE:,} are made")


def _kind(path: str, in_pixels: bool) -> tuple[str, int]:
    """Return what a number stands for, empty where it is none of a size, and the largest that is read."""
    if COUNTED.search(path) or (in_pixels and path.startswith("size.")):
        return "pixels", MAX_PIXELS
    if TILES.search(path) and "num_patches" not in path:
        return "tiles", LARGEST_SIDE
    if PATCH.search(path):
        return "patch", LARGEST_PATCH
    if CANVAS.search(path):
        return "canvas", LARGEST_SIDE
    if SIDE.search(path):
        return "side", LARGEST_SIDE
    return "", MAX_TOKENS


def _check(name: str, number: float, most: int) -> None:
    if not abs(number) <= most:  # NaN as well
        raise ValueError(f"its image processor has {name} = {number:.15g}, at most {most:,} is read")


def _numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number with the names that lead to it, joined by a dot."""
    waiting = [(path, value)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += [(f"{path}.{key}".lstrip("."), inner) for key, inner in value.items()]
        elif isinstance(value, list | tuple):
            waiting += [(path, inner) for inner in value]
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield path, value


PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
MAX_GROWTH = 2**10
GROWTH = {"ByteLevel": 2, "Precompiled": 32}  # a byte becomes a letter of two; one letter can stand for a word


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
    """Yield every step of a part, those of sequences among them."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            if "type" in value:
                yield value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
