# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The procedural data sets beside `phantom`: what is in an image, who gets it, and what is said about it."""

import hashlib
from itertools import chain

import numpy as np
import pytest

from fedpeft.data import DataError, DataSettings, load
from fedpeft.data.phantom import MODALITY_SITES as MODALITIES
from fedpeft.data.phantom_pictures import CENTERS, KIND_LABELS, LABELS, NOTHING, labels_of, report
from fedpeft.data.phantom_scene import CLINICAL, GRAY, PLAIN, SCALES, SIZE, Finding, Scene, colored
from fedpeft.data.registry import DATASETS
from fedpeft.data.remarks import baseline
from fedpeft.data.ultra_med_vqa import SHARES, numbers
from fedpeft.data.ultra_med_vqa import SITES as CLIENTS

SIZES = {"train_size": 24, "validation_size": 6, "test_size": 12}
SETS = {
    "phantom_modalities": "fundus",
    "phantom_ultra": "fundus-camera",
    "phantom_chest": "open-i",
    "phantom_skin": "mskcc",
    "phantom_objects": "north",
    "phantom_flowers": "north",
}
SHARED = ("phantom_chest", "phantom_skin", "phantom_objects", "phantom_flowers")


def small(dataset, site=None, **changed):
    return load(DataSettings(dataset=dataset, site=site or SETS[dataset], **{**SIZES, **changed}))


def digest(data):
    sha = hashlib.sha256()
    for e in chain.from_iterable(data.splits().values()):
        sha.update(repr((e.question, e.answer, e.labels, e.image_id, e.group)).encode() + e.image.tobytes())
    return sha.hexdigest()


def pixels(data):
    return {e.image_id: e.image.tobytes() for e in chain.from_iterable(data.splits().values())}


@pytest.mark.parametrize("dataset", SETS)
def test_seed_and_site_decide_about_every_byte(dataset):
    assert digest(small(dataset)) == digest(small(dataset)) != digest(small(dataset, seed=1))


@pytest.mark.parametrize("dataset", SETS)
def test_images_are_small_colored_and_cannot_be_written_to(dataset):
    for example in small(dataset).train:
        assert example.image.shape == (SIZE, SIZE, 3)
        assert example.image.dtype == np.uint8
        assert not example.image.flags.writeable


@pytest.mark.parametrize("dataset", SETS)
def test_it_is_procedural_and_every_answer_is_one_that_it_declares(dataset):
    declared = DATASETS.get(dataset)
    assert declared.procedural
    known = {answer.lower() for answer in declared.answers()}
    data = small(dataset, train_size=120)
    used = {word for e in chain.from_iterable(data.splits().values()) for word in (e.labels or (e.answer,))}
    assert {word for word in used if word} <= known
    assert "procedural" in data.source


@pytest.mark.parametrize("dataset", SETS)
def test_splits_have_the_sizes_that_are_set_and_no_image_in_common(dataset):
    data = small(dataset)
    counts = [len(split) for split in data.splits().values()]
    assert sum(counts) == sum(SIZES.values())
    for count, size in zip(counts, SIZES.values(), strict=True):
        assert abs(count - size) <= (4 if any(e.group for e in data.train) else 0)
    units = [{e.unit for e in split} for split in data.splits().values()]
    assert sum(map(len, units)) == len(set.union(*units))


@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
@pytest.mark.parametrize("dataset", SHARED)
def test_sites_that_share_a_set_have_all_of_it_and_nothing_twice(dataset, partition):
    sites = [small(dataset, f"client-{n}", partition=partition, parts=3, alpha=5.0) for n in (1, 2, 3)]
    everything = [e for site in sites for e in chain.from_iterable(site.splits().values())]
    assert len(everything) == 3 * sum(SIZES.values())
    assert len({e.image_id for e in everything}) == len(everything)
    owners = {}
    for number, site in enumerate(sites):
        for e in chain.from_iterable(site.splits().values()):
            assert owners.setdefault(e.unit, number) == number


