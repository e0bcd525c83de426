# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Which site this is: one of a consortium, whose own file decides, or one of the simulator, where the job does."""

from __future__ import annotations

from pathlib import Path

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext

from fedpeft.privacy.site_policy import FILE, SitePolicy, read_policy

KIT = "fed_client.json"
SIMULATED = (
    "the simulator uses the job's values; in a consortium the site's own file local/fedpeft.json decides about data, "
    "backbones and limits"
)


def simulated(fl_ctx: FLContext) -> bool:
    """Whether FLARE's simulator runs this site.

    FLARE's own flag is set by the simulator's processes alone; it is private, so that nothing that arrives sets it. A
    site with a start-up kit is none of the simulator's, whatever the flag says.
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
