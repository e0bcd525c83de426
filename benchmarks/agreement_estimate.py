# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""How far the agreement that a site computes from what it sees is the true one, over a run of the default method.

    python benchmarks/agreement_estimate.py                # 12 rounds with 0 and with 7 swapped pairs, one seed
    python benchmarks/agreement_estimate.py --dialects 7 --rounds 30 --seed 101

A site takes its own part off the change of the global adapter and counts the rest as the training of the others
(`fedpeft.site.client_round`). That is what the others trained only where all sites start from one adapter and are
averaged by their numbers of samples. Where sites keep different shares of their own, what they kept is in the rest as
well. Here the training of all sites is known: the true agreement is the cosine between a site's change and the mean of
the others' changes. Printed by round, as means over the sites: both, and the share of the global adapter that follows
from each, had it been followed from the first round on.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import learning
import numpy as np
import torch
from measured import machine, show

from fedpeft.core.states import State
from fedpeft.federate import federate
from fedpeft.job.composing import compose
from fedpeft.server.aggregation import parts_of
from fedpeft.site import site_state
from fedpeft.site.client_round import MEMORY, agreement, reordered_to, share_of
from fedpeft.site.learner import Learner

SEED = 100  # of those that the method's numbers were chosen on


def change(own: site_state.SiteState) -> torch.Tensor:
    """What a site's training changed in its last round, all numbers behind each other."""
    return torch.cat([(own.adapter[key] - own.started[key]).float().flatten() for key in sorted(own.adapter)])


def of_round(states: Mapping[str, site_state.SiteState], parts: Mapping[str, float], after: State) -> Iterator[tuple]:
    """By site: the agreement that it computes, and the true one."""
    changes = {site: change(own) for site, own in states.items()}
    mean = sum(parts[site] * moved for site, moved in changes.items())
    for site, own in states.items():
        others = mean - parts[site] * changes[site]
        mine = {key: trained - own.started[key] for key, trained in own.adapter.items()}
        computed = agreement(mine, before=own.received, after=after, part=parts[site])
        yield computed, float(torch.nn.functional.cosine_similarity(changes[site], others, dim=0))


def run(dialects: int, rounds: int, seed: int) -> np.ndarray:
    """One run: round x site x (computed, true)."""
    settings = [*learning.KNOWN["ours"], *learning.ADAPTERS, learning.UNVALIDATED, f"data.dialects={dialects}"]
    settings += [f"training.rounds={rounds}", "training.local_epochs=1", f"training.seed={seed}", f"data.seed={seed}"]
    sections = compose(learning.ROOT / "app_configs", learning.JOB, settings)
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        sites = sections["federation"]["sites"]
        learners = {s: Learner.from_sections(sections, site=s, folder=Path(folder) / s) for s in sites}
        for result in federate(learners):
            states = {s: site_state.load_before(learner.folder, result.round + 1) for s, learner in learners.items()}
            states = {site: reordered_to(own, result.state) for site, own in states.items()}
            method = next(iter(learners.values())).method
            parts = parts_of({site: update.samples for site, update in result.updates.items()}, method)
            figures.append(list(of_round(states, parts, result.state)))
    return np.array(figures)


def followed(agreements: np.ndarray) -> np.ndarray:
    """The share by round and site that follows from agreements (round, site): the first round has none before it."""
    mean, shares = agreements[0], []
    for number, now in enumerate(agreements):
        mean = now if number == 0 else MEMORY * mean + (1 - MEMORY) * now
        shares.append([share_of(float(value)) for value in mean])
    return np.array(shares)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dialects", nargs="+", type=int, default=[0, 7], help="swapped pairs, a run for each")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seed", type=int, default=SEED)
    chosen = parser.parse_args()
    print(machine())
    for dialects in chosen.dialects:
        figures = run(dialects, chosen.rounds, chosen.seed)
        computed, true = figures[..., 0], figures[..., 1]
        shares, true_shares = followed(computed), followed(true)
        rows = [
            (
                str(number),
                f"{computed[number - 1].mean():+.3f}",
                f"{true[number - 1].mean():+.3f}",
                f"{np.abs(computed[number - 1] - true[number - 1]).mean():.3f}",
                f"{shares[number - 1].mean():.2f}",
                f"{true_shares[number - 1].mean():.2f}",
            )
            for number in range(1, len(figures) + 1)
        ]
        heads = ("round", "computed", "true", "mean distance", "share", "share by the true one")
        apart = statistics.fmean(np.abs(shares - true_shares).flatten())
        note = f"over sites and rounds: correlation {np.corrcoef(computed.flatten(), true.flatten())[0, 1]:.2f}; "
        note += f"shares are {apart:.3f} apart on the average"
        show(f"{dialects} of 7 pairs swapped, seed {chosen.seed}", heads, rows, note)


if __name__ == "__main__":
    main()
