# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Colors for procedural images: a scale of colors takes the place of the scale of grays. Whole numbers only."""

import numpy as np

Color = tuple[int, int, int]
Scale = tuple[Color, Color, Color]  # of the darkest, the middle and the brightest gray

GRAY: Scale = ((0, 0, 0), (128, 128, 128), (255, 255, 255))
SCALES: dict[str, Scale] = {
    "fundus": ((25, 5, 0), (190, 80, 25), (255, 235, 140)),
    "microscopy": ((60, 10, 90), (205, 130, 175), (250, 245, 250)),
    "histopathology": ((60, 20, 100), (215, 120, 170), (255, 235, 245)),
    "dermatoscopy": ((45, 20, 15), (185, 115, 85), (255, 220, 195)),
}


def colored(image: np.ndarray, scale: Scale) -> np.ndarray:
    """Return a gray (H, W, 3) uint8 image in the colors of a scale."""
    dark, middle, bright = (np.array(color) for color in scale)
    gray = np.arange(256)[:, None]
    below = (dark * (128 - gray) + middle * gray) // 128
    above = (middle * (255 - gray) + bright * (gray - 128)) // 127
    return np.where(gray < 128, below, above).astype(np.uint8)[image[:, :, 0]]
