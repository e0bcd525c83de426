# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A site's `privacy.json`, with one scope for every job, and its site policy, `fedpeft.json`; none in the simulator.

    python -m fedpeft.flare.policy > local/privacy.json
    python -m fedpeft.flare.policy clip=1 noise=2 > local/privacy.json

One scope only: with several, the author of a job could choose one (`scope` in its meta.json). FLARE applies it at a
real site; its simulator reads the file and applies nothing, so `fedpeft simulate` puts the same filters into the job.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext

from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import read_json
from fedpeft.core.settings import build
from fedpeft.core.workspace import KIT_FILES, SITE
from fedpeft.job.site_policy import FILE, PrivacySettings, SitePolicy, read_policy

SCOPE = "fedpeft"


def default_scope(privacy: PrivacySettings | None = None) -> dict[str, Any]:
    """Return the content of `privacy.json`; without settings replies are checked, but neither clipped nor noised.

    Directions are explicit, so that a server that reads the same file, as in the simulator, runs neither filter.
    """
    settings = dataclasses.asdict(privacy) if privacy else "off"
    order = {"path": "fedpeft.flare.filters.RememberOrder", "args": {}, "direction": "in"}
    reply = {"path": "fedpeft.flare.filters.AdapterOnly", "args": {"privacy": settings}, "direction": "out"}
    scope = {"name": SCOPE, "task_data_filters": [order], "task_result_filters": [reply]}
    return {"scopes": [scope], "default_scope": SCOPE}


def add_site_filters(job: Path, privacy: Path, folder: Path) -> Path:
    """Copy a job into a folder with the filters of a `privacy.json` in it; without that file return the job itself."""
    if not privacy.exists():
        return job
    try:
        policy = read_json(privacy)
        scope = next(scope for scope in policy["scopes"] if scope["name"] == policy["default_scope"])
        chains = {chain: scope.get(chain, []) for chain in ("task_data_filters", "task_result_filters")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
        raise FedpeftError(
            f"{privacy} has no default scope ({type(error).__name__}: {error}): write it with fedpeft.flare.policy."
        ) from error
    filtered = folder / job.name
    shutil.copytree(job, filtered)
    file = filtered / "app" / "config" / "config_fed_client.json"
    client = json.loads(file.read_text())
    # FLARE does not match "*" to these
    tasks = [task for executor in client["executors"] for task in executor["tasks"]]
    for chain, filters in chains.items():
        if client.get(chain):
            raise FedpeftError(f"{job} has {chain} of its own: the simulator cannot run them beside the site's.")
        plain = [{key: value for key, value in one.items() if key != "direction"} for one in filters]
        client[chain] = [{"tasks": tasks, "filters": plain}] if plain else []
    file.write_text(json.dumps(client, indent=2))
    return filtered


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the scope; arguments are settings of `PrivacySettings` as name=value."""
    try:
        chosen = dict(map(_setting, sys.argv[1:] if arguments is None else arguments))
        privacy = build(PrivacySettings, chosen, section="privacy") if chosen else None
    except FedpeftError as error:
        print(f"fedpeft: {error}", file=sys.stderr)
        return 1
    print(json.dumps(default_scope(privacy), indent=2))
    return 0


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise FedpeftError(f"{text!r} is not of the form name=value, e.g. clip=1.")
    try:
        return name, float(value)
    except ValueError:
        return name, value


SIMULATED = (
    "the simulator uses the job's values; in a consortium the site policy (local/fedpeft.json) decides about data, "
    "backbones and limits"
)


def simulated(fl_ctx: FLContext) -> bool:
    """Return whether FLARE's simulator runs this site.

    Only the simulator's processes set FLARE's flag; it is private, so that no message can set it. A site with a
    start-up kit is never simulated, whatever the flag.
    """
    if not fl_ctx.get_prop(FLContextKey.SIMULATE_MODE, False):
        return False
    return not (Path(fl_ctx.get_engine().get_workspace().get_startup_kit_dir()) / KIT_FILES[SITE]).exists()


def policy_of(fl_ctx: FLContext) -> SitePolicy | None:
    """Return the site policy; None in the simulator."""
    if simulated(fl_ctx):
        return None
    return read_policy(Path(fl_ctx.get_engine().get_workspace().get_site_config_dir()) / FILE)


if __name__ == "__main__":
    sys.exit(main())
