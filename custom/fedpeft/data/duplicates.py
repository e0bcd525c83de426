# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Find images that two sites, or two splits of one site, share.

An image is recognized by its id and by its decoded pixels. Equal ids with different pixels are a resized copy if the
ids come from one publisher (`same_content` is false then). Where ids are names in a site's own folder, they say nothing
about other sites, and only pixels are compared with those. Scaled or re-compressed copies under other ids are not
detected.

What may leave a site. An image id or a plain hash of the pixels is enough for anybody who holds a public image to learn
that a site has it, and so, often, that a patient was there. Therefore nothing in this file is ever put into a message.

- One person holds all the data (a simulation, public sets): `fingerprints(data)` of every site, in one process. The
  report names images and stays a local file.
- Sites that do not show each other their data: they agree on a secret salt out of band, not through the server, and
  each computes `fingerprints(data, salt=...)`. These are keyed digests (HMAC-SHA256): without the salt a comparison
  shows how many images which sites share, and not which images. A site that knows the salt can still test whether
  another has an image. So only sites that trust each other share a salt, and they use a new one for every comparison.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from fedpeft.core.errors import DataError, UnreadableImage
from fedpeft.data.images import ImageSource, as_array
from fedpeft.data.readable import refusal
from fedpeft.data.schema import SiteData

_SALT_BYTES = 16


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """One image in one split of one site; id and content are plain or, with a salt, keyed digests."""

    site: str
    split: str
    image_id: str
    content: str  # of its pixels
    own_id: bool = False  # the id says nothing about images of other sites


@dataclass(frozen=True, slots=True)
class Duplicate:
    """One image and all its places; `same_content` is false if only the id agrees."""

    places: tuple[Fingerprint, ...]
    same_content: bool


def content_digest(image: ImageSource, *, salt: bytes = b"") -> str:
    """Return the HMAC-SHA256 of height, width and decoded RGB pixels in hex; file format and metadata do not count."""
    pixels = as_array(image)
    shape = np.asarray(pixels.shape[:2], dtype="<u4").tobytes()
    return hmac.new(salt, shape + np.ascontiguousarray(pixels).tobytes(), hashlib.sha256).hexdigest()


def fingerprints(data: SiteData, *, salt: bytes | None = None) -> tuple[Fingerprint, ...]:
    """Return one fingerprint for each image and split of a site; every image is decoded once.

    Without a salt, a secret of at least 16 bytes, fingerprints are plain, for use on this machine only.
    """
    if salt is not None and len(salt) < _SALT_BYTES:
        raise DataError(f"salt has {len(salt)} bytes; use at least {_SALT_BYTES} random ones (secrets.token_bytes).")
    digests: dict[str, str] = {}
    problems: dict[str, UnreadableImage] = {}
    prints = []
    for split, examples in data.splits().items():
        images = {example.image_id: example.image for example in examples}
        for image_id, image in images.items():
            if image_id not in digests:
                try:
                    digests[image_id] = content_digest(image, salt=salt or b"")
                except UnreadableImage as error:
                    digests[image_id] = ""
                    problems[image_id] = error
            shown = image_id if salt is None else hmac.new(salt, image_id.encode(), hashlib.sha256).hexdigest()
            prints.append(Fingerprint(data.site, split, shown, digests[image_id], data.own_ids))
    if problems:
        raise refusal(data.site, problems.values(), of=len(digests))
    return tuple(prints)


def duplicates(fingerprints: Iterable[Fingerprint]) -> tuple[Duplicate, ...]:
    """Return images that are in more than one split or site, by id or content, in the order of their first place.

    The fingerprints of all sites have the same salt.
    """
    fingerprints = tuple(fingerprints)
    if not fingerprints:
        return ()
    groups: dict[int, list[Fingerprint]] = {}
    for group, place in zip(_groups(fingerprints), fingerprints, strict=True):
        groups.setdefault(group, []).append(place)
    return tuple(
        Duplicate(tuple(places), same_content=len({place.content for place in places}) == 1)
        for places in groups.values()
        if len({(place.site, place.split) for place in places}) > 1
    )


def _groups(fingerprints: tuple[Fingerprint, ...]) -> list[int]:
    keys: dict[tuple[str, ...], int] = {}
    edges = [
        (number, len(fingerprints) + keys.setdefault(key, len(keys)))
        for number, place in enumerate(fingerprints)
        for key in (("id", place.image_id, place.site if place.own_id else ""), ("content", place.content))
    ]
    nodes = len(fingerprints) + len(keys)
    rows, columns = np.array(edges).T
    graph = coo_array((np.ones(len(edges)), (rows, columns)), shape=(nodes, nodes))
    return connected_components(graph, directed=False)[1][: len(fingerprints)].tolist()
