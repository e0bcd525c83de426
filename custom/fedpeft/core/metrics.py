# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a site's model is measured by. A site's data declare it; messages and reports know it by name.

The fraction that a metric gives is called `overall` in messages and histories. Accuracy has two parts beside it, `open`
and `closed`, of questions of these kinds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from statistics import fmean
from types import MappingProxyType

from fedpeft.core.text import sites_in_words

VALIDATION = "validation"  # the name of the same figure on the validation split
ENDS = ("loss_start", "loss_end")  # mean loss on the probe before the first and after the last step of a round
BELOW_CONSTANT = "below_constant"  # 1: no better than a constant answer in each of the last rounds, else 0
ROUNDS_BELOW = 3  # of the site, before that is said
NO_BETTER = (
    f"no better than a constant answer for {ROUNDS_BELOW} rounds: set another training.learning_rate, or train longer"
)
ACCURACY, BALANCED_ACCURACY, MACRO_F1 = "accuracy", "balanced_accuracy", "macro_f1"
Figures = Mapping[str, float | None]  # by site
TITLES = {ACCURACY: "accuracy", BALANCED_ACCURACY: "balanced accuracy", MACRO_F1: "macro-F1"}


def title_of(metrics: Iterable[str]) -> str:
    """Return the metrics' names in their order, each once, as in "accuracy or macro-F1"; of none: accuracy."""
    return " or ".join(TITLES[name] for name in dict.fromkeys(metrics)) or TITLES[ACCURACY]


def means_of(metrics: Mapping[str, str], figures: Mapping[str, float | None]) -> dict[str, float]:
    """Return by metric the mean over its sites that have a figure; a site that names no metric has accuracy."""
    values: dict[str, list[float]] = {}
    for site, figure in figures.items():
        if figure is not None:
            values.setdefault(metrics.get(site, ACCURACY), []).append(figure)
    return {metric: fmean(known) for metric, known in values.items()}


def describe_means(means: Mapping[str, float], of_sites: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the means of `means_of`, fractions, as in "accuracy 90.0 % (4 of 5 sites), macro-F1 not measured (...)".

    `of_sites` is what `of_fewer_sites` returns; a metric without a mean is in it alone.
    """
    fewer = {metric: f" ({sites})" for metric, sites in of_sites.items() if sites and metric in TITLES}
    known = [f"{TITLES[metric]} {100 * mean:.1f} %{fewer.get(metric, '')}" for metric, mean in means.items()]
    others = (f"{TITLES[metric]} not measured{sites}" for metric, sites in fewer.items() if metric not in means)
    return ", ".join([*known, *others])


def of_fewer_sites(metrics: Mapping[str, str], rounds: Iterable[tuple[Figures, Collection[str]]]) -> dict[str, str]:
    """Return by metric of how many sites the mean of the last round is, as in "4 of 5 sites"; only if of fewer.

    Each round has the figures of its sites and the sites whose replies were rejected. A site that never tells a figure
    is none of them.
    """
    last: set[str] = set()
    known: set[str] = set()
    rejected: set[str] = set()
    replied: set[str] = set()
    for figures, refused in rounds:
        last = {site for site, figure in figures.items() if figure is not None}
        known, rejected, replied = known | last, rejected | {*refused}, replied | figures.keys()
    every = Counter(metrics.get(site, ACCURACY) for site in known | (rejected - replied))
    told = Counter(metrics.get(site, ACCURACY) for site in last)
    return {metric: sites_in_words(told[metric], every[metric]) for metric in TITLES if told[metric] < every[metric]}


def pooled_balanced_accuracy(sites: Iterable[Mapping[str, tuple[int, int]]]) -> float | None:
    """Return the balanced accuracy on the images of all sites together, a fraction; None: there are none.

    It is the mean over classes c of (sum_k right_kc) / (sum_k n_kc), which is not the mean of the sites' own figures.
    Each site k has, by class, its images n_kc and how many of them are recognized.
    """
    images: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for site in sites:
        for name, (count, recognized) in site.items():
            images[name] += count
            right[name] += recognized
    return sum(right[name] / count for name, count in images.items()) / len(images) if images else None
