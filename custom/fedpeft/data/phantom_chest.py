# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Procedural radiographs with a report and 15 labels, as Open-I and MIMIC-CXR are used: macro-F1, split by patient.

Eight labels name a kind of finding, from frequent to rare; six follow from all findings together, as "lung opacity"
does from several diseases; the last one stands for an image without findings. A report names some of the findings
and denies some that are not there, in the sites' clinical words; the rest has to be seen in the image. The images of a
patient have the same findings in other places.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from fedpeft.data.labelled_images import label_example
from fedpeft.data.phantom import LANGUAGES
from fedpeft.data.phantom_pictures import NO_PIXELS, TAKES, collection, generator, number_of_images, pictured
from fedpeft.data.phantom_questions import CLINICAL, PLACES
from fedpeft.data.phantom_scene import KINDS, QUADRANTS, Scene, draw_findings, draw_look, render
from fedpeft.data.registry import DataSet
from fedpeft.data.schema import Example, SiteData

if TYPE_CHECKING:
    from fedpeft.data.settings import DataSettings

OF_KINDS = {kind: CLINICAL[kind] for kind in KINDS}
OF_SCENES = ("dense finding", "lucent finding", "large finding", "several findings", "upper zone", "lower zone")
NOTHING = "no finding"
LABELS = (*OF_KINDS.values(), *OF_SCENES, NOTHING)
_FREQUENCY = np.array([8, 7, 6, 5, 4, 3, 2, 1]) / 36  # of KINDS among findings
_FINDINGS = (0, 1, 1, 2, 2, 3)
_IMAGES = (1, 1, 2)  # of a patient
_NAMED, _DENIED = 0.6, 2


def load(settings: DataSettings) -> SiteData:
    """Make the images of one site, or its part of a data set that is shared out.

    Args:
        settings: `site` (None: phantom-chest), `seed`, `partition`, and `train_size`, `validation_size`, `test_size`
            (None: 210, 30, 90), nearly, since patients are not divided.
    """
    scenes, examples = _drawn(settings.seed, collection(settings), number_of_images(settings))

    def draw(number: int, rng: np.random.Generator) -> np.ndarray:
        return render(scenes[number], draw_look("xray", rng), rng)

    return pictured(settings, "phantom-chest", examples, draw, labels=LABELS)


def labels_of(scene: Scene) -> tuple[str, ...]:
    """Return what is in an image, of LABELS."""
    findings = scene.findings
    if not findings:
        return (NOTHING,)
    holds = (
        any(finding.bright for finding in findings),
        any(not finding.bright for finding in findings),
        any(finding.large for finding in findings),
        len(findings) > 1,
        any(finding.quadrant < QUADRANTS // 2 for finding in findings),
        any(finding.quadrant >= QUADRANTS // 2 for finding in findings),
    )
    kinds = tuple(OF_KINDS[finding.kind] for finding in findings)
    return (*kinds, *(label for label, true in zip(OF_SCENES, holds, strict=True) if true))


def report(scene: Scene, rng: np.random.Generator) -> str:
    """Return the findings of a report: some of those that are there, and some that are not."""
    sentences = []
    for finding in scene.findings:
        if rng.random() < _NAMED:
            place = " ".join(_word(concept, rng) for concept in PLACES[finding.quadrant].split())
            sentences.append(f"{_word(finding.kind, rng)} in the {place} part .")
    absent = [kind for kind in KINDS if kind not in {finding.kind for finding in scene.findings}]
    sentences += [f"no {_word(absent[i], rng)} ." for i in rng.permutation(len(absent))[:_DENIED]]
    return " ".join(sentences)


@lru_cache(maxsize=1)  # the sites of one data set are read one after the other
def _drawn(seed: int, name: str, total: int) -> tuple[list[Scene], list[Example]]:
    """Draw all scenes of a collection, and their examples without pixels."""
    rng = generator(seed, name)
    scenes: list[Scene] = []
    examples: list[Example] = []
    patient = 0
    while len(scenes) < total:
        patient += 1
        kinds = rng.choice(len(KINDS), size=_FINDINGS[rng.integers(len(_FINDINGS))], replace=False, p=_FREQUENCY)
        for _ in range(min(_IMAGES[rng.integers(len(_IMAGES))], total - len(scenes))):
            findings = draw_findings([KINDS[kind] for kind in kinds], rng)
            scene = Scene(region="chest", modality="xray", findings=findings)
            examples.append(
                label_example(
                    NO_PIXELS,
                    labels_of(scene),
                    image_id=f"{name}-{len(scenes):05d}",
                    group=f"{name}, patient {patient}",
                    text=report(scene, rng),
                )
            )
            scenes.append(scene)
    return scenes, examples


def _word(concept: str, rng: np.random.Generator) -> str:
    return LANGUAGES[rng.integers(len(LANGUAGES))][concept]


DATASET = DataSet(load=load, procedural=True, answers=lambda: LABELS, takes=TAKES)
