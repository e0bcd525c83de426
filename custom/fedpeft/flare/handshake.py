# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Round 0: do these sites speak the same language?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nvflare.app_common.abstract.fl_model import FLModel

from fedpeft.errors import FedpeftError
from fedpeft.flare.messages import Introduction, check_introduction, check_state
from fedpeft.privacy.problem_codes import sentence
from fedpeft.training.settings import MethodSettings


def read(
    replies: Mapping[str, FLModel], *, sites: Iterable[str], timeout: int, initial: str | None = None
) -> tuple[dict[str, Introduction], dict[str, str]]:
    """Split the replies of round 0 into sites that can take part and reasons why others cannot.

    Args:
        replies: what arrived, by site.
        sites: who was asked.
        timeout: seconds that they had.
        initial: who was asked for the adapter to start from; nobody else may send one.
    """
    able, problems = {}, {}
    for site in sites:
        if site not in replies:
            problems[site] = (
                f"site {site} did not answer within {timeout} s: is it connected, and is fedpeft installed there?"
            )
            continue
        try:
            introduction = Introduction.from_model(replies[site], sender=f"site {site}")
            if not introduction.problem:
                check_introduction(introduction, site=site)
                check_state(introduction.state, site=site, schema=introduction.schema if site == initial else {})
        except FedpeftError as error:
            problems[site] = str(error)
            continue
        if introduction.problem:
            problems[site] = f"site {site} cannot take part: {sentence(introduction.problem, introduction.setting)}"
        else:
            able[site] = introduction
    return able, problems


def check_agreement(introductions: Mapping[str, Introduction], *, version: str, method: MethodSettings) -> None:
    """Refuse a federation whose sites would not understand each other.

    Raises:
        FedpeftError: another version, or an adapter of another kind or shape; the site is named.
    """
    for site, introduction in introductions.items():
        if introduction.version != version:
            raise FedpeftError(
                f"site {site} runs fedpeft {introduction.version}, the server {version}: "
                f"install the same version everywhere."
            )
    if not introductions or not method.exchanges:
        return
    first, *others = introductions
    wanted = introductions[first].schema
    for site in others:
        schema = introductions[site].schema
        if set(schema) != set(wanted):
            key = min(set(schema) ^ set(wanted))
            raise FedpeftError(
                f"the adapters of sites {first} and {site} differ: only one of them has {key}; "
                f"give both the same method.adapter and the same backbone."
            )
        if method.site_adapter_settings:
            continue
        for key, shape in schema.items():
            if list(shape) != list(wanted[key]):
                raise FedpeftError(
                    f"{key} has shape {list(shape)} at site {site} and {list(wanted[key])} at site {first}: use the "
                    f"same backbone and method.adapter_settings, or declare the widths in method.site_adapter_settings."
                )
