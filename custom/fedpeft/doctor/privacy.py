# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Check the filters in a site's privacy.json.

Misconfigured filters block every reply, from the handshake on; without filters every reply leaves unchecked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import build
from fedpeft.core.workspace import PRIVACY
from fedpeft.doctor.context import Context
from fedpeft.doctor.finding import Finding, failed, passed
from fedpeft.doctor.kit import SITE, read_object
from fedpeft.job.privacy_settings import PrivacySettings

FILTERS = {
    "task_data_filters": ("fedpeft.flare.filters.RememberOrder", "in"),
    "task_result_filters": ("fedpeft.flare.filters.AdapterOnly", "out"),
}
ACCOUNTANT, OFF = "opacus", "off"
WRITE = "python -m fedpeft.flare.policy > local/privacy.json"


def check(context: Context) -> Iterator[Finding]:
    """Check the file in a site's kit; the simulator does not need one."""
    if context.kit is None or context.kit.role != SITE:
        return
    file = context.kit.folder / "local" / PRIVACY
    if not file.is_file():
        yield failed(f"there is no {file}, so nothing checks what leaves this site: {WRITE}")
        return
    yield from policy(read_object(file), file)


def policy(content: Mapping[str, Any], file: Path) -> Iterator[Finding]:
    """Check the default scope's two filters, and the privacy settings of `AdapterOnly`."""
    scopes = content.get("scopes")
    named = [scope for scope in scopes if isinstance(scope, Mapping)] if isinstance(scopes, list) else []
    scope = next((scope for scope in named if scope.get("name") == content.get("default_scope")), None)
    if scope is None:
        yield failed(f"{file} has no default scope, so that no job is admitted: {WRITE}")
        return
    if len(named) > 1:
        yield failed(f"{file} has {len(named)} scopes, and the author of a job can choose one: keep only one.")
    filters = {chain: _filter(scope.get(chain), path, way) for chain, (path, way) in FILTERS.items()}
    missing = [path for chain, (path, _) in FILTERS.items() if filters[chain] is None]
    if len(missing) == len(FILTERS):
        yield failed(f"{file} names none of fedpeft's filters, so nothing checks what leaves this site: {WRITE}")
    elif missing:
        yield failed(f"{file} lacks {missing[0]}, without which every reply is blocked: {WRITE}")
    else:
        yield _settings(filters["task_result_filters"].get("args") or {}, file)


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
        return failed(f"{file} is wrong, so that every reply is blocked: {error}")
    if not settings.noise:
        return passed(f"what leaves this site is checked and clipped at {settings.clip}, not noised.")
    if find_spec(ACCOUNTANT) is None:
        return failed(
            f"{file} sets noise, and the privacy accountant is missing: pip install 'flare-fedpeft[privacy]'."
        )
    return passed(f"what leaves this site is checked, clipped at {settings.clip} and noised ({settings.noise}).")
