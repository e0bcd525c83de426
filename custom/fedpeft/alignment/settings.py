# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Settings of permutation and integration of adapters (PIA), and of how far one site can move the global adapter."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import READ_WITH, at_least, between, is_finite, is_number, one_of

VALIDATION, AGREEMENT, PLACES = "validation", "agreement", "places"
FIXED_OUTPUTS = "fixed"
SHARES = (0.25, 0.5, 0.75, 1.0)  # of the global adapter, among which `validation` chooses
MIN_BY_AGREEMENT = 0.3  # share of the global adapter, however far the sites disagree
FEDAVG, LARGEST, FIXED_POINT = "fedavg", "largest", "fixed_point"
TWO_BRANCHES, WEIGHT_SPACE = "two_branches", "weight_space"
MAX_PASSES = 100  # what a job may ask of a server


@dataclass(frozen=True)
class IntegrationForm:
    """A reading of how a site integrates the global adapter.

    Args:
        label: in tables.
        second_branch: the global adapter computes beside the own one, and their outputs are averaged.
        half_frozen: the global part of the averaged weights stays as it is while the own part trains.
    """

    label: str
    second_branch: bool = False
    half_frozen: bool = False


INTEGRATIONS = {
    TWO_BRANCHES: IntegrationForm("two branches", second_branch=True),
    WEIGHT_SPACE: IntegrationForm("weight space"),
    "frozen_half": IntegrationForm("frozen half", half_frozen=True),
}
FORMER_INTEGRATIONS = {"frozen_global": TWO_BRANCHES, "merge": WEIGHT_SPACE}
CHOICES = {
    "reference": (FEDAVG, LARGEST, FIXED_POINT),
    "weighting": ("samples", "uniform"),
    "output_axis": (FIXED_OUTPUTS, "matched"),
    "mass": ("preserved", "paper"),
    "solver": ("exact", "sinkhorn", "identity"),
    "support": ("samples", "mean", "weights"),
    "integration": tuple(INTEGRATIONS),
    "upload": ("integrated", "local"),
    "aligned_at": ("server", "site"),
}

OF_SERVER = {READ_WITH: {"server": (True,), "aligned_at": ("server",)}}  # it knows the distances between sites
OF_CLIENT = {READ_WITH: {"client": (True,)}}


