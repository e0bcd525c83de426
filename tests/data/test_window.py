# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Windows: their ends, and settings that are none."""

import numpy as np
import pytest

from fedpeft.data import DataError, DataSettings
from fedpeft.data.settings import Window, window_of


def test_a_center_and_a_width_show_the_part_around_it():
    window = window_of({"width": 400, "center": 40})
    assert window == Window(-160, 240)
    values = np.array([-1000, -160, 40, 240, 3000, np.nan, np.inf])
    assert window.grays(values).tolist() == [0, 0, 128, 255, 255, 0, 255]


def test_percentiles_are_those_of_each_image():
    window = window_of({"percentiles": [1, 99]})
    values = np.arange(1000.0).reshape(20, 50)
    assert (window.grays(values) == window.grays(7 * values - 3)).all()
    assert (window.grays(values).min(), window.grays(values).max()) == (0, 255)
    assert window.grays(np.full((3, 3), np.nan)).tolist() == [[0] * 3] * 3
    assert window.grays(np.full((3, 3), 5.0)).tolist() == [[0] * 3] * 3


@pytest.mark.parametrize(
    "values",
    [
        {"center": 40},
        {"center": 40, "width": 0},
        {"center": 40, "width": -5},
        {"center": "40", "width": 400},
        {"center": float("nan"), "width": 400},
        {"center": 40, "width": 400, "percentiles": [1, 99]},
        {"percentiles": [99, 1]},
        {"percentiles": [1]},
        {"percentiles": [0, 101]},
        [40, 400],
        "lung",
    ],
)
def test_what_is_no_window_is_refused(values):
    with pytest.raises(DataError, match=r"window=.* must be \{center: C, width: W\} with a width above 0, or") as error:
        DataSettings(dataset="manifest", window=values)
    assert error.value.setting == "window"


def test_a_window_is_for_data_that_can_have_one():
    with pytest.raises(DataError, match=r"window=.* is not a setting of dataset='slake'; remove it"):
        DataSettings(dataset="slake", window={"center": 40, "width": 400})
