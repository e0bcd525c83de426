# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Every method of the registry as a row of `learning.py --methods all`, with a learning rate from a grid for all alike.

`rates.py` runs the grid on a seed that no comparison reports; what it found lies in `results/rates.jsonl`, the
runs of the comparison in `results/methods.jsonl`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import json_lines

from fedpeft import methods
from fedpeft.data.phantom import SITES

RATES = Path(__file__).parent / "results" / "rates.jsonl"
RESULTS = RATES.with_name("methods.jsonl")
HEAD = 5e-3  # the head's rate at least: it learns with its method where that one takes a larger one
SETTINGS = ["training.rounds=20", "training.local_epochs=1"]
BASELINES = ("houlsby", "classifier")
OURS = ["method.aggregation=pia", "method.pia.share=agreement", "method.pia.accept=true"]
PAPER = ["method.aggregation=pia", "method.pia.share=0.5", "method.pia.accept=false"]
CENTRALIZED = ["federation.sites=[center]", f"data.pool=[{', '.join(SITES)}]", "method.aggregation=none"]


def _averaged(name: str) -> list[str]:
    exchanges = methods.get(name).exchanges
    return [f"method.name={name}", f"method.aggregation={'fedavg' if exchanges else 'none'}"]


FEDPIA = {  # over Houlsby adapters, the paper's, beside each site alone: rows with a search of their own
    "houlsby, every site alone": ["method.name=houlsby", "method.aggregation=none"],
    **{
        f"houlsby, FedPIA {name}": ["method.name=houlsby", *PAPER, f"method.pia.integration={value}"]
        for name, value in (
            ("in two branches", "two_branches"),
            ("in weight space", "weight_space"),
            ("with a frozen half", "frozen_half"),
        )
    },
    "houlsby, FedPIA by agreement": ["method.name=houlsby", *OURS],
}
EVERY: dict[str, list[str]] = {
    **{name: _averaged(name) for name in methods.names()},
    **FEDPIA,
    **{f"promptfl, k = {k}": [*_averaged("promptfl"), f"method.settings.promptfl.tokens={k}"] for k in (5, 10, 20)},
    "dvpt, concatenated": [*_averaged("dvpt"), "method.settings.dvpt.decomposition=concatenated"],
    **{
        f"{name}, svd": [f"method.name={name}", "method.aggregation=svd"]
        for name in ("lora", "lora_vpt", "lora_dvpt", "dvpt")
    },
    "lora, stack": ["method.name=lora", "method.aggregation=stack"],
    **{f"{name}, centralized": [f"method.name={name}", *CENTRALIZED] for name in ("houlsby", "vpt")},
    **{f"{name}, FedPIA by agreement": [f"method.name={name}", *OURS] for name in ("compacter", "lora")},
}
SEARCHED = (*methods.names(), *FEDPIA)  # rows for which the grid is run


def with_rate(method: str, rate: float) -> list[str]:
    """The settings of a row at this learning rate."""
    head = max(rate, HEAD)
    return [*EVERY[method], f"training.learning_rate={rate}", f"training.head_learning_rate={head}"]


def best_rates(results: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The rate of the highest accuracy for each row of `SEARCHED`; of two alike, the smaller."""
    ordered = sorted(results, key=lambda result: (result["accuracy"], -result["rate"]))
    return {result["method"]: result["rate"] for result in ordered}


def settings_of(method: str) -> list[str]:
    """The settings of a row, at the rate that the grid found for it, or else for its method: what precedes the comma.

    Raises:
        SystemExit: the grid has not been run for it.
    """
    name = method if method in SEARCHED else method.partition(",")[0]
    rates = best_rates(json_lines.read(RATES))
    if name not in rates:
        raise SystemExit(f"no learning rate for {name!r} in {RATES.name}: run `python benchmarks/rates.py` first")
    return with_rate(method, rates[name])