@dataclass(frozen=True, kw_only=True)
class PIASettings:
    """Settings of FedPIA, for the server and for the sites.

    Args:
        server: align the sites' adapters before averaging; False is plain FedAvg (the paper's ablation "without server
            PIA").
        client: align and integrate at the sites; False lets the received adapter replace the site's own ("without
            client PIA"). With both False this is FedAvg.
        reference: what the server aligns the sites to. `fedavg` (the paper) is their mean as they stand, in which every
            site keeps its own order; for sites that started from one adapter. `largest` is the adapter of the site with
            the most samples, the first of several; of two sites `max_share` of 1/2 lets both count alike. It is for
            sites in unrelated orders, whose mean blurs every neuron and holds each site to the order it already has.
            `fixed_point` is the barycenter itself: every site in turn is aligned to the mean of the others until
            nothing moves. It begins from several starts (the sites as they stand, and all aligned to one of them, for
            each). The result with the least weighted sum of squared distances to the mean counts.
        passes: over all sites, at most, for `fixed_point`; 1 to 100. The other references are one pass.
        margin: at the server, or at the site with `aligned_at: site`: an adapter's neurons move only where this lowers
            their mean distance to the reference by more than this share, against moving none. It is from 0 to below 1;
            0 takes every plan. `fixed_point` decides for all sites of a place at once, by the sum of squared distances.
            The report counts the places of each site whose neurons moved, stayed, and stayed for the margin.
        gamma: how fast the weight exp(-gamma D_k) of a site falls with the Frobenius distance D_k of its aligned
            adapter from the reference; at least 0. The paper gives no value; 0 is plain averaging of aligned adapters.
        normalize: divide by the sum of the weights. False is the paper's equation, whose weights sum to less than 1, so
            that it shrinks the adapter whenever gamma > 0.
        weighting: sites weigh in with their `samples` n_k, or `uniform`ly. (The paper's equation, normalize=False, has
            no n_k; there this concerns the FedAvg reference alone.)
        output_axis: `fixed`, because the d outputs of an adapter lie on the residual stream. `matched` also
            permutes them, by the rows of `up`, as the paper's equations say, and so changes the adapter's function.
        mass: where widths differ, whether a neuron that is split among several keeps its total effect (`preserved`) or
            has it repeated in each (`paper`). Equal for equal widths; see `permutation.py`.
        solver: `exact` optimal transport, entropic `sinkhorn`, or `identity` (nothing moves: the control experiment
            that separates integrating from permuting).
        regularization: Sinkhorn's entropy as a share of the mean cost, hence free of scale; above 0.
        support: what a site compares neurons by, activations on all `samples` of a batch, their `mean` (the paper: one
            scalar for each neuron), or incoming `weights` (ablation). The server, which has no data, uses weights.
        integration: how a site integrates the aligned global adapter with its own one. The paper has two readings:
            `two_branches` (it stays frozen beside the own one, and the output is the mean of both) and `weight_space`
            (training starts from the mean of the weights, which is trained). With `frozen_half` the mean of the weights
            computes, and only its own half trains. `frozen_global` and `merge` are former names of the first two.
        share: of the global adapter, where a site integrates it with its own one: in the mean of the weights, and under
            `two_branches` in the output and in what is uploaded. The paper has 0.5; 1 leaves nothing of the own one,
            which is FedAvg's start. A list of two, `[1, 0.6]`, goes from the one in the first round to the other in the
            last. `validation` takes, in each round, that of 0.25, 0.5, 0.75 and 1 with the lowest loss on the site's
            validation split. `agreement` takes 1 as long as the site's training and the others' move the adapter the
            same way, and less, down to 0.3, where they move it apart. That is not allowed under `two_branches`.
        accept: whether a site takes a plan only where it lowers the loss of the merged adapter on the probe samples
            against moving no neuron: `false` (the paper takes every plan), `true` (one decision for all places of a
            round), or `places` (one after the other). Needs one width everywhere.
        aligned_at: where adapters are aligned before they are averaged. `server` (the paper): by the server, to the
            round's `reference`. `site`: every site puts the neurons of its trained adapter in the order of the global
            adapter that it received, comparing incoming weights as the server would. The server only forms the weighted
            mean. It then needs no single adapter, which a secure sum can hide; `reference`, `gamma` and `normalize`
            have no effect, because they need the distances between sites. Needs one width everywhere.
        upload: of `two_branches`: send and keep the `integrated` adapter (the paper, in this reading), or the
            `local`ly trained one alone. Otherwise the trained adapter is the integrated one.

    Raises:
        FedpeftError: a value is not allowed; the message names argument, value and what is allowed.

    Source: Saha et al., FedPIA, equations of the method section and Table 5.
    """

    server: bool = True
    client: bool = True
    reference: str = field(default=FEDAVG, metadata=OF_SERVER)
    passes: int = field(default=20, metadata={READ_WITH: {"reference": (FIXED_POINT,)}})
    margin: float = field(default=0.0, metadata={READ_WITH: {"server": (True,)}})
    gamma: float = field(default=0.1, metadata=OF_SERVER)
    normalize: bool = field(default=True, metadata=OF_SERVER)
    weighting: str = "samples"
    output_axis: str = FIXED_OUTPUTS
    mass: str = "preserved"
    solver: str = "exact"
    regularization: float = field(default=0.05, metadata={READ_WITH: {"solver": ("sinkhorn",)}})
    support: str = field(default="samples", metadata=OF_CLIENT)
    integration: str = field(default=TWO_BRANCHES, metadata=OF_CLIENT)
    share: float | str | tuple[float, ...] = field(default=0.5, metadata=OF_CLIENT)
    accept: bool | str = field(default=False, metadata=OF_CLIENT)
    aligned_at: str = "server"
    upload: str = field(default="integrated", metadata={READ_WITH: {"client": (True,), "integration": (TWO_BRANCHES,)}})

    def __post_init__(self) -> None:
        if isinstance(self.share, list):
            object.__setattr__(self, "share", tuple(self.share))
        if isinstance(self.integration, str) and self.integration in FORMER_INTEGRATIONS:
            _say_former_name(self.integration)
            object.__setattr__(self, "integration", FORMER_INTEGRATIONS[self.integration])
        one_of("integration", self.integration, INTEGRATIONS)
        self._check_share()
        self._check_accept()
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name in ("share", "accept"):
                continue
            if one.name in CHOICES:
                one_of(one.name, value, CHOICES[one.name])
            elif isinstance(one.default, bool):
                if not isinstance(value, bool):
                    raise FedpeftError(f"{one.name} is {value!r}, allowed are True and False.")
            elif not is_finite(value) or value < 0:
                raise FedpeftError(f"{one.name} is {value!r}, it must be a finite number of at least 0.")
        if self.regularization == 0:
            raise FedpeftError(
                "regularization is 0, it must be above 0; for transport without entropy: solver='exact'."
            )
        if self.aligned_at == "site" and not self.server:
            raise FedpeftError("aligned_at is 'site', but server=False means no alignment: leave out one of them.")
        if not isinstance(self.passes, int) or not 1 <= self.passes <= MAX_PASSES:
            raise FedpeftError(
                f"passes is {self.passes!r}, it must be a whole number from 1 to {MAX_PASSES}.", setting="passes"
            )
        if self.margin >= 1:
            raise FedpeftError(
                f"margin is {self.margin!r}, it must be below 1; to move no neuron: solver='identity'.",
                setting="margin",
            )
        if self.aligns_on_server and self.reference == FIXED_POINT:
            self._check_fixed_point()

    def _check_fixed_point(self) -> None:
        """Refuse plans whose sum of squared distances says nothing."""
        if self.solver == "sinkhorn":
            raise FedpeftError(
                "reference='fixed_point' cannot compare plans with entropy, which bring the sites nearer to their mean "
                "by blurring every neuron: use solver='exact'.",
                setting="reference",
            )
        if self.output_axis == "matched":
            raise FedpeftError(
                "reference='fixed_point' finds one order of hidden neurons: use output_axis='fixed'.",
                setting="reference",
            )

    def _check_share(self) -> None:
        ends = self._ends
        numbers = all(is_number(end) and 0 <= end <= 1 for end in ends)
        if self.share not in (VALIDATION, AGREEMENT) and not (numbers and len(ends) == 2):
            raise FedpeftError(
                f"share is {self.share!r}, allowed are a number from 0 to 1, a list of two, {VALIDATION!r} and "
                f"{AGREEMENT!r}."
            )
        if self.follows_agreement and self.form.second_branch:
            raise FedpeftError(
                f"share={AGREEMENT!r} compares what training changed in the integrated adapter, not with "
                f"integration={self.integration!r}: give a number as share (the paper: 0.5), or use "
                f"integration={WEIGHT_SPACE!r}.",
                setting="share",
            )
        if self.follows_agreement and self.client and self.output_axis != FIXED_OUTPUTS:
            raise FedpeftError(
                f"share={AGREEMENT!r} compares changes in one order of outputs, which output_axis="
                f"{self.output_axis!r} changes at a site: give a number as share (the paper: 0.5), or use "
                f"output_axis={FIXED_OUTPUTS!r}.",
                setting="share",
            )

    def _check_accept(self) -> None:
        if not isinstance(self.accept, bool):
            one_of("accept", self.accept if isinstance(self.accept, str) else repr(self.accept), (False, True, PLACES))
        if self.accept and self.client and self._uploads_own:
            raise FedpeftError(
                f"accept is {self.accept!r}, but with integration={self.integration!r} and upload='local' moving "
                "neurons changes neither what a site computes nor what it sends: leave accept out, or use "
                "upload='integrated'.",
                setting="accept",
            )

    @property
    def _ends(self) -> tuple[Any, ...]:
        """The share in the first round and in the last."""
        return self.share if isinstance(self.share, tuple) else (self.share, self.share)

    @property
    def form(self) -> IntegrationForm:
        """What `integration` names."""
        return INTEGRATIONS[self.integration]

    @property
    def _uploads_own(self) -> bool:
        """Whether a site sends and keeps its own branch alone."""
        return self.form.second_branch and self.upload == "local"

    @property
    def follows_agreement(self) -> bool:
        """Whether a site integrates the global adapter by a share that follows how far the sites' training agrees."""
        return self.client and self.share == AGREEMENT

    def share_in(self, round: int, rounds: int) -> float | None:
        """The share of the global adapter in a round from 1; None where the site decides by data or by agreement."""
        if isinstance(self.share, str):
            return None
        first, last = self._ends
        return last if round == rounds > 1 else first + (last - first) * ((round - 1) / max(1, rounds - 1))

    @property
    def label(self) -> str:
        """What tells this form of FedPIA from others in tables."""
        if isinstance(self.share, str):
            share = f"by {self.share}"
        else:
            share = " to ".join(f"{end:g}" for end in (self._ends if isinstance(self.share, tuple) else self._ends[:1]))
        client = f"{self.form.label} {share}" if self.client else "without client PIA"
        return client if self.server else f"{client}, without server PIA"

    @property
    def max_kept(self) -> float:
        """The largest part of its own adapter in what a site starts a round from; 0: it starts from the global one."""
        if not self.client:
            return 0.0
        if self._uploads_own:
            return 1.0
        if isinstance(self.share, str):
            return 1 - (MIN_BY_AGREEMENT if self.follows_agreement else min(SHARES))
        return 1 - min(self._ends)

    @property
    def aligns_on_server(self) -> bool:
        """Whether the server aligns, for which it must see every site's adapter."""
        return self.server and self.aligned_at == "server"

    @property
    def aligns_before_upload(self) -> bool:
        """Whether a site aligns its trained adapter to the global one before it is sent."""
        return self.server and self.aligned_at == "site"

    @property
    def finds_fixed_point(self) -> bool:
        """Whether the server aligns the sites to each other; with `identity` nothing moves from their mean."""
        return self.aligns_on_server and self.reference == FIXED_POINT and self.solver == "exact"

    @property
    def compares_activations(self) -> bool:
        """Whether alignment at a site, if there is any, compares activations."""
        return self.support != "weights" and self.solver != "identity"


