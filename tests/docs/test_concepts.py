# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The pictures of concepts: every label is inside the picture and on no other label."""

import importlib.util
from itertools import combinations
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("draw_concepts", ROOT / "docs" / "draw_concepts.py")
concepts = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(concepts)


@pytest.mark.slow
@pytest.mark.parametrize("name", concepts.PICTURES)
def test_labels_are_inside_the_picture_and_apart(name):
    figure = concepts.draw(name)
    FigureCanvasAgg(figure).draw()
    drawn = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
    boxes = {label: label.get_window_extent() for label in drawn}
    for label, box in boxes.items():
        inside = box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1
        assert inside, label.get_text()
    for one, other in combinations(boxes, 2):
        assert not boxes[one].overlaps(boxes[other]), (one.get_text(), other.get_text())
    assert (ROOT / "docs" / f"{name}.png").is_file()
