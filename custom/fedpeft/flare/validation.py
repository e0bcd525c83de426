# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Which replies of a round the server accepts, and why not the others: nothing unchecked reaches the global adapter."""

from __future__ import annotations

from collections.abc import Mapping

from nvflare.app_common.abstract.fl_model import FLModel

from fedpeft.errors import FedpeftError
from fedpeft.flare.messages import Introduction, ScoreReply, TrainOrder, TrainReply, check_reply
from fedpeft.privacy.problem_codes import sentence
from fedpeft.training.assignment import belongs, check_scores, layers_of


def read_training(
    replies: Mapping[str, FLModel],
    orders: Mapping[str, TrainOrder],
    introductions: Mapping[str, Introduction],
    *,
    exchanges: bool,
    timeout: int,
) -> tuple[dict[str, TrainReply], dict[str, str]]:
    """Replies that are what was announced and assigned, and the reasons why others are not.

    Args:
        replies: what arrived, by site.
        orders: what each site was asked.
        introductions: what each site announced.
        exchanges: whether adapters travel in this job.
        timeout: seconds that the sites had.
    """
    accepted, rejected = {}, {}
    for site, order in orders.items():
        try:
            if site not in replies:
                raise FedpeftError(
                    f"site {site} sent no usable reply in round {order.round}: look at its log, or raise "
                    f"federation.round_timeout ({timeout} s)."
                )
            reply = TrainReply.from_model(replies[site], sender=f"site {site}")
            announced = introductions[site].schema if exchanges else {}
            check_reply(
                reply,
                site=site,
                round=order.round,
                schema={key: shape for key, shape in announced.items() if belongs(key, order.layers)},
                samples=introductions[site].samples["train"],
                masked=bool(order.sum_keys),
            )
            check_scores(reply.scores, len(layers_of(announced)) if order.scored else 0, site)
            accepted[site] = reply
        except FedpeftError as error:
            rejected[site] = str(error)
    return accepted, rejected


def read_scores(
    replies: Mapping[str, FLModel], introductions: Mapping[str, Introduction], *, round: int
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Layer scores that a schedule can be built on, and the reasons why some sites have none.

    Args:
        replies: what arrived, by site.
        introductions: those of the sites that were asked.
        round: the round that the scores are for.
    """
    scores, problems = {}, {}
    for site, introduction in introductions.items():
        try:
            if site not in replies:
                raise FedpeftError(f"site {site} sent no scores in round {round}: look at its log.")
            reply = ScoreReply.from_model(replies[site], sender=f"site {site}")
            if reply.problem:
                reason = sentence(reply.problem, reply.setting)
                raise FedpeftError(f"site {site} could not score round {round}: {reason}")
            check_scores(reply.scores, len(layers_of(introduction.schema)), site)
            scores[site] = reply.scores
        except FedpeftError as error:
            problems[site] = str(error)
    return scores, problems
