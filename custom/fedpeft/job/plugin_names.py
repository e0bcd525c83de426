# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Import no plugin that the site's own file does not list: neither by a name in a job, nor by a loop over all names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fedpeft.answering import ANSWERING
from fedpeft.backbones import BACKBONES
from fedpeft.core.errors import FedpeftError
from fedpeft.core.registry import Registry, only_plugins
from fedpeft.data.registry import DATASETS
from fedpeft.importance.registry import SCORES
from fedpeft.job.site_policy import SitePolicy
from fedpeft.methods import METHODS
from fedpeft.scheduling.solvers import SOLVERS


def keep_to(policy: SitePolicy | None) -> None:
    """Have this process look up no other plugins than those of a site's own file.

    Args:
        policy: the file; None in the simulator, where all that are installed can be used.
    """
    only_plugins(None if policy is None else {kind.group: allowed for _, kind, allowed in _listed(policy)})


def check_plugins(policy: SitePolicy, sections: Mapping[str, Any]) -> None:
    """Answer for a plugin that is not listed as for a name that is unknown: what is installed is the site's business.

    Args:
        policy: the site's own file.
        sections: of the job, as they arrived.

    Raises:
        FedpeftError: naming the setting.
    """
    for setting, registry, allowed in _listed(policy):
        for name in _named(sections, setting):
            if name not in allowed and _is_plugin(registry, name):
                raise FedpeftError(
                    f"{setting} is {name!r:.60}, a plugin that is installed here and not in local/fedpeft.json: list "
                    f"it there, or change the job.",
                    setting=setting,
                )


def _listed(policy: SitePolicy) -> tuple[tuple[str, Registry[Any], tuple[str, ...]], ...]:
    """Return each setting that names a plugin, the registry of its kind, and the names that the file lists."""
    return (
        ("method.name", METHODS, policy.methods),
        ("backbone.name", BACKBONES, policy.backbones),
        ("data.dataset", DATASETS, policy.datasets),
        ("schedule.score", SCORES, policy.score_methods),
        ("schedule.solver", SOLVERS, policy.solvers),
        ("training.answering", ANSWERING, policy.answering),
    )


def _named(sections: Mapping[str, Any], setting: str) -> Iterator[Any]:
    """What a job writes there, for this site or for any other."""
    section, name = setting.split(".")
    values = sections.get(section)
    if not isinstance(values, Mapping):
        return
    yield values.get(name)
    if section == "method" and isinstance(values.get("settings"), Mapping):
        yield from values["settings"]
    if section in ("backbone", "data") and isinstance(values.get("sites"), Mapping):
        yield from (own.get(name) for own in values["sites"].values() if isinstance(own, Mapping))


def _is_plugin(registry: Registry[Any], name: Any) -> bool:
    return isinstance(name, str) and registry.is_plugin(name)
