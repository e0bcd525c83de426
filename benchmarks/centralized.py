# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""How much a centralized model loses to the wording of answers: its one head tells apart those of all sites.

    python benchmarks/centralized.py               # the row "houlsby, centralized" of learning.py --methods all, seed 0

The trained model answers each site's test questions twice: with all answers, as the row is measured, and with only
those of the site that asks (its training answers), which a head of the site's own would have.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import every_method
import learning
import torch
from measured import machine, show

from fedpeft import data
from fedpeft.data.answer_space import vocabulary_of
from fedpeft.data.phantom import SITES
from fedpeft.data.schema import SiteData
from fedpeft.federate import federate
from fedpeft.job.composing import compose
from fedpeft.job.settings import SiteJob
from fedpeft.site.learner import Learner


@torch.inference_mode()
def accuracies(learner: Learner, part: SiteData) -> tuple[float, float, float]:
    """Of one site's test questions, in percent: answered right, among its own answers, and in words that it has not."""
    own = set(vocabulary_of(part, None).answers)
    lacks = torch.tensor([answer not in own for answer in learner.vocabulary.answers])
    right = among = others = 0
    for batch in learner.batches.draw(part.test, learner.training.evaluation_batch_size):
        scores = learner.answering.eval().answer_scores(batch.to(learner.device).inputs).cpu()
        first, of_own = scores.argmax(-1), scores.masked_fill(lacks, -torch.inf).argmax(-1)
        right += int((first[:, None] == batch.accepted).any(-1).sum())
        among += int((of_own[:, None] == batch.accepted).any(-1).sum())
        others += int(lacks[first].sum())
    right, among, others = (100 * count / len(part.test) for count in (right, among, others))
    return right, among, others


def run(row: str, seed: int, overrides: list[str]) -> list[tuple[float, float, float]]:
    """`accuracies` of every pooled site."""
    chosen = [*every_method.settings_of(row), *every_method.SETTINGS, learning.UNVALIDATED]
    chosen += [f"training.seed={seed}", f"data.seed={seed}", *overrides]
    sections = compose(learning.ROOT / "app_configs", learning.JOB, chosen)
    (center,) = sections["federation"]["sites"]
    with tempfile.TemporaryDirectory() as folder:
        learner = Learner.from_sections(sections, site=center, folder=Path(folder))
        for _ in federate({center: learner}):
            pass
        pooled = SiteJob.from_sections(sections, site=center).pooled
        return [accuracies(learner, data.load(settings)) for settings in pooled]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    rows = [row for row in every_method.EVERY if row.endswith(", centralized")]
    parser.add_argument("--row", default=rows[0], choices=rows, metavar="ROW", help="; ".join(rows))
    parser.add_argument("--seed", type=int, default=learning.SEEDS[0])
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE", help="change one setting")
    chosen = parser.parse_args()
    print(machine())
    figures = run(chosen.row, chosen.seed, chosen.set)
    listed = [(site, *(f"{one:.1f}" for one in own)) for site, own in zip(SITES, figures, strict=True)]
    listed.append(("all", *(f"{statistics.fmean(column):.1f}" for column in zip(*figures, strict=True))))
    heads = ("test questions of", "right %", "right among its own answers %", "answered in words that it has not %")
    show(f"{chosen.row}, seed {chosen.seed}", heads, listed, "procedural data, tiny backbone")


if __name__ == "__main__":
    main()
