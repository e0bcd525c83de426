# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Caltech101 (Fei-Fei et al., 2004): photographs of 101 kinds of objects.

    101_ObjectCategories/<class>/image_0001.jpg

The folder BACKGROUND_Google is no class and is left out. The owners publish no split: images are split here, in
the federated tuning of vision transformers 50:50 (`test_fraction=0.5`).
"""

from __future__ import annotations

from fedpeft.core.metrics import BALANCED_ACCURACY
from fedpeft.data.errors import DataError
from fedpeft.data.folders import dataset_folder, find
from fedpeft.data.glance import holds, tree
from fedpeft.data.labelled_images import TAKES, class_example, class_folders, site_of
from fedpeft.data.registry import DataSet, Origin
from fedpeft.data.schema import SiteData
from fedpeft.data.settings import DataSettings

FOLDERS = ("caltech101", "caltech-101", "Caltech101")
BACKGROUND = "BACKGROUND_Google"
CLASSES = """
accordion airplanes anchor ant barrel bass beaver binocular bonsai brain brontosaurus buddha butterfly camera
cannon car_side ceiling_fan cellphone chair chandelier cougar_body cougar_face crab crayfish crocodile
crocodile_head cup dalmatian dollar_bill dolphin dragonfly electric_guitar elephant emu euphonium ewer faces
faces_easy ferry flamingo flamingo_head garfield gerenuk gramophone grand_piano hawksbill headphone hedgehog
helicopter ibis inline_skate joshua_tree kangaroo ketch lamp laptop leopards llama lobster lotus mandolin mayfly
menorah metronome minaret motorbikes nautilus octopus okapi pagoda panda pigeon pizza platypus pyramid revolver
rhino rooster saxophone schooner scissors scorpion sea_horse snoopy soccer_ball stapler starfish stegosaurus
stop_sign strawberry sunflower tick trilobite umbrella watch water_lilly wheelchair wild_cat windsor_chair
wrench yin_yang
"""


def answers() -> tuple[str, ...]:
    """Return the 101 classes."""
    return tuple(name.replace("_", " ") for name in CLASSES.split())


def load(settings: DataSettings) -> SiteData:
    """Load the data set, or one site's part of it.

    Raises:
        DataError: missing folder, a folder that is none of the classes, or an empty split.
    """
    root = find(dataset_folder(settings, FOLDERS), "101_ObjectCategories", folder=True)
    folders = class_folders(root)
    background = folders.pop(BACKGROUND, [])
    if unknown := [name for name in folders if name.lower() not in CLASSES.split()]:
        raise DataError(f"{root} holds the folder {unknown[0]!r:.80}, which is no class of Caltech101; remove it.")
    examples = [
        class_example(file, name.replace("_", " "), image_id=f"{name}/{file.stem}")
        for name, files in folders.items()
        for file in files
    ]
    return site_of(
        settings,
        "caltech101",
        "Caltech101 (Fei-Fei et al., 2004), real data, split by image",
        train=examples,
        left_out=[(f"the folder {BACKGROUND} is no class", len(background))],
    )


ORIGIN = Origin(title="Caltech101", address="data.caltech.edu/records/mzrjq-6wc02", terms="CC BY 4.0 in that record")
DATASET = DataSet(
    load=load,
    answers=answers,
    takes=TAKES,
    metric=BALANCED_ACCURACY,
    origin=ORIGIN,
    recognized=holds("*/101_ObjectCategories/"),
    layout=tree(__doc__),
    folders=FOLDERS,
)
