# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
import hashlib
from collections import Counter

import numpy as np
import pytest
from grids import each

from fedpeft.data import DataError, DataSettings, load
from fedpeft.data.phantom import SITES, SIZES, site_profile, skewed, swapped_pairs
from fedpeft.data.phantom_scene import (
    CLINICAL,
    CLOSED_TYPES,
    KINDS,
    MODALITIES,
    NOTHING,
    PAIRS,
    PLACES,
    PLAIN,
    QUESTION_TYPES,
    SIZE,
    TEMPLATES,
    Finding,
    Look,
    Scene,
    ask,
    draw_look,
    draw_scene,
    render,
)


def small(site, seed=7, **sizes):
    return load(
        DataSettings(site=site, seed=seed, **{"train_size": 60, "validation_size": 12, "test_size": 30, **sizes})
    )


def digest(data):
    digest = hashlib.sha256()
    for examples in data.splits().values():
        for e in examples:
            digest.update(f"{e.question}|{e.answer}|{e.closed}|{e.image_id}|{e.question_type}".encode())
            digest.update(e.image.tobytes())
    return digest.hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("site", [*SITES, "clinic-7"])
def test_same_seed_gives_the_same_bytes_and_another_seed_others(site):
    assert digest(small(site)) == digest(small(site))
    assert digest(small(site)) != digest(small(site, seed=8))


@pytest.mark.slow
def test_sites_differ_in_bytes_and_in_label_space():
    data = {site: small(site, train_size=300) for site in SITES}
    assert len({digest(d) for d in data.values()}) == len(SITES)
    spaces = [frozenset(e.answer for e in d.train) for d in data.values()]
    assert len(set(spaces)) == len(SITES)
    assert all({"yes", "no"} < space for space in spaces)


@pytest.mark.slow
def test_default_sizes_and_splits_share_no_image():
    data = load(DataSettings(site="vqa-rad", seed=1))
    ids = {name: {e.image_id for e in examples} for name, examples in data.splits().items()}
    assert {name: len(examples) for name, examples in data.splits().items()} == SIZES
    assert not ids["train"] & ids["test"]
    assert not ids["train"] & ids["validation"]
    assert not ids["validation"] & ids["test"]
    pixels = {name: {e.image.tobytes() for e in examples} for name, examples in data.splits().items()}
    assert not (pixels["train"] & pixels["test"])


def test_examples_are_small_rgb_images_with_open_and_closed_questions():
    data = small("slake", train_size=200)
    for e in data.train:
        assert e.image.shape == (SIZE, SIZE, 3)
        assert e.image.dtype == np.uint8
        assert e.closed == (e.question_type in CLOSED_TYPES) == (e.answer in ("yes", "no"))
        assert e.question.endswith("?")
        assert "{" not in e.question
    closed = np.mean([e.closed for e in data.train])
    assert 0.25 < closed < 0.75
    with pytest.raises(ValueError, match="read-only"):
        data.train[0].image[0, 0, 0] = 1


def test_source_says_that_the_data_are_procedural():
    assert "procedural" in small("vqa-med-2020").source


@pytest.mark.slow
def test_unnamed_site_is_the_first_one():
    assert load(DataSettings(seed=7)).site == SITES[0]


@pytest.mark.parametrize("site", SITES)
def test_answers_of_a_site_name_each_concept_once(site):
    profile = site_profile(site)
    assert len(set(profile.answers.values())) == len(profile.answers)
    assert sum(profile.type_weights) == pytest.approx(1)
    assert len(profile.type_weights) == len(QUESTION_TYPES)


def test_clinical_words_of_concepts_are_no_plain_words_and_mean_one_thing():
    plain = set(PLAIN.values())
    plain |= {word for templates in TEMPLATES.values() for template in templates for word in template.split()}
    clinical = list(CLINICAL.values())
    assert not plain & set(clinical)
    assert len(clinical) == len(set(clinical))
    assert PLAIN.keys() == CLINICAL.keys()


def test_concepts_are_shared_by_at_least_three_sites():
    assert all(sum(kind in site_profile(site).kinds for site in SITES) >= 3 for kind in KINDS)


def scene():
    findings = (
        Finding(kind="ring", quadrant=1, bright=True, large=False),
        Finding(kind="disc", quadrant=2, bright=False, large=True),
    )
    return Scene(region="head", modality="ct", findings=findings)


