# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""One data set shared out to sites: nothing twice, nothing lost, no patient at two sites, as uneven as alpha says."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpeft.core.errors import DataError
from fedpeft.data import load, partition, phantom_pictures
from fedpeft.data.partition import NOT_IN_SHARE, drawn, own_parts, with_train_share
from fedpeft.data.schema import Example, SiteData
from fedpeft.data.settings import DataSettings

pytestmark = pytest.mark.slow

LABELS = ("edema", "effusion", "mass", "nodule")
IMAGE = np.zeros((4, 4, 3), np.uint8)


def chosen(partition, parts, number=1, **values):
    return DataSettings(dataset="nih_cxr14", site=f"client-{number}", partition=partition, parts=parts, **values)


def images(count, seed=0, patients=None):
    """Images with up to two labels each, of so many patients."""
    rng = np.random.default_rng(seed)
    return [
        Example(
            IMAGE,
            "",
            "",
            closed=False,
            image_id=f"{number}",
            labels=tuple(sorted(set(rng.choice(LABELS, size=rng.integers(0, 3)).tolist()))),
            group=f"patient {rng.integers(patients)}" if patients else "",
        )
        for number in range(count)
    ]


def shared(settings_of, examples):
    return [own_parts(settings_of(number), examples)[0] for number in range(1, settings_of(1).parts + 1)]


@settings(deadline=None, max_examples=30)
@given(
    partition=st.sampled_from(["iid", "dirichlet"]),
    parts=st.integers(1, 6),
    seed=st.integers(0, 5),
    patients=st.sampled_from([None, 40]),
)
def test_parts_are_disjoint_and_complete(partition, parts, seed, patients):
    examples = images(120, seed, patients)
    found = shared(lambda n: chosen(partition, parts, n, seed=seed, alpha=1.0), examples)
    assert sorted(e.image_id for part in found for e in part) == sorted(e.image_id for e in examples)
    units = [{e.unit for e in part} for part in found]
    assert sum(map(len, units)) == len(set().union(*units))
    assert all(len(part) >= 3 for part in units)


def test_a_patient_with_images_in_train_and_test_is_at_one_site():
    every = images(120, 1, 20)
    train, test = every[:60], every[60:]
    found = [own_parts(chosen("iid", 3, number), train, test) for number in (1, 2, 3)]
    at = [{e.unit for split in splits for e in split} for splits in found]
    assert sum(map(len, at)) == len(set().union(*at))


def test_at_random_the_parts_are_equally_large():
    sizes = [len(part) for part in shared(lambda n: chosen("iid", 7, n), images(100))]
    assert max(sizes) - min(sizes) <= 1


def skew(alpha, seeds=8):
    """Mean total variation between a site's labels and those of all sites."""
    distances = []
    for seed in range(seeds):
        examples = [e for e in images(2000, seed) if e.labels]
        whole = counts(examples)
        parts = shared(lambda n, seed=seed: chosen("dirichlet", 4, n, seed=seed, alpha=alpha), examples)
        distances += [np.abs(counts(part) - whole).sum() / 2 for part in parts]
    return np.mean(distances)


def counts(examples):
    found = np.array([sum(label in e.labels for e in examples) for label in LABELS], float)
    return found / found.sum()


def test_labels_are_the_more_uneven_the_smaller_alpha():
    distances = [skew(alpha) for alpha in (0.1, 0.5, 2.0, 100.0)]
    assert distances == sorted(distances, reverse=True)
    assert distances[0] > 0.25 > 0.05 > distances[-1]


@pytest.mark.parametrize("site", ["client", "client-0", "client-5", "5-client", None])
def test_a_name_must_say_which_part_it_is(site):
    with pytest.raises(DataError, match="does not say which of 4 parts it has; end its name with a number from 1 to 4"):
        own_parts(DataSettings(dataset="nih_cxr14", site=site, partition="iid", parts=4), images(40))


@pytest.mark.parametrize("site", ["client-03", "3", "client3", "ward 3"])
def test_the_number_at_the_end_counts(site):
    one = own_parts(DataSettings(dataset="nih_cxr14", site=site, partition="iid", parts=4), images(40))
    assert one == own_parts(chosen("iid", 4, 3), images(40))


def test_too_many_parts_are_refused():
    with pytest.raises(DataError, match=r"8 images \(or patients\) are too few for parts=4"):
        own_parts(chosen("iid", 4), images(8))
    with pytest.raises(DataError, match=r"alpha=0.001 leaves one of parts=10 with fewer than 3 of 60"):
        own_parts(chosen("dirichlet", 10, alpha=0.001), images(60))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"partition": "random"}, "partition is 'random'"),
        ({"partition": "iid", "parts": 0}, "parts=0 must be a whole number from 1"),
        ({"partition": "dirichlet", "parts": 2, "alpha": 0}, "alpha=0 must be a number from"),
        ({"partition": "dirichlet", "parts": 2, "alpha": float("nan")}, "alpha=nan must be a number from"),
        ({"parts": 3}, "parts=3, and partition='natural' shares nothing out"),
        ({"dataset": "slake", "partition": "iid", "parts": 2}, "partition='iid' is not a setting of dataset='slake'"),
    ],
)
def test_settings_that_make_no_partition_are_refused(values, message):
    with pytest.raises(Exception, match=message):
        DataSettings(**{"dataset": "nih_cxr14", **values})


