# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What each dial of the embedded benchmark federation changes about the questions of its sites; nothing is trained.

    python benchmarks/dials.py

One setting at a time is turned, the others stay as they are by default (five sites, 300 training questions each, no
pair of words swapped, each site's own mix of question types). The columns, of the sites of a row:

- training questions: of all sites together.
- contradicted: share of a site's test questions with a clinical word that means another concept at another site, mean
  over all ordered pairs of sites. One model for both sites, if it does not know the site, reads that word wrong at one
  of them. The share bounds the wrong answers from above: both readings of a question can have the same answer.
- type distance: total variation distance, 1/2 sum_k |p_k - q_k|, between two sites' shares of the question types, mean
  over all pairs of sites. The shares are the expected ones (`type_shares`), without the noise of the draw.
- unseen answers: share of a site's test questions whose answer, in the site's own words, no training question of the
  site has, mean over the sites.

The test questions of a site do not depend on `train_size`, nor on the other sites.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, permutations

from measured import WIDTH, machine
from result_table import ResultTable
from rich.console import Console

from fedpeft.data import DataSettings, Example, SiteData, load
from fedpeft.data.phantom import QUESTIONS_PER_IMAGE, SITES, SIZES, site_profile, skewed, swapped_pairs
from fedpeft.data.phantom_scene import CLINICAL, dialect

DIALS = {
    "data.dialects": (0, 3, 7),
    "data.label_skew": (0, 1, 3),
    "data.train_size": (50, 300),
    "number of sites": (2, 5, 10),
}
HEADS = ("setting", "training questions", "contradicted %", "type distance %", "unseen answers %")
NOTE = (
    "contradicted: test questions with a clinical word that means another concept at another site; type distance: "
    "total variation distance of the expected question types of two sites; both are means over the pairs of sites. "
    "unseen answers: test questions whose answer no training question of their site has. data.seed 0; "
    "nothing is trained."
)


@dataclass(frozen=True, kw_only=True)
class World:
    """The settings of a federation that a row shows.

    Args:
        dialects, label_skew, train_size: of `data`.
        sites: how many: of the five named ones the first, then clinic-1, clinic-2, ...
    """

    dialects: int = 0
    label_skew: float = 1.0
    train_size: int = SIZES["train"]
    sites: int = len(SITES)

    @property
    def names(self) -> tuple[str, ...]:
        """The sites' names."""
        others = range(1, self.sites - len(SITES) + 1)
        return (*SITES[: self.sites], *(f"clinic-{number}" for number in others))

    def data(self) -> dict[str, SiteData]:
        """The sites' questions, without those of validation."""
        return {site: _questions(site, self.dialects, self.label_skew, self.train_size) for site in self.names}


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The figures of a row: a count, and three shares from 0 to 1 (see the head of this file)."""

    training: int
    contradicted: float
    type_distance: float
    unseen_answers: float


@cache
def _questions(site: str, dialects: int, label_skew: float, train_size: int) -> SiteData:
    return load(
        DataSettings(site=site, dialects=dialects, label_skew=label_skew, train_size=train_size, validation_size=0)
    )


def figures(world: World) -> Figures:
    """What the questions of a world's sites are like."""
    data = world.data()
    shares = [type_shares(skewed(site_profile(site).type_weights, world.label_skew)) for site in data]
    return Figures(
        training=sum(len(site.train) for site in data.values()),
        contradicted=statistics.fmean(
            contradicted(data[site].test, ambiguous_words(site, other, world.dialects))
            for site, other in permutations(data, 2)
        ),
        type_distance=statistics.fmean(total_variation(one, other) for one, other in combinations(shares, 2)),
        unseen_answers=statistics.fmean(unseen_answers(site) for site in data.values()),
    )


def ambiguous_words(site: str, other: str, dialects: int) -> set[str]:
    """The clinical words that mean different concepts at two sites."""
    here, there = (_meanings(name, dialects) for name in (site, other))
    return {word for word in here if here[word] != there[word]}


def _meanings(site: str, dialects: int) -> dict[str, str]:
    """Clinical word -> the concept that a site means by it."""
    return {word: concept for concept, word in dialect(CLINICAL, swapped_pairs(site, dialects)).items()}


def contradicted(examples: Sequence[Example], words: set[str]) -> float:
    """Share of questions that contain at least one of these words."""
    return statistics.fmean(not words.isdisjoint(example.question.split()) for example in examples)


def type_shares(weights: Sequence[float]) -> tuple[float, ...]:
    """Share of every type among a site's questions, if an image has QUESTIONS_PER_IMAGE of different types.

    The types of an image are drawn one after the other, each in proportion to its weight among those not drawn yet, so
    that no type has more than a share of 1 / QUESTIONS_PER_IMAGE. All ordered draws are summed.

    Args:
        weights: one per type, with sum 1.
    """
    shares = [0.0] * len(weights)
    for drawn in permutations(range(len(weights)), QUESTIONS_PER_IMAGE):
        probability, rest = 1.0, 1.0
        for index in drawn:
            probability *= weights[index] / rest
            rest -= weights[index]
        for index in drawn:
            shares[index] += probability / QUESTIONS_PER_IMAGE
    return tuple(shares)


def total_variation(one: Sequence[float], other: Sequence[float]) -> float:
    """Half the sum of absolute differences of two distributions: 0 if they are equal, 1 if they share nothing."""
    return sum(abs(p - q) for p, q in zip(one, other, strict=True)) / 2


def unseen_answers(site: SiteData) -> float:
    """Share of a site's test questions whose answer is that of no training question."""
    trained = {example.answer for example in site.train}
    return statistics.fmean(example.answer not in trained for example in site.test)


def worlds() -> Iterator[tuple[str, World]]:
    """Every row's name and settings."""
    for dial, values in DIALS.items():
        name = dial.removeprefix("data.") if dial.startswith("data.") else "sites"
        for value in values:
            yield f"{dial} {value}", World(**{name: value})


def table() -> ResultTable:
    """One row for every value of every dial."""
    rows: list[tuple[str, ...]] = []
    for name, world in worlds():
        drawn = figures(world)
        shares = (drawn.contradicted, drawn.type_distance, drawn.unseen_answers)
        rows.append((name, f"{drawn.training:,}", *(f"{100 * share:.1f}" for share in shares)))
    return ResultTable("One setting turned, the others as they are by default", HEADS, rows)


def main() -> None:
    print(machine())
    console = Console(width=WIDTH, highlight=False)
    console.print(table().table())
    console.print(NOTE)


if __name__ == "__main__":
    main()
