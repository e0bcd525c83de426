# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Read the site's own file in a consortium; in the simulator the job's settings apply."""

from __future__ import annotations

from pathlib import Path

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext

from fedpeft.job.site_policy import FILE, SitePolicy, read_policy

KIT = "fed_client.json"
SIMULATED = (
    "the simulator uses the job's values; in a consortium the site's own file local/fedpeft.json decides about data, "
    "backbones and limits"
)


def simulated(fl_ctx: FLContext) -> bool:
    """Whether FLARE's simulator runs this site.

    Only the simulator's processes set FLARE's flag; it is private, so that no message can set it. A site with a
    start-up kit is never one of the simulator, whatever the flag.
    """
    if not fl_ctx.get_prop(FLContextKey.SIMULATE_MODE, False):
        return False
    return not (Path(fl_ctx.get_engine().get_workspace().get_startup_kit_dir()) / KIT).exists()


def policy_of(fl_ctx: FLContext) -> SitePolicy | None:
    """The site's own file; None in the simulator.

    Raises:
        LocalError: a site of a consortium has none, or it cannot be used.
    """
    if simulated(fl_ctx):
        return None
    return read_policy(Path(fl_ctx.get_engine().get_workspace().get_site_config_dir()) / FILE)
