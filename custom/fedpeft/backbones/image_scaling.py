# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Mean and deviation of each color by which a folder's image model had its pixels scaled when it was trained.

    transformers' folder   preprocessor_config.json: image_mean, image_std; what it leaves out is its processor's own
    timm's folder          config.json: mean and std in pretrained_cfg, or beside it in older ones

Without them both are 0.5, as transformers' ViTImageProcessor and timm's vision transformers document.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedpeft.backbones.images import COLORS, HALF
from fedpeft.backbones.model_inputs import image_processor

PROCESSORS = ("preprocessor_config.json", "processor_config.json")
LARGEST, SMALLEST = 1e3, 1e-4  # a mean, and a deviation, of pixels from 0 to 1: beyond them pixels end at infinity


class Scaling(NamedTuple):
    """What makes `(x - mean) / deviation` of a pixel x of 0 to 1.

    Args:
        mean, deviation: of each color.
    """

    mean: tuple[float, ...] = HALF
    deviation: tuple[float, ...] = HALF


USUAL = Scaling()


def of_timm(config: Mapping[str, Any]) -> Scaling:
    """Return the scaling in the config.json of a folder in timm's layout.

    Raises:
        ValueError: it is not three numbers for each of the two.
    """
    described = config.get("pretrained_cfg") or config
    return _scaling("config.json", described.get("mean"), described.get("std"))


def of_transformers(source: str) -> Scaling:
    """Return the scaling of the image processor in a folder in transformers' layout.

    Raises:
        ValueError: it is not three numbers for each of the two.
    """
    named = [name for name in PROCESSORS if (Path(source) / name).is_file()]
    if not named:
        return USUAL
    processor = image_processor(source)
    mean, deviation = processor.image_mean, processor.image_std
    if not processor.do_normalize:
        mean, deviation = 0, 1
    scaling = _scaling(named[0], mean, deviation)
    factor = processor.rescale_factor if processor.do_rescale else 1
    if not (type(factor) in (int, float) and 0 < factor <= 1):
        raise ValueError(f"its {named[0]} has rescale_factor = {factor!r:.40}: give a number above 0, at most 1")
    if math.isclose(255 * factor, 1):
        return scaling
    return _checked(named[0], *(tuple(value / (255 * factor) for value in values) for values in scaling))


def _scaling(file: str, mean: Any, deviation: Any) -> Scaling:
    means = USUAL.mean if mean is None else _colors(f"{file} has the mean", mean)
    deviations = USUAL.deviation if deviation is None else _colors(f"{file} has the deviation", deviation)
    return _checked(file, means, deviations)


def _checked(file: str, mean: tuple[float, ...], deviation: tuple[float, ...]) -> Scaling:
    if min(deviation) < SMALLEST or max(map(abs, (*mean, *deviation))) > LARGEST:
        raise ValueError(
            f"its {file} scales colors by the mean {mean} and the deviation {deviation}: give deviations from "
            f"{SMALLEST:g} on, and nothing beyond {LARGEST:g}"
        )
    return Scaling(mean, deviation)


def _colors(what: str, value: Any) -> tuple[float, ...]:
    values = (value,) * COLORS if type(value) in (int, float) else value
    if not isinstance(values, list | tuple) or len(values) != COLORS or not all(map(_finite, values)):
        raise ValueError(f"its {what} {value!r:.80} of colors: give {COLORS} numbers")
    return tuple(map(float, values))


def _finite(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
