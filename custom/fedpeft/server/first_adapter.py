# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Choose the site whose first adapter all sites start from, and check that adapter.

Where all sites can compute the first adapter, each announces its digest, and the digest of most sites counts: the
server takes the adapter from one of these sites and compares its digest. Since a majority could agree on a lie, the
adapter must in any case be one that the method can begin with.
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
        differing: by site, a warning that it computed another adapter; it starts from the sender's like all others.
    """

    site: str
    digest: str
    differing: dict[str, str]


def choose_sender(
    announced: Mapping[str, tuple[Schema, str]],
    method: MethodSettings,
    *,
    joins: Iterable[str] = (),
    problems: Mapping[str, str] | None = None,
) -> Sender:
    """Choose the first site with all layers whose announced digest is that of most such sites.

    Each site announced its shapes and a digest. Sites that join later start from an adapter of their own. If no site
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
    """Refuse a first adapter that is not as its sender announced it, or that the method cannot begin with."""
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
    declared = getattr(method.registered.tuning(), "first_values", None)
    return declared(settings, key, shape) if declared else Bounded()
