# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Images that sites or splits have in common as one table, and the test images that training knows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from rich.table import Table

from fedpeft.core.console import cell
from fedpeft.data.duplicates import Duplicate, Fingerprint, duplicates

TEST = "test"
NONE = "No image is in two sites or two splits."
TOTAL = "total"
MAX_NAMED = 20  # images of one site that a remedy names
HEADS = ("in", "and in", "images", "equal pixels", "test images known")


class Overlap:
    """What splits and sites have in common.

    Args:
        marks: fingerprints of all sites.

    Attributes:
        common: images in more than one split or site.
        known: the test images that are in a training or validation split as well, of any site.
        tested: the number of all test images.
    """

    def __init__(self, marks: Sequence[Fingerprint]) -> None:
        self.common = duplicates(marks)
        self._leaking = [one for one in self.common if 0 < sum(map(_is_test, one.places)) < len(one.places)]
        self.known = [place for one in self._leaking for place in one.places if _is_test(place)]
        self.tested = sum(map(_is_test, marks))

    def table(self) -> Table:
        """Return a row for each pair of splits with common images, and a row of all."""
        table = Table(box=None, header_style="bold", pad_edge=False)
        for number, head in enumerate(HEADS):
            table.add_column(head, justify="left" if number < 2 else "right", overflow="fold")
        pairs: dict[tuple[str, str], list[Duplicate]] = {}
        for one in self.common:
            for pair in combinations(sorted({_split(place) for place in one.places}), 2):
                pairs.setdefault(pair, []).append(one)
        for pair, images in sorted(pairs.items()):
            known = 0
            if sum(name.endswith(f"/{TEST}") for name in pair) == 1:
                known = sum(_is_test(place) and _split(place) in pair for one in images for place in one.places)
            table.add_row(*map(cell, (*pair, *_counts(images), known)))
        table.add_row(*map(cell, (TOTAL, "", *_counts(self.common), len(self.known))), style="bold")
        return table

    def remarks(self) -> Iterator[str]:
        """Yield what the table means and how to leave such images out; none where no test image is known."""
        if not self.known:
            return
        yield (
            f"{len(self.known):,} of {self.tested:,} test images are in a training or validation split as well, which "
            f"flatters the figures: leave them out there with data.exclude (at a hospital exclude in its own file)."
        )
        for site, names in self._to_exclude().items():
            more = f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
            yield f"data.sites.{site}.exclude: [{', '.join(names[:MAX_NAMED])}]{more}"
        if within := sorted({place.site for one in self._leaking for place in one.places if _is_in_test(place, one)}):
            yield f"An image that is in two splits of {', '.join(within)} itself: set data.split=image_disjoint there."

    def _to_exclude(self) -> dict[str, list[str]]:
        """Return by site the images to leave out, so that the test splits stay."""
        chosen: dict[str, dict[str, None]] = {}
        for one in self._leaking:
            for place in one.places:
                if not _is_test(place) and not _is_in_test(place, one):
                    chosen.setdefault(place.site, {})[place.image_id] = None
        return {site: list(names) for site, names in sorted(chosen.items())}


def _is_test(place: Fingerprint) -> bool:
    return place.split == TEST


def _is_in_test(place: Fingerprint, one: Duplicate) -> bool:
    """Return whether a place of training has its image under the same id in the site's own test split."""
    here = (place.site, place.image_id)
    return not _is_test(place) and any(_is_test(other) and (other.site, other.image_id) == here for other in one.places)


def _split(place: Fingerprint) -> str:
    return f"{place.site}/{place.split}"


def _counts(images: Sequence[Duplicate]) -> tuple[str, str]:
    return f"{len(images):,}", f"{sum(one.same_content for one in images):,}"
