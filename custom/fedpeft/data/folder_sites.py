# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Recognize the sites that a folder holds, and the settings to load them, from nothing but the folder.

A folder in the layout of one data set is that data set's own sites, or is shared out to clients, or is one site; a
folder of such folders is a site for each.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedpeft.core.errors import DataError
from fedpeft.core.settings import build, suggestion
from fedpeft.data.folders import Listing, list_folder
from fedpeft.data.partition import SPELLINGS, named_like_splits
from fedpeft.data.registry import DATASETS, load, require_known
from fedpeft.data.schema import SiteData
from fedpeft.data.settings import IID, NATURAL, DataSettings

CLIENTS = 4  # that share a data set without sites of its own, as in FedPIA's task 3
MIN_UNITS = 15  # images or patients of a client; otherwise there are fewer clients
MAX_NAMED = 5  # names in one message
ALONE = "There is one site, so that nothing is averaged: a folder for each site makes a federation."
_TAKEN = frozenset({"server", "simulator_server", "local", "startup"})  # folders of every workspace


@dataclass(frozen=True, kw_only=True)
class FolderSites:
    """What a folder holds."""

    kind: str  # what it was recognized as, in words
    common: Mapping[str, Any]  # settings of all sites, a part of the section `data`
    of_sites: Mapping[str, Mapping[str, Any]]  # each site's own settings
    data: tuple[SiteData, ...] = ()
    notes: tuple[str, ...] = ()  # one sentence for each choice, and on what was not read

    @property
    def section(self) -> dict[str, Any]:
        """The section `data` of a job."""
        own = {site: dict(settings) for site, settings in self.of_sites.items() if settings}
        return {**self.common, **({"sites": own} if own else {})}


def sites_in(
    folder: Path, chosen: Mapping[str, Any] | None = None, *, window: Mapping[str, Any] | None = None
) -> FolderSites:
    """Recognize what a folder holds, and load it.

    `chosen` has settings of all sites that need not be found out, and of single ones under `sites`; with `dataset` the
    folder is one of that data set. Images are shown through `window` where their layout takes one.
    """
    common = dict(chosen or {})
    of_sites = common.pop("sites", {})
    if not isinstance(of_sites, Mapping) or not all(isinstance(own, Mapping) for own in of_sites.values()):
        raise DataError("data.sites must have settings by site, as in data.sites.NAME.exclude=[a.png]: correct it.")
    found = _recognize(folder, common, of_sites)
    for site, own in of_sites.items():
        if site not in found.of_sites:
            raise DataError(
                f"data.sites names {site!r}, which {folder} does not hold: {suggestion(site, found.of_sites)}."
            )
        found = _add_settings(found, site, **own)
    return _load_sites(_set_window(found, window or {}))


def _recognize(folder: Path, chosen: Mapping[str, Any], of_sites: Mapping[str, Mapping[str, Any]]) -> FolderSites:
    """Return the sites without their data."""
    whole = list_folder(folder)
    if "dataset" in chosen:
        require_known(chosen["dataset"])
        return _sites_of_one(whole, chosen["dataset"], chosen, of_sites)
    seen = _unwrap(whole)
    if names := _layouts(seen):
        found = (
            _sites_of_one(seen, names[0], chosen, of_sites)
            if len(names) == 1
            else _sites_of_several([(name, name, seen) for name in names], chosen)
        )
    else:
        inner = {name: _unwrap(part) for name, part in seen.folders.items()}
        known = {name: part for name, part in inner.items() if _layouts(part)}
        if not known:
            raise DataError(unknown_layout(whole))
        if named_like_splits(known):
            raise DataError(
                f"{seen.root} has folders named like splits, {_listed([*known])}, which are no sites: give one site "
                f"one table with a column 'split', or class folders in folders train, validation and test alone."
            )
        parts = [(name, layout, part) for name, part in known.items() for layout in _layouts(part)]
        rest = {name: seen.folders[name] for name in inner if name not in known}
        one_class = {name: layout for name, part in rest.items() if (layout := _layout_of_classes(part, parts))}
        parts += [(name, layout, rest[name]) for name, layout in one_class.items()]
        found = _sites_of_several(parts, chosen)
        if others := [f"{name}/" for name in inner if name not in (*known, *one_class)]:
            found = replace(found, notes=(*found.notes, f"Not read, in no known layout: {_listed(others)}."))
    return found


def _set_window(found: FolderSites, window: Mapping[str, Any]) -> FolderSites:
    """Return the sites with a window for those whose layout takes one."""
    for site, own in found.of_sites.items() if window else ():
        if "window" in DATASETS.get({**found.common, **own}["dataset"]).takes:
            found = _add_settings(found, site, window=dict(window))
    return found