def truth(question_type, words, named, place):
    """Read the answer off the scene in a second way: from the words of the question."""
    where = {finding.kind: finding for finding in scene().findings}
    finding = where.get(named)
    match question_type:
        case "presence":
            return "yes" if finding else "no"
        case "placement":
            return "yes" if PLACES[finding.quadrant] == place else "no"
        case "density":
            return "yes" if ("bright" in words) == finding.bright else "no"
        case "location":
            return PLACES[finding.quadrant]
        case "abnormality":
            return next((kind for kind, f in where.items() if PLACES[f.quadrant] == place), NOTHING)
        case "shade":
            return "bright" if finding.bright else "dark"
    return {"count": "2", "organ": "head", "modality": "ct"}[question_type]


@pytest.mark.parametrize("question_type", QUESTION_TYPES)
def test_answers_are_true_of_the_scene(question_type):
    rng = np.random.default_rng(3)
    for _ in range(60):
        q = ask(scene(), question_type, rng, languages=(PLAIN,))
        words = q.text.split()
        named = next((kind for kind in KINDS if kind in words), None)
        place = next((p for p in PLACES if p in q.text), None)
        assert q.answer == truth(question_type, words, named, place)


@pytest.mark.parametrize("question_type", sorted(CLOSED_TYPES))
def test_yes_and_no_are_equally_frequent(question_type):
    rng = np.random.default_rng(5)
    answers = [
        ask(draw_scene(rng, modality="mr"), question_type, rng, languages=(CLINICAL,)).answer for _ in range(400)
    ]
    assert 0.4 < np.mean([a == "yes" for a in answers]) < 0.6