def used(samples, examples, seed=0):
    return drawn(DataSettings(dataset="nih_cxr14", samples=samples, seed=seed), examples)[0]


@pytest.mark.parametrize("samples", [1, 5])
def test_too_few_samples_for_the_splits_are_refused_with_the_setting_that_is_to_be_raised(samples):
    pairs = [images(40, 1, patients=20), [replace(e, group="last") for e in images(40, 2)]]
    with pytest.raises(DataError, match=f"samples={samples} leaves a split of nih_cxr14 empty.*80.*raise it") as error:
        drawn(DataSettings(dataset="nih_cxr14", samples=samples), *pairs)
    assert error.value.setting == "data.samples"


def test_a_part_of_a_data_set_cuts_no_patient_and_is_in_every_larger_part():
    every = images(300, 1, patients=60)
    sizes = {patient: sum(e.group == patient for e in every) for patient in {e.group for e in every}}
    parts = [used(samples, every) for samples in (30, 100, 200, 300, 400)]
    for samples, part in zip((30, 100, 200), parts, strict=False):
        assert samples - max(sizes.values()) < len(part) <= samples
        assert all(sum(e.group == patient for e in part) == sizes[patient] for patient in {e.group for e in part})
    ids = [{e.image_id for e in part} for part in parts]
    assert ids[0] < ids[1] < ids[2] < ids[3] == ids[4]
    assert used(100, every) == parts[1] != used(100, every, seed=1)
    assert [e for e in every if e.image_id in ids[1]] == list(parts[1]), "in their order"


def test_a_share_of_the_training_split_cuts_no_patient_leaves_the_others_whole_and_says_what_is_left_out():
    every = images(300, 1, patients=60)
    splits = (tuple(examples) for examples in (every, images(20, 2), images(30, 3)))
    data = SiteData("one", *splits, source="made", labels=LABELS)
    shares = (1e-6, 0.2, 0.5, 0.9, 1)
    parts = [with_train_share(data, DataSettings(dataset="nih_cxr14", train_share=share)) for share in shares]
    sizes = Counter(e.group for e in every)
    for share, part in zip(shares[1:], parts[1:], strict=True):
        assert 300 * share - max(sizes.values()) < len(part.train) <= 300 * share
        assert all(count == sizes[group] for group, count in Counter(e.group for e in part.train).items())
    assert len({e.group for e in parts[0].train}) == 1
    ids = [{e.image_id for e in part.train} for part in parts]
    assert ids[0] < ids[1] < ids[2] < ids[3] < ids[4]
    assert all((part.validation, part.test) == (data.validation, data.test) for part in parts)
    assert dict(parts[1].left_out)[NOT_IN_SHARE] == 300 - len(parts[1].train)
    other = with_train_share(data, DataSettings(dataset="nih_cxr14", train_share=0.5, seed=1))
    assert other.train != parts[2].train


@pytest.mark.parametrize("dataset", ["phantom_chest", "phantom_skin"])
def test_sites_that_one_process_reads_one_after_the_other_have_what_each_reads_alone(dataset, monkeypatch):
    divided = []
    found = partition._divided
    monkeypatch.setattr(partition, "_divided", lambda *given: divided.append(given) or found(*given))
    sites = [
        DataSettings(dataset=dataset, site=f"client-{n}", partition="dirichlet", parts=4, alpha=5, seed=seed, **sizes)
        for seed, sizes in ((3, {}), (3, {"train_size": 40}), (4, {}))
        for n in range(1, 5)
    ]
    together = [load(one) for one in sites]
    assert len(divided) == 3, "once for each seed and size"
    for one, data in zip(sites, together, strict=True):
        phantom_pictures._drawn.cache_clear()
        phantom_pictures._parts.cache_clear()
        assert_same(data, load(one))


def assert_same(data, alone):
    for split, examples in data.splits().items():
        for mine, theirs in zip(examples, alone.splits()[split], strict=True):
            assert np.array_equal(mine.image, theirs.image)
            assert replace(mine, image=IMAGE) == replace(theirs, image=IMAGE)


def test_a_share_that_whole_patients_cannot_give_is_said():
    """Of one patient with most images all or none are kept."""
    rows = [replace(one, group="one" if number < 60 else "") for number, one in enumerate(images(100))]
    data = SiteData("north", tuple(rows), (), tuple(rows[:3]), "s", labels=LABELS, metric="macro_f1")
    notes = [with_train_share(data, DataSettings(dataset="manifest", train_share=share)).notes for share in (0.5, 1.0)]
    assert [note.partition(" keeps ")[0] for note in notes[0]] == ["train_share=0.5"]
    assert notes[1] == ()