def unknown_layout(seen: Listing) -> str:
    """Return a message with the layouts of a site's own data, and what a folder holds instead."""
    known = [(name, data_set) for name, data_set in DATASETS.usable() if data_set.recognized]
    own = "\n".join(f"{name}:\n{data_set.layout}" for name, data_set in known if not data_set.origin)
    titles = ", ".join(dict.fromkeys(data_set.origin.title for _, data_set in known if data_set.origin))
    return (
        f"{seen.root} is in no known layout. Expected there, or in a folder for each site:\n{own}\n"
        f"or what the owners of {titles} publish, unpacked.\nThere is {seen.described()}."
    )


def _layouts(seen: Listing) -> tuple[str, ...]:
    """Return the published data sets in a folder, or else the layout of a site's own data."""
    found = [name for name, data_set in DATASETS.usable() if data_set.recognized and data_set.recognized(seen)]
    if not found or DATASETS.get(found[0]).origin is None:
        return tuple(found[:1])
    return tuple(name for name in found if DATASETS.get(name).origin)


def _unwrap(seen: Listing) -> Listing:
    """Return the folder with the data, without single folders around it, as archives unpack them."""
    while len(seen.folders) == 1 and not _layouts(seen):
        (seen,) = seen.folders.values()
    return seen


def _layout_of_classes(seen: Listing, parts: Sequence[tuple[str, str, Listing]]) -> str:
    """Return the data set of other sites with class folders, if this folder only has classes of theirs; empty: none.

    A folder with a single class is in no known layout: by itself it could be anything.
    """
    for layout in dict.fromkeys(name for _, name, _ in parts if DATASETS.get(name).as_sites):
        known = {name for _, other, part in parts if other == layout for name in _classes(part)}
        if seen.images and _classes(seen) <= known:
            return layout
    return ""


def _classes(seen: Listing) -> set[str]:
    """Return the names of the folders with images, without those of splits around them."""
    folders = [[name for name in path.split("/")[1:-1] if name.lower() not in SPELLINGS] for path in seen.images]
    return {names[0] if names else "" for names in folders}