@each("kind", KINDS)
@each("quadrant", range(4))
def test_a_finding_changes_its_own_quadrant_only(kind, quadrant):
    quiet = Look(air=0.1, body=0.5, contrast=0.3, shade_x=0, shade_y=0, noise=0, speckle=0, blur=0)

    def draw(*findings):
        empty = Scene(region="limb", modality="ct", findings=findings)
        return render(empty, quiet, np.random.default_rng(0)).astype(int)

    finding = Finding(kind=kind, quadrant=quadrant, bright=True, large=True)
    changed = np.argwhere((draw(finding) != draw())[:, :, 0])
    row, column = divmod(quadrant, 2)
    half = SIZE // 2
    assert len(changed) > 40
    assert set(changed[:, 0] // half) == {row}
    assert set(changed[:, 1] // half) == {column}
    assert max(np.ptp(changed, axis=0)) >= 12  # wider than a patch of the backbone


@pytest.mark.parametrize("modality", MODALITIES)
def test_one_scanner_stays_in_the_middle_of_its_modality(modality):
    rng = np.random.default_rng(0)
    wide = [draw_look(modality, rng).body for _ in range(200)]
    narrow = [draw_look(modality, rng, spread=0.5).body for _ in range(200)]
    assert np.std(narrow) < 0.7 * np.std(wide)


BEFORE_THE_DIALS = {  # computed by the code of the commit before 902cb62, which knew neither of them
    "slake": "16a78b965e6b0a29b2c63d2aed24a180bf5018d14bfae7ac9d3787487c55fb81",
    "vqa-rad": "6a0908cdf159659a93ff0b775a9bee20a7645c3cf871507ebbd349b6e29bef9b",
    "vqa-med-2019": "62986d52974f3d8a5d0a14f4fff9825d593d595c69cc0b0fc00e96e45349972d",
    "vqa-med-2020": "4c63749e7828e82dae6ccd292f4b3918cf16050ca1c37dd1048dff04792b2b25",
    "vqa-med-2021": "d0bcc656268c6bd15df868f593c3d656f3575e6a33ad450187e2fa74f734265c",
    "clinic-7": "08363851f3da4bdc17d486a698d189b97c0a128dece390655533ed67f287a640",
}


@pytest.mark.parametrize("site", BEFORE_THE_DIALS)
def test_without_dialects_and_with_a_label_skew_of_1_every_byte_is_as_before_there_were_such_settings(site):
    assert digest(small(site, dialects=0, label_skew=1)) == BEFORE_THE_DIALS[site]
    assert digest(small(site)) == BEFORE_THE_DIALS[site]


@pytest.mark.slow
@pytest.mark.parametrize("dialects", [1, 3, 7])
def test_a_dialect_swaps_words_of_the_question_and_nothing_else(dialects):
    for site in SITES:
        swapped = dict(p for pair in swapped_pairs(site, dialects) for p in (pair, pair[::-1]))
        words = {CLINICAL[a]: CLINICAL[b] for a, b in swapped.items()}
        plain = small(site)
        other = small(site, dialects=dialects)
        for before, after in zip(plain.train, other.train, strict=True):
            assert after.question == " ".join(words.get(word, word) for word in before.question.split())
            assert (after.answer, after.image_id) == (before.answer, before.image_id)
            assert np.array_equal(after.image, before.image)


def test_each_pair_is_swapped_at_about_half_of_the_sites_and_each_at_other_ones():
    for sites, least, most in ((SITES, 2, 3), ([f"clinic-{n}" for n in range(200)], 80, 120)):
        who = [frozenset(site for site in sites if pair in swapped_pairs(site, 7)) for pair in PAIRS]
        assert all(least <= len(swapping) <= most for swapping in who)
        assert len({min(s, frozenset(sites) - s, key=sorted) for s in who}) == len(PAIRS)


@pytest.mark.parametrize("dialects", [-1, 8, True, 1.0])
def test_other_numbers_of_dialects_are_refused(dialects):
    with pytest.raises(DataError, match=r"dialects=.* must be a whole number from 0 to 7"):
        DataSettings(dialects=dialects)


def test_dialects_are_phantoms_alone():
    with pytest.raises(DataError, match="dialects=2 is not a setting of dataset='slake'"):
        DataSettings(dataset="slake", dialects=2)


def shares(examples):
    """How often each type of question stands there, in all; sums to 1."""
    return np.array([np.mean([e.question_type == name for e in examples]) for name in QUESTION_TYPES])


@pytest.mark.slow
def test_a_label_skew_of_0_asks_all_types_equally_often_at_every_site():
    for site in ("vqa-rad", "clinic-7"):  # the first never asks for the modality by itself
        assert skewed(site_profile(site).type_weights, 0) == pytest.approx([1 / len(QUESTION_TYPES)] * 9)
        assert shares(small(site, label_skew=0, train_size=600).train) == pytest.approx([1 / 9] * 9, abs=0.04)


@each("site", [*SITES, "clinic-7"])
@each("label_skew", [1.5, 2, 3.5, 10])
def test_a_label_skew_above_1_is_the_power_of_the_weights(site, label_skew):
    before = np.array(site_profile(site).type_weights)
    after = np.array(skewed(tuple(before), label_skew))
    assert after.sum() == pytest.approx(1)
    assert np.array_equal(after > 0, before > 0)
    used = before > 0
    odds = np.log(after[used] / after.max())
    assert odds == pytest.approx(label_skew * np.log(before[used] / before.max()), abs=1e-9)


@pytest.mark.parametrize("site", [*SITES, "clinic-7"])
def test_a_label_skew_below_1_is_a_share_of_the_weights_and_has_no_jump_at_its_ends(site):
    before = site_profile(site).type_weights
    assert skewed(before, 0.25) == pytest.approx(np.array(before) / 4 + 0.75 / len(before))
    for end in (0, 1):
        assert skewed(before, abs(end - 1e-9)) == pytest.approx(skewed(before, end), abs=1e-8)
    assert skewed(before, 1 + 1e-9) == pytest.approx(before, abs=1e-8)


@pytest.mark.slow
def test_the_heaviest_types_are_asked_more_often_with_more_label_skew_and_each_once_an_image():
    for site in SITES:
        heaviest = np.argsort(site_profile(site).type_weights)[-3:]
        of_heaviest = []
        for label_skew in (0, 1, 10):
            data = small(site, label_skew=label_skew, train_size=150)
            of_heaviest.append(shares(data.train)[heaviest].sum())
            by_image = Counter((e.image_id, e.question_type) for e in data.train)
            assert set(by_image.values()) == {1}
        assert of_heaviest == sorted(of_heaviest)
        assert of_heaviest[-1] > 0.6 > 0.45 > of_heaviest[0]


@pytest.mark.parametrize(
    "label_skew", [-0.1, 10.5, float("nan"), float("inf"), -float("inf"), True, "1", None, 10**400]
)
def test_other_label_skews_are_refused(label_skew):
    with pytest.raises(DataError, match=r"label_skew=.* must be a number from 0 .* to 10; 1 is each site's own mix"):
        DataSettings(label_skew=label_skew)


@pytest.mark.parametrize("dataset", ["slake", "phantom_modalities"])
def test_label_skew_is_phantoms_alone(dataset):
    with pytest.raises(DataError, match=f"label_skew=2 is not a setting of dataset='{dataset}'"):
        DataSettings(dataset=dataset, label_skew=2)
    assert DataSettings(dataset=dataset, label_skew=1).label_skew == 1
