# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What an epoch draws: balanced classes, turned images, and batches of which size."""

from collections import Counter
from itertools import pairwise, product

import numpy as np
import pytest
import torch

from fedpeft.answering.answering import Batches, largest_batch
from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.core.errors import FedpeftError
from fedpeft.data.schema import Example, SiteData, balancing
from fedpeft.site.site_batches import SiteBatches

FRAME = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)


def example(number, answer="", labels=None):
    return Example(
        image=FRAME, question="", answer=answer, closed=False, image_id=str(number), labels=labels and tuple(labels)
    )


def drawn(train, **settings):
    """The images and examples of ten epochs of four samples a step."""
    training = TrainingSettings(rounds=1, batch_size=4, **settings)
    data = SiteData(site="site", train=tuple(train), validation=(), test=tuple(train), source="")
    batches = SiteBatches("site", data, lambda *rows: rows, training, device=torch.device("cpu"))
    rows = [list(zip(*batch, strict=True)) for seed in range(10) for batch in batches.training(seed)]
    return [row for batch in rows for row in batch]


@pytest.mark.parametrize(
    ("examples", "weights"),
    [
        ([example(0, "a"), example(1, "a"), example(2, "b")], [1 / 2, 1 / 2, 1]),
        ([example(0, labels=["x"]), example(1, labels=["x", "y"]), example(2, labels=["x"])], [1 / 3, 1, 1 / 3]),
        ([Example(FRAME, "", "", False, str(i), labels=()) for i in range(2)], [1 / 2, 1 / 2]),
    ],
    ids=["classes", "the rarest label", "no label applies"],
)
def test_weights_are_one_over_the_number_of_a_class(examples, weights):
    assert balancing(examples) == weights


@pytest.mark.parametrize(("sampling", "low", "high"), [("default", 40, 40), ("balanced", 170, 230)])
def test_balanced_sampling_draws_a_rare_class_as_often_as_a_common_one(sampling, low, high):
    train = [example(number, "rare" if number < 4 else "common") for number in range(40)]
    rows = drawn(train, sampling=sampling)
    assert len(rows) == 400
    assert low <= Counter(one.answer for _, one in rows)["rare"] <= high


@pytest.mark.parametrize(
    ("augmentation", "views"),
    [
        ("none", [FRAME]),
        ("mirror", [FRAME, FRAME[:, ::-1]]),
        ("flips", [FRAME, FRAME[:, ::-1], FRAME[::-1], FRAME[::-1, ::-1]]),
    ],
)
@pytest.mark.parametrize("sampling", ["default", "balanced"])
def test_an_epoch_shows_images_in_every_view_of_its_augmentation_and_no_other(augmentation, views, sampling):
    rows = drawn([example(number, "a") for number in range(8)], augmentation=augmentation, sampling=sampling)
    assert {np.asarray(image).tobytes() for image, _ in rows} == {view.tobytes() for view in views}
    if sampling == "default":
        assert set(Counter(one.image_id for _, one in rows).values()) == {10}


def test_an_epoch_follows_from_its_seed():
    train = [example(number, "ab"[number % 2]) for number in range(8)]
    first, second = (
        [
            (np.asarray(image).tolist(), one.image_id)
            for image, one in drawn(train, sampling="balanced", augmentation="flips")
        ]
        for _ in range(2)
    )
    assert first == second


class Rows(list):
    """Examples of a batch."""

    def to(self, device):
        return self


def test_the_largest_batch_is_the_largest_that_an_epoch_draws():
    rows = [example(number) for number in range(13)]
    for count, size, smallest in product(range(1, 14), range(1, 7), range(1, 8)):
        batches = Batches(rows[:count], lambda _, examples: examples, batch_size=size, smallest=smallest)
        sizes = [len(batch) for batch in batches]
        assert (len(batches), sum(sizes)) == (len(sizes), count), (count, size, smallest)
        assert largest_batch(count, size, smallest) == max(sizes), (count, size, smallest)


@pytest.mark.parametrize(
    ("count", "smallest", "settings", "held"),
    [
        (8, 2, {}, 4),
        (9, 2, {}, 5),
        (9, 1, {}, 4),
        (3, 2, {}, 3),
        (9, 2, {"micro_batch": 2}, 2),
        (9, 2, {"reuse_passes": True}, 5 + 5),
        (9, 2, {"reuse_passes": True, "micro_batch": 2}, 2 + 5),
        (3, 2, {"reuse_passes": True}, 3 + 3),
        (1, 2, {"reuse_passes": True, "micro_batch": 3}, 1 + 1),
    ],
)
def test_the_largest_step_holds_what_a_step_of_the_training_may_hold(count, smallest, settings, held):
    """Samples come again where there are fewer than that, each as often as the others."""
    training = TrainingSettings(rounds=1, batch_size=4, **settings)
    train = tuple(example(number) for number in range(count))
    data = SiteData(site="site", train=train, validation=(), test=train, source="")
    collate, cpu = lambda _, examples: Rows(examples), torch.device("cpu")
    step = SiteBatches("site", data, collate, training, device=cpu, smallest=smallest).largest_step(0)
    times = Counter(one.image_id for one in step)
    assert len(step) == held
    assert max(times.values()) == -(-held // count)


def probes(count, *, site_seed):
    """The images in the lasting sample of a job that asks for `count` of 40, by the seed of its training."""
    train = tuple(example(number) for number in range(40))
    data = SiteData(site="site", train=train, validation=(), test=train, source="")
    collate, cpu, found = lambda _, examples: Rows(examples), torch.device("cpu"), {}
    for seed in (0, 1):
        training = TrainingSettings(rounds=1, seed=seed)
        batches = SiteBatches("site", data, collate, training, device=cpu, site_seed=site_seed)
        found[seed] = {one.image_id for batch in batches.lasting_sample(count) for one in batch}
    return found


def test_no_two_jobs_have_losses_of_samples_that_differ_by_few_at_a_site_with_a_policy():
    asked = [probes(count, site_seed=7) for count in range(1, 43)]
    assert all(one[0] == one[1] for one in asked), "whatever the job's seed"
    assert asked[10 - 1] == asked[11 - 1] == asked[8 - 1]
    assert asked[39 - 1] == asked[40 - 1] == asked[42 - 1] == asked[32 - 1]
    for fewer, more in pairwise(one[0] for one in asked):
        assert fewer <= more
        assert len(more) in (len(fewer), 2 * len(fewer))
    assert asked[8 - 1] != probes(8, site_seed=8), "and another site's are others"


@pytest.mark.parametrize("count", [1, 10, 11, 40])
def test_without_a_policy_a_lasting_sample_has_as_many_as_are_asked_for_by_the_jobs_seed(count):
    found = probes(count, site_seed=None)
    assert [len(one) for one in found.values()] == [count, count]
    assert (found[0] == found[1]) == (count == 40)


@pytest.mark.parametrize("setting", ["sampling", "augmentation"])
def test_another_value_is_refused(setting):
    with pytest.raises(FedpeftError, match=f"{setting} is 'often'"):
        TrainingSettings(rounds=1, **{setting: "often"})


def test_the_former_name_of_the_default_is_read():
    today, former = (TrainingSettings(rounds=1, sampling=name, attention=name) for name in ("default", "usual"))
    assert today == former
