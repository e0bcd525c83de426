# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The global adapter cached on a site's disk, updated with the tensors that changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedpeft.core.errors import FedpeftError, LocalError
from fedpeft.core.files import replacing
from fedpeft.alignment.factors import MOST_RANKS, extended
from fedpeft.core.states import first_misfit

FILE = "received.safetensors"
OUTDATED, REFUSED = "adapter-outdated", "order-refused"


@dataclass(frozen=True, kw_only=True)
class AdapterSchema:
    """Shapes and dtype of the adapter that a site has announced.

    Args:
        shapes: of its tensors, by wire key.
        dtype: of all tensors, by torch's name.
    """

    shapes: Mapping[str, Sequence[int]]
    dtype: str


def check_received(
    state: Mapping[str, torch.Tensor],
    announced: AdapterSchema,
    *,
    whole: bool,
    any_width: bool = False,
    stacked: bool = False,
) -> None:
    """Refuse a global adapter that does not fit the site's announced adapter, before any of it is written.

    Args:
        state: as received.
        announced: the site's announced adapter.
        whole: whether it must have all keys, unless it is empty.
        any_width: whether sites of the job may differ in width; no dimension may then exceed the site's largest one.
        stacked: whether factors of all sites stand side by side; no dimension may then exceed `MOST_RANKS` times that.

    Raises:
        FedpeftError: names the key.
    """
    shapes = announced.shapes
    longest = max((side for shape in shapes.values() for side in shape), default=0) if any_width or stacked else None
    if longest is not None and stacked:
        longest *= MOST_RANKS
    misfit = first_misfit(state, shapes, dtype=announced.dtype, whole=whole and bool(state), longest=longest)
    if misfit is None:
        return
    if misfit.unknown:
        raise _refused(f"has a tensor {min(map(str, misfit.unknown))!r:.120}, which this site's adapter does not have")
    if misfit.missing:
        raise _refused(f"lacks {min(misfit.missing)}")
    key = misfit.key
    if misfit.what == "form":
        raise _refused(f"has no dense tensor as {key}")
    if misfit.what == "dtype":
        raise _refused(f"has {key} as {state[key].dtype}, this site announced {announced.dtype}")
    raise _refused(f"has {key} with shape {list(state[key].shape)!r:.60}, this site announced {list(shapes[key])}")


def _refused(what: str) -> FedpeftError:
    return FedpeftError(
        f"the global adapter from the server {what}: install the same fedpeft version everywhere, and ask whoever runs "
        f"the server.",
        code=REFUSED,
    )


def apply_delta(
    folder: Path, state: dict[str, torch.Tensor], *, base: int, version: int, stacked: bool = False
) -> dict[str, torch.Tensor]:
    """Apply changed tensors to the cached global adapter, write the result and return it.

    Args:
        folder: the site's state folder.
        state: the tensors that changed since `base`.
        base: the version that must be on disk; 0: `state` is whole.
        version: the resulting version; 0: it need not be kept.
        stacked: whether factors in `state` come behind those on disk, instead of replacing them.

    Raises:
        FedpeftError: the disk has another version, or none.
    """
    joined = extended if stacked else _replaced
    whole = joined(_load(folder / FILE, base), state) if base else state
    if version != base:
        with replacing(folder / FILE) as draft:
            save_file(whole, draft, metadata={"version": str(version)})
    return whole


def _replaced(before: dict[str, torch.Tensor], state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {**before, **state}


def _load(file: Path, version: int) -> dict[str, torch.Tensor]:
    try:
        with safe_open(file, framework="pt") as stored:
            stored_version = int((stored.metadata() or {}).get("version", 0))
            if stored_version != version:
                raise FedpeftError(
                    f"the global adapter on this site's disk is version {stored_version}, the server builds on "
                    f"{version}: it will be sent whole in the next round.",
                    code=OUTDATED,
                )
            return {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise LocalError(
            f"the global adapter on this site's disk cannot be read ({error}): it will be sent whole next time.",
            code=OUTDATED,
        ) from error