def _sites_of_one(
    seen: Listing, name: str, chosen: Mapping[str, Any], of_sites: Mapping[str, Mapping[str, Any]]
) -> FolderSites:
    """Return the sites of one data set: its own ones, clients that share it, or a single one."""
    data_set, title = DATASETS.get(name), _title(name)
    common = {"dataset": name, "root": str(seen.root), **chosen}
    if data_set.sites and chosen.get("partition", NATURAL) == NATURAL:
        sites, left = _find_sites_with_data(common, data_set.sites, of_sites)
        return FolderSites(kind=f"{title}, which has sites of its own", common=common, of_sites=sites, notes=left)
    site = data_set.whole or _site_name(seen.root.name, ())
    if "partition" in data_set.takes:
        whole = _loaded_without_validation({**common, **of_sites.get(site, {}), "partition": NATURAL, "parts": 1}, site)
        units = {example.unit for examples in whole.splits().values() for example in examples}
        partition = chosen.get("partition", IID)
        default = {"parts": max(1, min(CLIENTS, len(units) // MIN_UNITS))} if partition != NATURAL else {}
        parts = build(DataSettings, {**common, "partition": partition, **default, **chosen}, section="data").parts
        if parts > 1:
            common |= {"partition": partition, "parts": parts}
            sites = {f"client-{number}": {} for number in range(1, parts + 1)}
            notes = (f"It has no sites of its own: {parts} clients share it ({common['partition']}).",)
            return FolderSites(kind=title, common=common, of_sites=sites, notes=notes)
        common = {key: value for key, value in common.items() if key not in ("partition", "parts")}  # all is its own
    return FolderSites(kind=title, common=common, of_sites={site: {}}, notes=(ALONE,))


def _sites_of_several(parts: Sequence[tuple[str, str, Listing]], chosen: Mapping[str, Any]) -> FolderSites:
    """Return a site for each of several parts: the name it gets, its data set, and its folder."""
    of_sites: dict[str, dict[str, Any]] = {}
    for folder, name, seen in parts:
        data_set = DATASETS.get(name)
        settings = {"dataset": name, "root": str(seen.root)}
        if data_set.sites and not data_set.whole:
            of_sites |= {_site_name(site, of_sites): {**settings, "site": site} for site in data_set.sites}
        else:
            own = {"site": data_set.whole} if data_set.whole else {}
            of_sites[_site_name(folder, of_sites)] = {**settings, **own}
    datasets = list(dict.fromkeys(settings["dataset"] for settings in of_sites.values()))
    common = dict(chosen)
    if len(datasets) == 1:
        common = {"dataset": datasets[0], **common}
        for settings in of_sites.values():
            del settings["dataset"]
    kind = f"folders, a site each: {', '.join(map(_title, datasets))}"
    notes = (ALONE,) if len(of_sites) == 1 else tuple(_taken_for(parts))
    return FolderSites(kind=kind, common=common, of_sites=of_sites, notes=notes)


def _taken_for(parts: Sequence[tuple[str, str, Listing]]) -> Iterator[str]:
    """Yield a sentence for each data set whose folders could have been taken for something else."""
    for data_set, name in [(DATASETS.get(name), name) for name in dict.fromkeys(name for _, name, _ in parts)]:
        folders = {inner for _, layout, seen in parts if layout == name for inner in seen.folders}
        inside = {inner for inner in folders if inner.lower() not in SPELLINGS}
        if data_set.as_sites and inside:
            yield data_set.as_sites.format(inside=_listed(sorted(inside)))


def _load_sites(found: FolderSites) -> FolderSites:
    """Load all sites, and choose splits that were not chosen: no validation where a site has too few images for it, and
    a new split by image where a site has images in two splits.
    """
    chosen = set(found.common)
    few: list[str] = []
    shared: dict[str, int] = {}
    data = []
    for site in found.of_sites:
        try:
            loaded = _load_site(found, site)
        except DataError as error:
            if "validation_fraction" in {*chosen, *found.of_sites[site]}:
                raise
            found = _add_settings(found, site, validation_fraction=0)
            try:
                loaded = _load_site(found, site)
            except DataError:
                raise DataError(f"Site {site!r}: {error}") from error
            few.append(site)
        if "split" not in {*chosen, *found.of_sites[site]} and (count := _count_in_two_splits(loaded)):
            found = _add_settings(found, site, split="image_disjoint")
            loaded = _load_site(found, site)
            shared[site] = count
        data.append(replace(loaded, site=site))
    notes = list(found.notes)
    if few:
        notes.append(f"Too few images for a validation split, so that there is none: {', '.join(few)}.")
    if shared:
        notes.append(
            f"{sum(shared.values()):,} images or patients are in two splits: everything is split again by image at "
            f"{', '.join(shared)}."
        )
    return replace(found, data=tuple(data), notes=tuple(notes))


def _add_settings(found: FolderSites, site: str, /, **settings: Any) -> FolderSites:
    """Add settings to one site; where it is the only one, to those of all sites."""
    if len(found.of_sites) == 1:
        return replace(found, common={**found.common, **settings})
    return replace(found, of_sites={**found.of_sites, site: {**found.of_sites[site], **settings}})


def _count_in_two_splits(site: SiteData) -> int:
    units = Counter(unit for examples in site.splits().values() for unit in {example.unit for example in examples})
    return sum(count > 1 for count in units.values())


def _load_site(found: FolderSites, site: str) -> SiteData:
    return _loaded({**found.common, **found.of_sites[site]}, site)


def _find_sites_with_data(
    common: Mapping[str, Any], names: tuple[str, ...], of_sites: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, dict[str, Any]], tuple[str, ...]]:
    """Return those sites of a data set that have data, and a note on the others."""
    sites: dict[str, dict[str, Any]] = {}
    errors: dict[str, DataError] = {}
    for name in names:
        own = {**common, **of_sites.get(name, {})}
        try:
            _loaded_without_validation(own, name)
            sites[name] = {}
        except DataError as error:
            if own != common and _has_data(common, name):
                raise
            errors[name] = error
    if not sites:
        raise next(iter(errors.values()))
    return sites, (f"Without data here: {', '.join(errors)}.",) if errors else ()


def _has_data(settings: Mapping[str, Any], site: str) -> bool:
    try:
        return bool(_loaded_without_validation(settings, site))
    except DataError:
        return False


def _loaded_without_validation(settings: Mapping[str, Any], site: str) -> SiteData:
    """Load a site, if need be without a validation split, unless one was chosen: `_load_sites` says so."""
    try:
        return _loaded(settings, site)
    except DataError:
        if "validation_fraction" in settings:
            raise
        return _loaded({**settings, "validation_fraction": 0}, site)


def _loaded(settings: Mapping[str, Any], site: str) -> SiteData:
    return load(build(DataSettings, {"site": site, **settings}, section="data"))


def _listed(names: Sequence[str]) -> str:
    return ", ".join([*names[:MAX_NAMED], *["..."] * (len(names) > MAX_NAMED)])


def _title(name: str) -> str:
    origin = DATASETS.get(name).origin
    return origin.title if origin else name.replace("_", " ")


def _site_name(folder: str, taken: Collection[str]) -> str:
    """Return a free name that FLARE accepts for a site, from the name of a folder."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", folder)[:60].strip("-_") or "site"
    name = f"{name}-site" if name in _TAKEN else name
    number = 1
    while (free := name if number == 1 else f"{name}-{number}") in taken:
        number += 1
    return free
