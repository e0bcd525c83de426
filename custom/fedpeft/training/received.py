# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The global adapter on a site's disk, completed by what changed since it was last sent."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedpeft.errors import FedpeftError, LocalError
from fedpeft.files import replacing

FILE = "received.safetensors"
OUTDATED = "adapter-outdated"


def complete(folder: Path, state: dict[str, torch.Tensor], *, base: int, version: int) -> dict[str, torch.Tensor]:
    """The whole global adapter of a version, kept on disk for the next message.

    Args:
        folder: where the site's state lies.
        state: the tensors that changed since `base`.
        base: the version that must be on disk; 0: `state` is whole.
        version: the version that results; 0: it need not be kept.

    Raises:
        FedpeftError: another version, or none, is on disk.
    """
    whole = {**_load(folder / FILE, base), **state} if base else state
    if version != base:
        with replacing(folder / FILE) as draft:
            save_file(whole, draft, metadata={"version": str(version)})
    return whole


def _load(file: Path, version: int) -> dict[str, torch.Tensor]:
    try:
        with safe_open(file, framework="pt") as stored:
            found = int((stored.metadata() or {}).get("version", 0))
            if found != version:
                raise FedpeftError(
                    f"the global adapter on this site's disk is version {found}, the server builds on {version}: "
                    f"it will be sent whole in the next round.",
                    code=OUTDATED,
                )
            return {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise LocalError(
            f"the global adapter on this site's disk cannot be read ({error}): it will be sent whole next time.",
            code=OUTDATED,
        ) from error