def test_the_pixels_of_an_image_do_not_depend_on_who_has_it():
    of_three = [pixels(small("phantom_skin", f"client-{n}", partition="iid", parts=3)) for n in (1, 2, 3)]
    again = [pixels(small("phantom_skin", f"client-{n}", partition="dirichlet", parts=3, alpha=5.0)) for n in (1, 2, 3)]
    assert dict(chain.from_iterable(p.items() for p in of_three)) == dict(chain.from_iterable(p.items() for p in again))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "sites"),
    [("phantom_modalities", tuple(MODALITIES)), ("phantom_ultra", tuple(CLIENTS)), ("phantom_skin", tuple(CENTERS))],
)
def test_every_named_site_has_images_of_its_own(dataset, sites):
    assert len({digest(small(dataset, site)) for site in sites}) == len(sites)


@pytest.mark.parametrize("dataset", ["phantom_modalities", "phantom_ultra"])
def test_a_site_that_there_is_not_is_refused_with_those_that_there_are(dataset):
    with pytest.raises(DataError, match=r"'clinic-7'.*choose one of .*ultrasound"):
        small(dataset, "clinic-7")


def test_gray_stays_gray_and_scales_run_from_dark_to_bright():
    ramp = np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 3, axis=2)
    assert np.array_equal(colored(ramp, GRAY), ramp)
    for scale in SCALES.values():
        picture = colored(ramp, scale).astype(int)
        assert tuple(picture[0, 0]) == scale[0]
        assert tuple(picture[0, 255]) == scale[2]
        assert (np.diff(picture.sum(axis=2)[0]) >= 0).all()


def scene(*findings):
    placed = (Finding(kind=k, quadrant=q, bright=b, large=lg) for k, q, b, lg in findings)
    return Scene(region="chest", modality="xray", findings=tuple(placed))


@pytest.mark.parametrize(
    ("findings", "labels"),
    [
        ([], {NOTHING}),
        ([("disc", 0, True, False)], {CLINICAL["disc"], "dense finding", "upper zone"}),
        (
            [("ring", 1, False, True), ("bar", 3, False, False)],
            {CLINICAL["ring"], CLINICAL["bar"], "lucent finding", "large finding", "several findings"}
            | {"upper zone", "lower zone"},
        ),
    ],
)
def test_labels_follow_from_the_findings(findings, labels):
    assert set(labels_of(scene(*findings))) == labels


def test_a_report_denies_only_what_is_not_there_and_names_only_what_is():
    shown = scene(("disc", 0, True, False), ("wedge", 3, False, True))
    words = {word: kind for language in (PLAIN, CLINICAL) for kind, word in language.items() if kind in KIND_LABELS}
    for seed in range(40):
        for sentence in report(shown, np.random.default_rng(seed)).split(" . "):
            kind = next(words[word] for word in sentence.split() if word in words)
            assert (kind in ("disc", "wedge")) is not sentence.startswith("no ")


@pytest.mark.slow
def test_there_are_fifteen_labels_and_frequent_ones_are_more_frequent():
    data = small("phantom_chest", train_size=600)
    assert len(LABELS) == len(data.labels) == 15
    counts = [sum(label in e.labels for e in data.train) for label in KIND_LABELS.values()]
    assert counts[0] > 2 * counts[-1] > 0


@pytest.mark.slow
def test_centers_differ_in_their_classes():
    assert len({e.answer for e in small("phantom_skin", "mskcc", train_size=200).train}) == 3
    assert len({e.answer for e in small("phantom_skin", "rosendahl", train_size=200).train}) == 8


def test_types_of_questions_have_the_shares_that_build_vqa_gives():
    alike = [(one.subject, 100) for one in CLIENTS.values()]
    expected = dict(zip(SHARES, numbers(alike)[list(CLIENTS).index("chest-x-ray")], strict=True))
    data = small("phantom_ultra", "chest-x-ray", train_size=100)
    for kind, count in expected.items():
        assert sum(e.question_type == kind for e in data.train) == count


def test_a_grade_is_not_the_only_thing_that_is_asked():
    kinds = {e.question_type for e in small("phantom_ultra", "fundus-camera", train_size=120).train}
    assert {"disease grading", "modality recognition", "anatomy identification"} == kinds


@pytest.mark.parametrize("dataset", SETS)
def test_a_constant_answer_does_not_do(dataset):
    assert baseline(small(dataset, test_size=60)) < 0.75
