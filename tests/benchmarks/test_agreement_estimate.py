# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""agreement_estimate.py: what a site computes is true where all start alike, not where they keep different shares."""

import pytest
import torch

from fedpeft.site.site_state import SiteState

PARTS = {"a": 0.5, "b": 0.3, "c": 0.2}
KEY = "layer.0.output.down.weight"


def figures(benchmark, kept):
    """Computed and true agreement of three sites that start apart from the global adapter by what they kept."""
    generator = torch.Generator().manual_seed(0)

    def random():
        return torch.randn(4, 5, generator=generator)

    states, after = {}, torch.zeros(4, 5)
    for site, part in PARTS.items():
        started = kept[site] * random()
        trained = started + random()
        after += part * trained
        tensors = {"received": torch.zeros(4, 5), "started": started, "adapter": trained}
        values = {name: {KEY: tensor} for name, tensor in tensors.items()}
        states[site] = SiteState(round=1, head={}, optimizer={}, **values)
    return list(benchmark("agreement_estimate").of_round(states, PARTS, {KEY: after}))


def test_it_is_true_where_all_start_from_the_global_adapter(benchmark):
    for computed, true in figures(benchmark, dict.fromkeys(PARTS, 0)):
        assert computed == pytest.approx(true, abs=1e-6)


def test_what_sites_kept_is_counted_as_training(benchmark):
    apart = [abs(computed - true) for computed, true in figures(benchmark, {"a": 0, "b": 1, "c": 1})]
    assert min(apart) > 0.01


def test_shares_follow_the_mean_over_rounds(benchmark):
    shares = benchmark("agreement_estimate").followed(torch.tensor([[0.5], [-0.5], [-0.5]]).numpy())
    assert shares[:, 0].tolist() == pytest.approx([1, 0.7, 0.3])
