# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The page and the picture of the architecture name files and packages that are there, and every package."""

import ast
import re
from pathlib import Path

from grids import each

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "custom" / "fedpeft"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
NAMED = sorted(set(re.findall(r"`([a-z_0-9]+(?:/[a-z_0-9]+)*(?:\.py|/))`", PAGE)))
PACKAGES = sorted(folder.name for folder in PACKAGE.iterdir() if (folder / "__init__.py").is_file())


def pictured():
    """Every path that the drawing writes below a step."""
    tree = ast.parse((ROOT / "docs" / "draw_architecture.py").read_text())
    steps = next(n.value for n in tree.body if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "ROUND")
    for _, _, where in ast.literal_eval(steps):
        first, *others = where.split(", ")
        yield first
        yield from (f"{first.partition('/')[0]}/{other}" for other in others)


@each("path", NAMED)
def test_what_the_page_names_is_there(path):
    assert (PACKAGE / path).exists()


@each("path", sorted(pictured()))
def test_what_the_picture_names_is_there(path):
    assert (PACKAGE / f"{path}.py").is_file()


@each("package", PACKAGES)
def test_every_package_is_on_the_page(package):
    assert f"`{package}/`" in PAGE
