# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Whether all sites start from the adapter of one of them, whose that is, and whether it is the right one.

Where all sites can compute that adapter, each announces its digest, and that of most sites counts: the server takes the
adapter from one of these, and looks whether it has that digest. With or without such a majority, which could agree on a
lie, the adapter must be one that the method can begin with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedpeft.answering import ANSWERING
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import CONNECTOR, HEAD, MATCHED_LAYERS, all_layers
from fedpeft.core.registry import imported
from fedpeft.core.states import State, digest
from fedpeft.methods.first_values import Bounded, FirstValues, misfit
from fedpeft.methods.settings import MethodSettings
from fedpeft.protocol.reply_contract import RESTART, check_tensors
from fedpeft.protocol.types import Introduction, Schema
from fedpeft.scheduling.settings import ScheduleSettings

DIFFERS = (
    "site {site} starts from another adapter than {whom}: compare its torch, processor and backbone with the others', "
    "and look at its log."
)


def is_needed(method: MethodSettings, schedule: ScheduleSettings) -> bool:
    """Return whether one site sends its first adapter to all."""
    return method.starts_from_one(scheduled=schedule.active)


@dataclass(frozen=True)
class Sender:
    """The site whose first adapter all sites get.

    Args:
        site: its name.
        digest: of the adapter that most sites start from; empty: there is no majority.
        differing: by site, from whom it differs; it takes part, and starts from the sender's adapter.
    """

    site: str
    digest: str
    differing: dict[str, str]


def sender(
    announced: Mapping[str, tuple[Schema, str]],
    method: MethodSettings,
    *,
    joins: Iterable[str] = (),
    problems: Mapping[str, str] | None = None,
) -> Sender:
    """Return the first site that has all layers and starts from what most of these start from.

    Sites announced their shapes and a digest. Those that join later start from an adapter of their own. Where no site
    has all layers, the error also says why others take no part.
    """
    deepest = method.matched_layers
    able = {site: own for site, own in announced.items() if deepest is None or all_layers(own[0], deepest)}
    if not able:
        raise FedpeftError(
            f"no site that takes part has all {deepest} layers of {MATCHED_LAYERS}, so that no site has the first "
            f"values of some: wait until one that does is connected, or set {MATCHED_LAYERS} to the layers of the "
            f"deepest backbone." + "".join(f" {problem.rstrip('.')}." for problem in (problems or {}).values()),
            setting=MATCHED_LAYERS,
        )
    asked = {site: own for site, own in able.items() if site not in joins} if method.initialization == "shared" else {}
    commonest, count = next(iter(Counter(own for _, own in asked.values() if own).most_common(1)), ("", 0))
    agreed = commonest if count > 1 and 2 * count > len(asked) else ""
    early = {site: own for site, own in able.items() if site not in joins} or able
    first = next(site for site, (_, own) in early.items() if own == agreed or not agreed)
    shapes, start = able[first]
    others = [site for site, (schema, own) in asked.items() if own != start and schema == shapes]
    whom = f"{count} of {len(asked)} sites" if agreed else f"site {first}, and no majority says which is right"
    return Sender(first, agreed, {site: DIFFERS.format(site=site, whom=whom) for site in others})


def check(state: State, sender: Sender, announced: Introduction, method: MethodSettings, *, answering: str) -> None:
    """Accept the adapter that all sites start from, as its sender announced it, with the head of a way to answer."""
    site = sender.site
    check_tensors(state, site=site, schema=announced.schema, dtype=announced.dtype)
    if sender.digest and digest(state) != sender.digest:
        raise FedpeftError(f"site {site} sent another first adapter than it and most sites announced: {RESTART}.")
    settings = method.settings_of(site)
    declared = {key: _first_values(key, tuple(t.shape), method, settings, answering) for key, t in state.items()}
    if wrong := misfit(state, declared):
        raise FedpeftError(f"site {site} sent a first adapter with {wrong}: {RESTART}.")


def _first_values(
    key: str, shape: tuple[int, ...], method: MethodSettings, settings: Mapping[str, Any], answering: str
) -> FirstValues:
    if key.startswith(HEAD):
        home = ANSWERING.get(answering).first_head
        return imported(home)(key, shape) if home else Bounded()
    if key.startswith(CONNECTOR):
        return Bounded()
    declared = getattr(method.method.tuning(), "first_values", None)
    return declared(settings, key, shape) if declared else Bounded()
