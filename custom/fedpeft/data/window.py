# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Windows: which part of the range of an image with more than 8 bits becomes the 256 grays that a model sees.

`{"center": 40, "width": 400}` is the part from center - width / 2 to center + width / 2, in Hounsfield units or what
the image holds after its own rescaling. `{"percentiles": [1, 99]}` is the part between two percentiles of each image,
for images without fixed units such as MRI.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedpeft.core.errors import DataError

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class Window:
    """A part of the range: in the image's units, or in percentiles of the image."""

    low: float
    high: float
    percentiles: bool = False

    def grays(self, values: np.ndarray) -> np.ndarray:
        """Return values (...) as uint8 (...): 0 up to `low`, 255 from `high` on, linear between them."""
        import numpy as np

        values = np.nan_to_num(np.asarray(values, np.float64), nan=-np.inf, posinf=np.inf, neginf=-np.inf)
        low, high = self.low, self.high
        if self.percentiles:
            finite = values[np.isfinite(values)]
            low, high = np.percentile(finite, (low, high)) if finite.size else (0.0, 1.0)
        if high <= low:
            return np.where(values > low, np.uint8(255), np.uint8(0))
        return np.round((np.clip(values, low, high) - low) * 255 / (high - low)).astype(np.uint8)


def window_of(settings: Mapping[str, Any]) -> Window | None:
    """Return the window of the settings; None: there is none.

    Raises:
        DataError: it is neither a center and a width nor two percentiles.
    """
    if not settings:
        return None
    if isinstance(settings, Mapping) and set(settings) == {"center", "width"}:
        center, width = settings["center"], settings["width"]
        if _is_number(center) and _is_number(width) and width > 0:
            return Window(center - width / 2, center + width / 2)
    if isinstance(settings, Mapping) and set(settings) == {"percentiles"}:
        ends = settings["percentiles"]
        numbers = isinstance(ends, list | tuple) and len(ends) == 2 and all(map(_is_number, ends))
        if numbers and 0 <= ends[0] < ends[1] <= 100:
            return Window(ends[0], ends[1], percentiles=True)
    raise DataError(
        f"window={settings!r:.120} must be {{center: C, width: W}} with a width above 0, or {{percentiles: [A, B]}} "
        f"with 0 <= A < B <= 100.",
        setting="window",
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
