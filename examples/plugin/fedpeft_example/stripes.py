# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A data set and a task: gratings, and the question which way they run."""

import zlib

import numpy as np

from fedpeft.data import DataSet, DataSettings, Example, SiteData

SIZES = {"train": 64, "validation": 8, "test": 32}
PIXELS, PERIOD = 48, 12


def load(settings: DataSettings) -> SiteData:
    """One site's gratings; the same seed and site give the same bytes."""
    site = settings.site or "stripes"
    rng = np.random.default_rng([settings.seed, zlib.crc32(site.encode())])
    splits = {split: tuple(grating(rng, f"{split}-{i}") for i in range(size)) for split, size in SIZES.items()}
    return SiteData(site=site, source=f"gratings of site {site!r} (seed {settings.seed})", **splits)


def grating(rng: np.random.Generator, name: str) -> Example:
    """One picture with its question."""
    wave = 127 + 127 * np.sin(2 * np.pi * (np.arange(PIXELS) / PERIOD + rng.random()))
    picture = np.broadcast_to(wave[:, None, None], (PIXELS, PIXELS, 3)).astype(np.uint8)
    level = bool(rng.random() < 0.5)
    return Example(
        image=np.ascontiguousarray(picture if level else picture.swapaxes(0, 1)),
        question="Which way do the stripes run?",
        answer="level" if level else "upright",
        closed=True,
        image_id=name,
    )


DATASET = DataSet(load=load, procedural=True)
TASK = {"data": {"dataset": "stripes"}, "training": {"rounds": 2, "local_epochs": 1, "learning_rate": 1e-3}}