@cache
def _say_former_name(name: str) -> None:
    """Log the new name of a former value of `integration`, once in a process."""
    today = FORMER_INTEGRATIONS[name]
    logging.getLogger(__name__).warning(
        "method.pia.integration=%s is now called %s and computes the same.", name, today
    )


MEAN, MEDIAN = "mean", "median"
COUNTING = ("trimmed_mean", "krum", "multi_krum")  # averages that read the number of attackers
MAX_ATTACKERS = 1000
AVERAGES = (MEAN, MEDIAN, *COUNTING, "geometric_median")


@dataclass(frozen=True, kw_only=True)
class RobustSettings:
    """Settings against sites that send wrong updates, by mistake or on purpose.

    Args:
        average: how the (aligned) adapters of a round become one. `mean` weighs by samples and, under PIA, by distance.
            The others weigh all sites equally, since a site could give a wrong weight. `median`, and `trimmed_mean`
            without the `attackers` largest and smallest values, work coordinate by coordinate. The others choose in
            each place for itself, so that one site's adapter may be taken in one layer and another's in the next:
            `krum` the one nearest to its neighbors, `multi_krum` the mean of the K - `attackers` nearest ones, and
            `geometric_median` the point with the smallest sum of distances to all.
        attackers: how many sites of a round may send anything; below half of them. Where a layer has too few sites for
            that (`trimmed_mean` needs 2 f + 1, `krum` and `multi_krum` 2 f + 3), its median is taken.
        max_share: largest share of one site in the sample counts of the sites that sent a layer (of K sites at least
            1 / K). With 1/2 no site outweighs all others together, whatever number of samples it announces. Two sites
            of any sizes weigh the same. 1: no cap.
        update_factor: a site whose adapter moved further than this many times the round's median is refused in this
            round; 0: no site is. The movement is the root mean square over its numbers, from the adapter that it was
            sent, or from as much of its own as it may keep there. The default leaves room for sites that take ten times
            as many steps. Nobody is refused for less than the job's learning rates explain, so that sites that hardly
            move do not lower the limit. Over the rounds the root of this number counts: 3.2 times the median, up to ten
            times for a site that takes more steps, or the sum of learning rates. With optimizer `sgd` or a kept
            adapter, fewer than five replies refuse only who moved by more than twice the adapter's size as well. So
            does any number of a site whose adapter has another rank or width than the global one.

    Source: Yin et al. 2018 (median, trimmed mean), Blanchard et al. 2017 (Krum), Pillutla et al. 2022 (geometric
    median).
    """

    average: str = MEAN
    attackers: int = field(default=1, metadata={READ_WITH: {"average": COUNTING}})
    max_share: float = field(default=0.5, metadata={READ_WITH: {"average": (MEAN,)}})
    update_factor: float = 10.0

    def __post_init__(self) -> None:
        one_of("average", self.average, AVERAGES)
        between("attackers", self.attackers, 0, MAX_ATTACKERS)
        at_least("max_share", self.max_share, 0, exclusive=True)
        at_least("update_factor", self.update_factor, 0)
        if self.max_share > 1:
            raise FedpeftError(f"max_share is {self.max_share!r}, it must be at most 1.", setting="max_share")
        if 0 < self.update_factor <= 1:
            raise FedpeftError(
                f"update_factor is {self.update_factor!r}, which would refuse every second site: give a number above "
                f"1, or 0 for no limit.",
                setting="update_factor",
            )

    @property
    def weighs(self) -> bool:
        """Whether the average uses weights."""
        return self.average == MEAN
