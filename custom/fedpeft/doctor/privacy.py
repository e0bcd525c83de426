# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A site's privacy.json: whether its filters hold what leaves against what was asked for, and can do so.

Filters that are set up wrongly block every reply, from the handshake on; without them every reply leaves unchecked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedpeft.doctor.context import Context
from fedpeft.doctor.finding import Finding, failed, passed
from fedpeft.doctor.kit import SITE, read_object
from fedpeft.errors import FedpeftError
from fedpeft.privacy.settings import PrivacySettings
from fedpeft.settings import build
from fedpeft.workspace import PRIVACY

FILTERS = {
    "task_data_filters": ("fedpeft.flare.filters.RememberOrder", "in"),
    "task_result_filters": ("fedpeft.flare.filters.AdapterOnly", "out"),
}
ACCOUNTANT, OFF = "opacus", "off"
WRITE = "python -m fedpeft.flare.policy > local/privacy.json"


def check(context: Context) -> Iterator[Finding]:
    """The file in a site's kit; a simulator may do without one."""
    if context.kit is None or context.kit.role != SITE:
        return
    file = context.kit.folder / "local" / PRIVACY
    if not file.is_file():
        yield failed(f"there is no {file}, so nothing checks what leaves this site: {WRITE}")
        return
    yield from policy(read_object(file), file)


def policy(content: Mapping[str, Any], file: Path) -> Iterator[Finding]:
    """The default scope's two filters, and the settings of the one that may clip and noise."""
    scopes = content.get("scopes")
    named = [scope for scope in scopes if isinstance(scope, Mapping)] if isinstance(scopes, list) else []
    scope = next((scope for scope in named if scope.get("name") == content.get("default_scope")), None)
    if scope is None:
        yield failed(f"{file} has no default scope, so that no job is let in: {WRITE}")
        return
    if len(named) > 1:
        yield failed(f"{file} has {len(named)} scopes, and whoever writes a job chooses: leave one.")
    found = {chain: _filter(scope.get(chain), *wanted) for chain, wanted in FILTERS.items()}
    missing = [path for chain, (path, _) in FILTERS.items() if found[chain] is None]
    if len(missing) == len(FILTERS):
        yield failed(f"{file} names none of fedpeft's filters, so nothing checks what leaves this site: {WRITE}")
    elif missing:
        yield failed(f"{file} lacks {missing[0]}, without which every reply is blocked: {WRITE}")
    else:
        yield _settings(found["task_result_filters"].get("args") or {}, file)


def _filter(chain: Any, path: str, direction: str) -> Mapping[str, Any] | None:
    entries = [one for one in chain if isinstance(one, Mapping)] if isinstance(chain, list) else []
    return next(
        (one for one in entries if one.get("path") == path and one.get("direction", direction) == direction), None
    )


def _settings(arguments: Mapping[str, Any], file: Path) -> Finding:
    chosen = arguments.get("privacy", OFF)
    if chosen == OFF:
        return passed("what leaves this site is checked, neither clipped nor noised.")
    try:
        settings = build(PrivacySettings, chosen, section="privacy")
    except FedpeftError as error:
        return failed(f"{file}, with which every reply is blocked: {error}")
    if not settings.noise:
        return passed(f"what leaves this site is checked and clipped at {settings.clip}, not noised.")
    if find_spec(ACCOUNTANT) is None:
        return failed(f"{file} asks for noise, and its accountant is missing: pip install 'flare-fedpeft[privacy]'.")
    return passed(f"what leaves this site is checked, clipped at {settings.clip} and noised ({settings.noise}).")
