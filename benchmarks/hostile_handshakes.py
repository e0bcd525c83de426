# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A site that lies in the handshake, against the real controller in this process, with sites that are functions."""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from measured import ROOT

from fedpeft import report
from fedpeft.flare import controller
from fedpeft.flare.messages import FIELDS, to_model

sys.path.insert(0, str(ROOT / "tests" / "support"))

from harness import LAYERS, SCHEDULE, SCHEMA, SITES, START, Harness, assigned, introduction, starting

FAULTY_SITE = SITES[-1]
SAMPLES = {"train": 5, "validation": 1, "test": 2}
KEY = min(SCHEMA)
LIES: dict[str, dict[str, Any]] = {
    "0 training samples": {"samples": {**SAMPLES, "train": 0}},
    "10**12 training samples": {"samples": {**SAMPLES, "train": 10**12}},
    "true as number of training samples": {"samples": {**SAMPLES, "train": True}},
    "a budget of -5 layers": {"budget": -5},
    "-1 answer classes": {"classes": -1},
    "an unknown family of backbones": {"family": "unheard-of"},
    "an unknown data set": {"dataset": "../../etc/passwd"},
    "another version": {"version": "0.0.1"},
    "tensors of another shape": {"schema": {key: [4, 4] for key in SCHEMA}},
    "a tensor less than the others": {"schema": {KEY: SCHEMA[KEY]}},
    "a shape of 2**40 rows": {"schema": {**SCHEMA, KEY: [2**40, 3]}},
    "a shape of -1 rows": {"schema": {**SCHEMA, KEY: [-1, 3]}},
    "a tensor's name with ANSI codes": {"schema": {"\x1b[31mred\n": [2, 3]}},
    "a path as a tensor's name": {"schema": {"backbone.../../etc/passwd": [2, 3]}},
    "tensors of float64": {"dtype": "float64"},
    "tensors of bfloat16": {"dtype": "bfloat16"},
    "a digest that is none": {"start_digest": "0" * 63 + "\n"},
    "a key for secure sums that is none": {"sum_key": {"public": ["key"]}},
    "a problem of 2 MB with ANSI codes": {"problem": "\x1b[2Jround 9: completed\n" * 90_000},
    "an unexpected tensor": {"state": {KEY: torch.ones(SCHEMA[KEY])}},
}
UNEQUAL = {  # sites may differ in width
    "aggregation": "pia",
    "settings": {"houlsby": {"reduction_factor": 1.5}},
    "site_settings": {FAULTY_SITE: {"reduction_factor": 1}},
}
WIDTHS: dict[str, dict[str, list[int]]] = {
    "2**20 neurons where sites differ in width": {KEY: [2**20, 3], KEY.replace("down", "up"): [3, 2**20]},
    "as many neurons as the others, with another width in its settings": SCHEMA,
    "a tensor of 2**93 numbers where sites differ in width": {key: [2**31] * 3 for key in SCHEMA},
}
Row = tuple[str, str, str]


def rows() -> Iterator[Row]:
    """One of three sites lies, in every way."""
    without = _run(lambda site: None if site == FAULTY_SITE else introduction(site))
    for lie, values in LIES.items():
        run = _run(lambda site, values=values: introduction(site, **(values if site == FAULTY_SITE else {})))
        yield lie, *_outcome(*run, without[0], FAULTY_SITE)
    run = _run(_extra_field)
    yield "a field that no message has", *_outcome(*run, without[0], FAULTY_SITE)
    without = _run(lambda site: None if site == FAULTY_SITE else introduction(site), method=UNEQUAL)
    for lie, schema in WIDTHS.items():
        lying = {FAULTY_SITE: {"schema": schema}}
        run = _run(lambda site, lying=lying: introduction(site, **lying.get(site, {})), method=UNEQUAL)
        yield lie, *_outcome(*run, without[0], FAULTY_SITE)
    lied = {None: "without anybody's digest", True: "under the digest of the others", False: "under its own digest"}
    for value, alike in itertools.product((3e38, float("nan"), 0.3, 0.02), lied):
        state = {key: torch.full(shape, value) for key, shape in LAYERS.items()}
        announced = None if alike is None else START
        first = starting(SITES[0], state, announced if alike is not False else state)
        honest = {site: starting(site, announced=announced) for site in SITES}
        run = _run(({**honest, SITES[0]: first}).get, train=assigned, schedule=SCHEDULE)
        others = _run(({**honest, SITES[0]: None}).get, train=assigned, schedule=SCHEDULE)
        what, lost = _outcome(*run, others[0], SITES[0])
        yield f"the adapter that scheduled layers start from, full of {value:g}, {lied[alike]}", what, lost


def _extra_field(site: str) -> Any:
    model = to_model(introduction(site))
    if site == FAULTY_SITE:
        model.meta[FIELDS] |= {"patients": ["name"]}
    return model


def _run(introduce: Callable[[str], Any], **settings: Any) -> tuple[Harness, dict[str, Any]]:
    """The controller, its manifest."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        folders = {
            "run_folder": lambda fl_ctx: folder,
            "lineages_folder": lambda fl_ctx: folder / "state",
        }
        quiet = {"render": lambda *_: None, "show": lambda *_, **__: None}
        with patch.multiple(controller, **folders), patch.multiple(report, **quiet):
            harness = Harness(introduce, quorum=2, **settings)
            harness.run()
        return harness, json.loads((folder / "manifest.json").read_text())


def _outcome(harness: Harness, manifest: dict[str, Any], others: Harness, faulty_site: str) -> tuple[str, str]:
    """What the manifest says of the site, and what is missing beside the job without it."""
    if manifest["status"] != "completed":
        return manifest["reason"], "the job"
    said = [fault["what"] for fault in manifest["faults"] if fault["site"] == faulty_site]
    what = manifest["sites"][faulty_site].get("problem", "; ".join(said) or "nothing was noticed")
    alike = len(harness.saved) == len(others.saved) and all(
        torch.equal(state[key], expected[key])
        for state, expected in zip(harness.saved, others.saved, strict=True)
        for key in expected
    )
    part = "its part in the job" if "problem" in manifest["sites"][faulty_site] else "nothing"
    same = "the adapter is that of the other two" if alike else "the adapter differs from that of the other two"
    return what, f"{part}; {len(harness.saved)} of 2 rounds finished, {same}"
