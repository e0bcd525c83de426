# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Made-up histories: the decoded form of history.json."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

FIVE = ("slake", "vqa-rad", "vqa-med-2019", "vqa-med-2020", "vqa-med-2021")
PROCEDURAL = "procedural data, tiny backbone: these figures say nothing about medicine"
SOURCE = "phantom: drawn by a program, five sites with their own modality and question style"


def record(sites: tuple[str, ...] = FIVE, rounds: int = 5, *, procedural: bool = True, seed: int = 0) -> dict[str, Any]:
    """A run whose curves rise and flatten; no figure is missing."""
    draw = np.random.default_rng(seed)
    best, start = draw.uniform(0.45, 0.85, len(sites)), draw.uniform(0.15, 0.35, len(sites))
    entries = []
    for number in range(1, rounds + 1):
        progress = 1 - math.exp(-4 * number / (rounds + 1))
        noise = draw.normal(0, 0.012, (len(sites), 4))
        figures = {}
        for i, site in enumerate(sites):
            overall = start[i] + (best[i] - start[i]) * progress + noise[i, 0]
            figures[site] = {
                "overall": round(float(overall), 4),
                "open": round(float(overall - 0.09 + noise[i, 1]), 4),
                "closed": round(float(overall + 0.1 + noise[i, 2]), 4),
                "loss": round(float(2.2 - 1.6 * best[i] * progress + noise[i, 3]), 4),
                "samples": 200 + 37 * i,
            }
        distance = {site: round(float(0.4 * (1 - progress) + 0.05 + 0.02 * i), 4) for i, site in enumerate(sites)}
        entries.append({"round": number, "sites": figures, "alignment": distance, "rejected": {}, "seconds": 3.25})
    return {
        "job": "fedpia_task1",
        "method": "FedPIA, Houlsby adapters",
        "procedural": procedural,
        "tiny": procedural,
        "source": SOURCE if procedural else "VQA-RAD as published, split by body part",
        "settings": {"method": {"gamma": 0.1, "integration": "two_branches"}, "seed": 0},
        "rounds": entries,
    }


def gaps() -> dict[str, Any]:
    """Ten sites: one without open questions, one absent twice, one rejected twice, the last never accepted."""
    made = record((*FIVE, "ct", "ultrasound", "fundus", "dermatoscopy", "histology"), 9, seed=3)
    for entry in made["rounds"]:
        entry["sites"]["vqa-rad"]["open"] = None
        if entry["round"] in (3, 4):
            del entry["sites"]["fundus"], entry["alignment"]["fundus"]
        if entry["round"] in (5, 9):
            del entry["sites"]["ct"], entry["alignment"]["ct"]
            entry["rejected"]["ct"] = "layer.3.output.up.weight holds NaN"
        del entry["sites"]["histology"], entry["alignment"]["histology"]
        entry["rejected"]["histology"] = "plugin 0.0.9 but the server runs 0.1.0; install the same version"
    made["rounds"][6]["sites"]["slake"]["loss"] = None
    return made


def complete(rounds: int = 3) -> dict[str, Any]:
    """Two sites of which each sends 1 MB a round, is aligned and has scores."""
    history = record(("a", "b"), rounds)
    for one in history["rounds"]:
        for site in one["sites"].values():
            site["sent"] = 1_000_000
        report = {"a": {"before": 0.4, "after": 0.1, "moved": 0.5}, "b": {"before": 0.2, "after": 0.2, "moved": 0}}
        one["alignment_report"] = {"sites": report}
        one["schedule"] = {
            "layers": {"a": [0], "b": [1]},
            "scores": {"a": [3.0, 2.0, 1.0], "b": [1.0, 1.0, 5.0]},
        }
    return history


def write(folder: Path, made: Any) -> Path:
    """Write history.json into a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "history.json"
    file.write_text(json.dumps(made), encoding="utf-8")
    return file
