# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Procedural questions made from class labels at nine sites, as Ultra-MedVQA is (F3OCUS, supplement C.1).

Each site has images of one kind with classes, drawn here, and the questions that `fedpeft build-vqa` makes of such
classes: types, shares and wordings are those of `build_vqa`.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedpeft.core.errors import DataError
from fedpeft.data.build_vqa import numbers
from fedpeft.data.phantom import SIZES
from fedpeft.data.phantom_scene import (
    GRAY,
    KINDS,
    QUADRANTS,
    REGIONS,
    SCALES,
    Scene,
    colored,
    draw_findings,
    draw_look,
    render,
)
from fedpeft.data.registry import DataSet
from fedpeft.data.schema import Example, SiteData
from fedpeft.data.ultra_med_vqa import NORMAL, SHARES, Subject, ask

if TYPE_CHECKING:
    from fedpeft.data.settings import DataSettings

GRADES = tuple(f"grade {number}" for number in range(QUADRANTS + 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Collection:
    """The images of a site: their look (`phantom_scene`) and what is known of them.

    A class shows as findings of its own kind; grades show as their number; a normal image has none.
    """

    look: str
    subject: Subject


_LESIONS = ("melanoma", "nevus", "keratosis", "carcinoma", "fibroma", "vascular lesion")
_CHEST = ("no finding", "nodule", "effusion", "atelectasis", "pneumonia", "mass", "edema")
_CELLS = ("basophil", "eosinophil", "erythroblast", "lymphocyte", "monocyte", "neutrophil", "platelet")
_COLON = ("adipose", "debris", "lymphocytes", "mucus", "muscle", "stroma", "epithelium")
_KIDNEY = ("glomerulus", "tubule", "duct", "interstitium", "vessel", "capsule")
_ORGANS = ("liver", "spleen", "bladder", "pancreas", "kidney", "heart")
SITES = {
    "colon-pathology": Collection(look="histopathology", subject=Subject("histopathology", "colon", _COLON, "tissue")),
    "chest-x-ray": Collection(look="xray", subject=Subject("x-ray", "lung", _CHEST, "disease")),
    "dermatoscope": Collection(look="dermatoscopy", subject=Subject("dermatoscopy", "skin", _LESIONS, "disease")),
    "retinal-oct": Collection(
        look="oct",
        subject=Subject(
            "optical coherence tomography", "eye", ("normal", "drusen", "edema", "neovascularization"), "disease"
        ),
    ),
    "fundus-camera": Collection(look="fundus", subject=Subject("fundus photography", "eye", GRADES, "grade")),
    "ultrasound": Collection(
        look="ultrasound", subject=Subject("ultrasound", "breast", ("normal", "benign", "malignant"), "disease")
    ),
    "blood-microscope": Collection(look="microscopy", subject=Subject("microscopy", "blood", _CELLS, "other")),
    "kidney-microscope": Collection(look="microscopy", subject=Subject("microscopy", "kidney", _KIDNEY, "tissue")),
    "abdominal-ct": Collection(look="ct", subject=Subject("ct", "", _ORGANS, "anatomy")),
}
USUAL = next(iter(SITES))


def load(settings: DataSettings) -> SiteData:
    """Make the questions of one site, one about each image."""
    site = settings.site or USUAL
    if site not in SITES:
        raise DataError(f"site={site!r} is not a site of phantom_ultra; choose one of {', '.join(SITES)}.")
    rng = np.random.default_rng([settings.seed, zlib.crc32(site.encode())])
    train, validation, test = (
        _examples(site, f"{site}-{split}", size, rng) for split, size in settings.sizes(SIZES).items()
    )
    where = f"procedural images and questions from their classes ({site}, seed {settings.seed}); no image of any person"
    return SiteData(site, train, validation, test, where)


def all_answers() -> set[str]:
    """Return every answer that a site can have."""
    subjects = [collection.subject for collection in SITES.values()]
    named = {word for one in subjects for word in (one.modality, one.anatomy, *one.classes) if word}
    return named | {"yes", "no", "normal", "abnormal"}


def _examples(site: str, prefix: str, count: int, rng: np.random.Generator) -> tuple[Example, ...]:
    """Draw a split: types of questions in the shares that `build_vqa` gives this site among all of the same size."""
    own = SITES[site]
    alike = [(one.subject, count) for one in SITES.values()]
    of_types = numbers(alike)[list(SITES).index(site)] if count else np.zeros(len(SHARES), dtype=int)
    examples = []
    for number, kind in enumerate(rng.permutation(np.repeat(list(SHARES), of_types))):
        name = own.subject.classes[rng.integers(len(own.subject.classes))]
        image = render(_scene(site, name, rng), draw_look(own.look, rng, spread=0.5), rng)
        image = colored(image, SCALES.get(own.look, GRAY))
        image.flags.writeable = False
        question = ask(str(kind), own.subject, [name], rng)
        examples.append(
            Example(
                image=image,
                question=question.text,
                answer=question.answer,
                closed=question.closed,
                image_id=f"{prefix}-{number:04d}",
                question_type=str(kind),
            )
        )
    return tuple(examples)


def _scene(site: str, name: str, rng: np.random.Generator) -> Scene:
    """Draw what an image of a class shows."""
    region = REGIONS[list(SITES).index(site) % len(REGIONS)]
    classes = SITES[site].subject.classes
    if SITES[site].subject.classes_are == "grade":
        count, kinds = GRADES.index(name), [str(kind) for kind in rng.permutation(KINDS)]
    else:
        count = 0 if name in NORMAL else int(rng.integers(1, QUADRANTS))
        kinds = [KINDS[classes.index(name)]] * QUADRANTS
    findings = draw_findings(kinds[:count], rng)
    return Scene(region=region, modality=SITES[site].look, findings=findings)


TAKES = frozenset({"train_size", "validation_size", "test_size"})
DATASET = DataSet(load=load, procedural=True, answers=all_answers, takes=TAKES)
