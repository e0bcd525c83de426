# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The data of several sites at one: centralized training, to compare a federation with; in the simulator only."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from fedpeft.data.errors import DataError
from fedpeft.data.schema import SiteData, added


def pooled(site: str, parts: Sequence[SiteData]) -> SiteData:
    """Return the data of one site that holds those of others, split by split and in their order.

    Args:
        site: its name.
        parts: the others' data.

    Raises:
        DataError: some have labels and some questions, or other labels.
    """
    train, validation, test = (
        tuple(chain.from_iterable(getattr(part, split) for part in parts)) for split in ("train", "validation", "test")
    )
    sources = dict.fromkeys(part.source for part in parts)
    kinds = {(part.labels, part.metric) for part in parts}
    if len(kinds) > 1:
        raise DataError(
            f"Site {site!r} pools {', '.join(repr(part.site) for part in parts)}, which have other labels or another "
            f"metric; pool sites of one kind."
        )
    labels, metric = kinds.pop()
    left_out = added(*(part.left_out for part in parts))
    notes = tuple(dict.fromkeys(chain.from_iterable(part.notes for part in parts)))
    own_ids = any(part.own_ids for part in parts)
    return SiteData(site, train, validation, test, "; ".join(sources), labels, metric, left_out, notes, own_ids)
