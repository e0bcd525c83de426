# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Whether a site's images can be read, and whether its backbone can take them: known before training.

`data.unreadable` is the share of images that may be unreadable. With 0 only the headers of the files are read on
loading, and one bad file refuses the data; a file with cut-off pixels ends the training that reads it. Above 0 every
image is decoded once on loading, so that skipped images are counted and named at the site before the first round, and
are the same in every round.

Whether an image processor takes an image, such as a strip of 1000 x 3 pixels, follows from its size. A blank image of
each of the most extreme sizes, narrow or small, goes through it, until several in a row are taken.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image

from fedpeft import backbones
from fedpeft.backbones import BACKBONES, Backbone, BackboneSettings
from fedpeft.core.errors import DataError, LocalError, UnreadableImage, is_out_of_memory
from fedpeft.data.images import MAX_PIXELS, check_header, open_image
from fedpeft.data.schema import SiteData

LEFT_OUT = "its image cannot be read"
NAMED = 5  # images that one message names
_AT_ONCE = 4  # Pillow decodes several files at once

Size = tuple[int, int]  # width and height
TAKEN = 16  # sizes in a row that are taken; then all less extreme ones count as taken
USUAL_SIDE = 224
# what transformers' processors raise for an image that they cannot take, and Pillow for one without pixels
REFUSED = (ValueError, TypeError, ArithmeticError, LookupError, RuntimeError, MemoryError)
REMEDY = "crop or pad it, or choose another backbone.name"


def images_of(data: SiteData) -> dict[str, Any]:
    """Return the images of a site by id, except computed ones."""
    images = {example.image_id: example.image for examples in data.splits().values() for example in examples}
    return {image_id: image for image_id, image in images.items() if not isinstance(image, np.ndarray)}


def unreadable(images: Mapping[str, Any], look: Callable[[Any], object] = open_image) -> dict[str, UnreadableImage]:
    """Return what is wrong with the images that cannot be read, by id, in the order of `images`."""
    with ThreadPoolExecutor(min(_AT_ONCE, os.cpu_count() or 1)) as threads:
        found = zip(images, threads.map(lambda image: _problem(image, look), images.values()), strict=True)
        return {image_id: problem for image_id, problem in found if problem}


def readable(data: SiteData, share: float) -> SiteData:
    """Return a site's data without the images that cannot be read."""
    images = images_of(data)
    turned: list[bool] = []

    def look(image: Any) -> None:
        if share:
            open_image(image)
        header = check_header(image)
        turned.append(header is not None and header.turned)

    problems = unreadable(images, look)
    if any(turned):
        note = f"{sum(turned):,} photographs are turned, as their EXIF orientation says."
        data = replace(data, notes=(*data.notes, note))
    return skip_images(data, problems, of=len(images), share=share)


def skip_images(data: SiteData, problems: Mapping[str, UnreadableImage], *, of: int, share: float | None) -> SiteData:
    """Return a site's data without bad images; refuse the data if these are more than a share, None: any."""
    if not problems:
        return data
    if len(problems) > (share or 0.0) * of:
        raise refusal(data.site, problems.values(), of=of, share=share)
    note = f"{len(problems):,} of {of:,} images cannot be read: {list_problems(problems.values())}."
    return data.without(problems, LEFT_OUT, note)


def refusal(site: str, problems: Iterable[UnreadableImage], *, of: int, share: float | None = 0.0) -> DataError:
    """Return the error for data with too many images that cannot be read."""
    problems = tuple(problems)
    allowed = f"more than unreadable={share:g} allows" if share else "and unreadable=0 allows none"
    remedies = "; ".join(dict.fromkeys(problem.remedy for problem in problems))
    others = "exclude these images, or set unreadable to the share that may be skipped"
    others += "; a hospital sets it in its site policy"
    if share is None:
        allowed, others = "and no job may leave one out", "exclude these images in the site policy"
    return DataError(
        f"Site {site!r}: {len(problems):,} of {of:,} images cannot be read, {allowed} ({list_problems(problems)}). "
        f"What helps: {remedies}. Or {others}."
    )


def list_problems(problems: Iterable[UnreadableImage]) -> str:
    """Return a text with the first images and what is wrong with each."""
    problems = tuple(problems)
    shown = [f"{problem.image} {problem.why}" for problem in problems[:NAMED]]
    return "; ".join([*shown, *([f"and {len(problems) - NAMED:,} more"] if problems[NAMED:] else [])])


def _problem(image: Any, look: Callable[[Any], object]) -> UnreadableImage | None:
    try:
        look(image)
    except UnreadableImage as error:
        return error
    return None


def fitting(data: SiteData, settings: BackboneSettings, share: float | None, *, download: bool = True) -> SiteData:
    """Return a site's data without the images that its backbone cannot take; for the share see `skip_images`."""
    images = images_of(data)
    if not images or BACKBONES.get(settings.name).any_size:
        return data
    backbone = backbones.prepared(settings, download=download)
    problems = misfits(images, backbone, settings.name) if backbone else {}
    return skip_images(data, problems, of=len(images), share=share)


def misfits(images: Mapping[str, Any], backbone: Backbone, name: str) -> dict[str, UnreadableImage]:
    """Return what is wrong with the images that a backbone cannot take, by id."""
    by_size: dict[Size, list[str]] = defaultdict(list)
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as threads:
        for image_id, size in zip(images, threads.map(_size, images.values()), strict=True):
            if size:
                by_size[size].append(image_id)
    refused = refused_sizes(by_size, lambda size: takes(backbone, size))
    why = {size: f"is of {size[0]} x {size[1]} pixels, which backbone {name!r} cannot take" for size in refused}
    return {name: UnreadableImage.of(images[name], why[size], REMEDY) for size in refused for name in by_size[size]}


def refused_sizes(sizes: Iterable[Size], taken: Callable[[Size], bool]) -> list[Size]:
    """Return the sizes that are not taken; the most extreme ones are tried first."""
    sizes, refused = list(sizes), dict[Size, None]()
    for extreme in (lambda size: -max(size) / min(size), min):
        in_a_row = 0
        for size in sorted(sizes, key=extreme):
            if in_a_row == TAKEN:
                break
            in_a_row += 1
            if size in refused or not taken(size):
                in_a_row, refused[size] = 0, None
    return list(refused)


def takes(backbone: Backbone, size: Size) -> bool:
    """Return whether a backbone makes a batch from an image of this size and a square one.

    Raises:
        LocalError: memory ran out, although an image of this size, scaled for the backbone, is not huge.
    """
    side = backbone.image_size or USUAL_SIDE
    square = np.zeros((side, side, 3), np.uint8)
    try:
        batch = backbone.collate([Image.new("RGB", size), square], ["a question"] * 2)
    except REFUSED as error:
        if is_out_of_memory(error) and max(size) * side**2 <= MAX_PIXELS * min(size):  # it does not become huge
            raise LocalError(
                f"memory ran out when an image of {size[0]} x {size[1]} pixels was tried with the backbone: end other "
                f"programs, or run this where more memory is free.",
                code="out-of-memory",
            ) from error
        return False
    return all(0 not in tensor.shape for tensor in batch.values())


def _size(image: Any) -> Size | None:
    try:
        header = check_header(image, inside_tables=True)
    except UnreadableImage:  # said elsewhere
        return None
    return (header.width, header.height) if header else None
