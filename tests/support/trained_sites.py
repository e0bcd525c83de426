# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Sites that have finished all rounds of a small federation in one process, and tables for them."""

import numpy as np
from PIL import Image

from fedpeft.federate import federate
from fedpeft.site.learner import Learner

COLUMNS = {"questions": "question,answer", "classes": "label", "labels": "labels"}
SHADES = {"dark": 40, "gray": 120, "light": 220}


def row(kind, shade, number):
    if kind == "questions":
        return f"how {'bright' if number % 2 else 'dark'} is it ?,{shade}"
    shade = shade.title()  # as people write classes
    return shade if kind == "classes" else "" if shade == "Dark" else "Gray|Light" if number % 4 == 0 else shade


def table(folder, kind, *, count=16):
    """A folder with images of three shades and their manifest, split by a column."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    lines = [f"image,{COLUMNS[kind]},split"]
    for split, images in (("train", count), ("validation", 6), ("test", 9)):
        for number in range(images):
            shade = list(SHADES)[number % 3]
            name = f"{split}-{number}.png"
            pixels = rng.integers(SHADES[shade] - 30, SHADES[shade] + 30, size=(32, 32, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name)
            lines.append(f"{name},{row(kind, shade, number)},{split}")
    (folder / "manifest.csv").write_text("\n".join(lines) + "\n")
    return folder


def trained(sections, folder, sites=("slake", "vqa-rad")):
    """Run a federation; each site's folder and the metrics of its last round."""
    learners = {site: Learner.from_sections(sections, site=site, folder=folder / site) for site in sites}
    last = list(federate(learners))[-1]
    return {site: (folder / site, update.metrics) for site, update in last.updates.items()}
