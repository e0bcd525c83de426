# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Ultra-MedVQA (F3OCUS, supplement C.1) as `fedpeft build-vqa` makes it of MedMNIST's files: questions at nine sites.

    <site>/manifest.csv, <site>/images/<set>/...        a folder for each site

These folders lie below FEDPEFT_DATA; `root` is that of one site.
"""

from __future__ import annotations

from dataclasses import replace

from fedpeft.core.metrics import ACCURACY
from fedpeft.data import manifest, medmnist
from fedpeft.data.errors import DataError
from fedpeft.data.glance import tree
from fedpeft.data.registry import DataSet
from fedpeft.data.schema import SiteData
from fedpeft.data.settings import DataSettings


def load(settings: DataSettings) -> SiteData:
    """Load one site's questions.

    Raises:
        DataError: as for a manifest, or the manifest has no questions.
    """
    data = manifest.load(settings)
    if data.metric != ACCURACY:
        raise DataError(
            f"The manifest of site {data.site!r} has no questions; put there what `fedpeft build-vqa` wrote, or set "
            f"dataset='manifest'."
        )
    return replace(data, source=f"Ultra-MedVQA ({data.site}), questions made by templates from the classes of MedMNIST")


DATASET = DataSet(
    load=load, metric=ACCURACY, origin=medmnist.ORIGIN, layout=tree(__doc__), folders=manifest.DATASET.folders
)
