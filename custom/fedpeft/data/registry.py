# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Data sets by name, what each declares, and `load`, which reads one site's examples.

`data/__init__.py` registers the shipped data sets with `register`; `loaders.published_set` builds the published ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpeft.core.errors import DataError
from fedpeft.core.registry import Registry

if TYPE_CHECKING:
    from fedpeft.data.folders import Recognized
    from fedpeft.data.schema import SiteData
    from fedpeft.data.settings import DataSettings


READ_THEM = "read the owners' terms"


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """The source of a published data set.

    Args:
        title: as tables call it.
        address: where its owners, or those who pass it on, have it.
        terms: of its use, as far as they are known; no replacement for the owners' own words.
    """

    title: str
    address: str
    terms: str = READ_THEM


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSet:
    """A data set as it is registered.

    Args:
        load: from `DataSettings` to one site's `SiteData`; image files are checked for existence, not decoded.
        procedural: the data are computed, not measured; every table and picture of them says so.
        answers: returns all answers that any site with this data set can have, as its publisher lists them, for a head
            that is federated; None: there is no such list.
        takes: which of `train_size`, `validation_size`, `test_size`, `dialects`, `label_skew`, `partition`, `columns`,
            `window` and `uncertain` it reads; others are refused.
        metric: the metric of its sites (`fedpeft.core.metrics`); empty: the data of a site decide.
        origin: its source and terms; None: it is a site's own, or computed.
        recognized: whether a folder is in its layout (`fedpeft.data.folders`); None: it has no layout of its own.
        layout: the expected files, as messages show them.
        folders: names of its folder under FEDPEFT_DATA; `{site}` stands for the name of the site.
        sites: names of its own sites.
        whole: the name of a site that has all of these, if there is one.
        allowed_by_default: the site policy allows it unless its `datasets` leaves it out.
        as_sites: a sentence on how a folder with several folders of it was understood; `{inside}` stands for the names
            of the folders in them.
    """

    load: Callable[[DataSettings], SiteData]
    procedural: bool = False
    answers: Callable[[], Iterable[str]] | None = None
    takes: frozenset[str] = frozenset()
    metric: str = ""
    origin: Origin | None = None
    recognized: Recognized | None = None
    layout: str = ""
    folders: tuple[str, ...] = ()
    sites: tuple[str, ...] = ()
    whole: str = ""
    allowed_by_default: bool = True
    as_sites: str = ""

    def unread(self, setting: str) -> str:
        """Return why a data set ignores a setting of `data` that others read; empty: it reads the setting."""
        if not self.procedural:
            return ""
        if setting in ("split", "validation_fraction", "test_fraction"):
            return "is computed and split by data.train_size and the other sizes"
        return "is computed and has no files" if setting in ("root", "unreadable") else ""

    def folders_of(self, site: str | None) -> tuple[str, ...]:
        """Return the names of its folder under FEDPEFT_DATA at a site."""
        return tuple(name.format(site=site or ".") for name in self.folders)


DATASETS: Registry[DataSet] = Registry("data set", "fedpeft.datasets", DataSet)
register, names = DATASETS.register, DATASETS.names


def packaged(name: str) -> Any:
    """Return the content of a JSON file beside the loaders: names of classes, lists of answers or wordings."""
    return json.loads(Path(__file__).with_name(f"{name}.json").read_text(encoding="utf-8"))


def require_known(name: object) -> None:
    """Refuse a data set's name that is not registered; the error lists the known names."""
    if not isinstance(name, str) or name not in names():
        raise DataError(
            f"dataset={name!r} is not a known data set; choose one of {', '.join(names())}.", setting="dataset"
        )


def is_procedural(name: str) -> bool:
    """Return whether a data set is computed (phantom) and not measured on people."""
    require_known(name)
    return DATASETS.get(name).procedural


def load(settings: DataSettings, *, without: Iterable[str] = ()) -> SiteData:
    """Load one site's train, validation and test examples.

    The headers of image files are read, and the pixels only where some may be unreadable (`fedpeft.data.readable`).

    Args:
        settings: which data.
        without: ids of images to leave out where the site has them.

    Raises:
        DataError: the data are missing, incomplete or empty; the message names the file and the remedy, and where the
            folder is in another layout, the expected one and what is there.
    """
    from fedpeft.data.folders import unreadable_folder
    from fedpeft.data.partition import NOT_DRAWN, drawn, with_train_share
    from fedpeft.data.readable import readable
    from fedpeft.data.schema import EXCLUDED

    data_set = DATASETS.get(settings.dataset)
    try:
        data = data_set.load(settings)
    except DataError as error:
        raise _add_layout(error, data_set, settings) from error
    except OSError as error:
        raise unreadable_folder(error, Path(settings.root or settings.dataset)) from error
    unknown = data.unknown_among(without)
    if settings.exclude:
        data = data.without_images(settings.exclude)
    if dropped := data.resolved(without):
        data = data.without(dropped, EXCLUDED, *unknown)
    if settings.samples is not None:  # where sites share the data, the loader has drawn them already
        used = {example.image_id for split in drawn(settings, *data.splits().values()) for example in split}
        images = {example.image_id for split in data.splits().values() for example in split}
        data = data.without(images - used, NOT_DRAWN)
    if settings.train_share < 1:
        data = with_train_share(data, settings)
    if settings.metric:
        data = data.measured_by(settings.metric)
    data = readable(data, settings.unreadable)
    if not data.validation and settings.validation_fraction > 0 and settings.validation_size != 0:
        raise DataError(
            f"Site {data.site!r} has no validation example; give it some, or set validation_fraction=0 to do without."
        )
    return data


def _add_layout(error: DataError, data_set: DataSet, settings: DataSettings) -> DataError:
    """Add the expected files to an error, where the data's folder is in another layout."""
    from fedpeft.data.folders import dataset_folder, list_folder

    if data_set.recognized is None or not data_set.folders:
        return error
    try:
        seen = list_folder(dataset_folder(settings))
    except DataError:  # there is no folder, as the error says
        return error
    if data_set.recognized(seen):
        return error
    text = f"{error} Expected:\n{data_set.layout}\nThere is {seen.described()}."
    return DataError(text, setting=error.setting)
