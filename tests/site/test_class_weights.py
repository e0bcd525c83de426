# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Rare classes and labels count more in the loss: `training.class_weights`."""

import numpy as np
import pytest
import torch

from fedpeft import answering
from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.backbones import BackboneSettings
from fedpeft.core.errors import FedpeftError
from fedpeft.data.answer_space import vocabulary_of
from fedpeft.data.answers import AnswerVocabulary
from fedpeft.data.schema import Example, SiteData
from fedpeft.methods.settings import MethodSettings
from fedpeft.site.learner import Learner
from fedpeft.site.loop import parts_of
from fedpeft.site.metrics import thresholds_by_share

ANSWERS = ("a", "a", "a", "a", "b", "c")
LABELS = (("x",), ("x", "y"), ("x",), ())
SETTINGS = TrainingSettings(rounds=1, class_weights="balanced", batch_size=6)


def example(number, answer="", labels=None, unknown=()):
    image = np.full((32, 32, 3), 40 * number, dtype=np.uint8)
    return Example(image, "which?", answer, False, str(number), labels=labels, unknown_labels=unknown)


CLASSES = tuple(example(number, answer) for number, answer in enumerate(ANSWERS))
LABELLED = tuple(example(number, labels=labels) for number, labels in enumerate(LABELS))


class Features(torch.nn.Module):
    hidden_size = 3


def weighed(vocabulary, examples, *, labelled):
    model = answering.build(Features(), vocabulary, SETTINGS, torch.Generator().manual_seed(0), labelled=labelled)
    model.weigh(examples)
    return model


def learner(folder, **training):
    data = SiteData("site", train=CLASSES, validation=(), test=CLASSES, source="drawn here")
    return Learner(
        site="site",
        backbone=BackboneSettings(),
        method=MethodSettings(name="houlsby", aggregation="fedavg"),
        training=TrainingSettings(rounds=1, batch_size=6, **training),
        site_data=data,
        dataset="manifest",
        folder=folder,
    )


def test_classes_have_the_weights_of_the_formula_and_the_loss_is_torchs():
    data = SiteData("site", train=CLASSES, validation=(), test=CLASSES, source="drawn here")
    vocabulary = vocabulary_of(data, ("a", "b", "c", "of another site"))
    model = weighed(vocabulary, CLASSES, labelled=False)
    by_name = dict(zip(vocabulary.answers, model.weights.tolist(), strict=True))
    assert by_name == pytest.approx({"a": 6 / (3 * 4), "b": 6 / (3 * 1), "c": 6 / (3 * 1), "of another site": 1})
    target = torch.tensor([vocabulary.index(answer) for answer in ANSWERS])
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    written_out = -logits.log_softmax(-1)[range(6), target] * torch.tensor([by_name[answer] for answer in ANSWERS])
    assert model.loss(logits, target, reduction="none").allclose(written_out)
    # over all of training the weights' sum is n, so that torch's weighted mean is the same
    torch_mean = torch.nn.functional.cross_entropy(logits, target, model.weights)
    assert model.loss(logits, target).item() == pytest.approx(torch_mean.item())


def test_a_sample_without_a_class_is_left_out_of_the_mean():
    model = weighed(vocabulary_of(SiteData("s", CLASSES, (), CLASSES, ""), None), CLASSES, labelled=False)
    logits, target = torch.randn(3, 3), torch.tensor([0, -1, 2])
    alone = model.loss(logits[[0, 2]], target[[0, 2]])
    assert model.loss(logits, target).item() == pytest.approx(alone.item())


def test_labels_that_apply_count_by_how_many_times_more_often_they_do_not():
    rows = (*LABELLED, example(4, labels=(), unknown=("y",)))
    model = weighed(AnswerVocabulary(("x", "y", "z")), rows, labelled=True)
    assert model.weights.tolist() == pytest.approx([2 / 3, 3, 1])
    logits = torch.randn(2, 3, generator=torch.Generator().manual_seed(2))
    target = torch.tensor([[1, 0, 0], [0, 1, 0]])
    torch_loss = torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2 / 3, 3, 1]))(logits, target.float())
    assert model.loss(logits, target).item() == pytest.approx(torch_loss.item())


def test_thresholds_of_weighted_labels_are_where_the_weighted_loss_moves_their_probabilities():
    """A constant that learns of images whose share of a label is its threshold reaches the threshold with weights."""
    vocabulary = AnswerVocabulary(("x", "y", "z"))
    model = weighed(vocabulary, LABELLED, labelled=True)
    assert thresholds_by_share(vocabulary, LABELLED) == pytest.approx((30 / 70, 14 / 70, 35 / 70))
    target = (torch.arange(70)[:, None] < torch.tensor([30, 14, 35])).long()
    constant = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([constant], max_iter=100, tolerance_grad=1e-9, tolerance_change=0)

    def closure():
        optimizer.zero_grad()
        loss = model.loss(constant.expand(70, 3), target)
        loss.backward()
        return loss

    optimizer.step(closure)
    found = thresholds_by_share(vocabulary, LABELLED, model.weights.tolist())
    assert found == pytest.approx(constant.sigmoid()[0].tolist(), abs=1e-5)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_equal_classes_are_not_weighted(reduction):
    balanced = (CLASSES[0], *CLASSES[4:])
    vocabulary = vocabulary_of(SiteData("s", balanced, (), balanced, ""), None)
    model = weighed(vocabulary, balanced, labelled=False)
    logits, target = torch.randn(4, 3), torch.tensor([0, 1, 2, -1])
    plain = torch.nn.functional.cross_entropy(logits, target, ignore_index=-1, reduction=reduction)
    assert model.loss(logits, target, reduction=reduction).allclose(plain)


@pytest.mark.slow
def test_a_site_weighs_by_its_own_training_split_and_sends_no_weights(tmp_path):
    site, plain = learner(tmp_path / "weighed", class_weights="balanced"), learner(tmp_path / "plain")
    assert plain.answering.weights is None
    assert sorted(site.answering.weights.tolist()) == pytest.approx([0.5, 2, 2])
    keys = {"weights", "answering.weights", "head.weights"}
    update = site.train_round(1, {})
    assert not keys & (set(update.state) | set(site.answering.state_dict()) | set(update.metrics))
    assert update.metrics["loss"] != plain.train_round(1, {}).metrics["loss"]


@pytest.mark.slow
def test_parts_of_a_batch_add_up(tmp_path):
    site = learner(tmp_path, class_weights="balanced")
    (batch,) = site.batches.sample(6, 0)
    site.answering.eval()
    whole, parts = (
        sum(part.loss(part.forward()).item() for part in parts_of(batch, site.answering, size)) for size in (0, 4)
    )
    assert whole == pytest.approx(parts, rel=1e-5)


def test_where_no_classes_are_told_apart_they_cannot_be_weighted():
    from fedpeft.answering.answering import Answering

    with pytest.raises(FedpeftError, match="tells no classes apart: leave it out"):
        Answering(Features(), torch.nn.Identity()).weigh(CLASSES)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"class_weights": "some"}, "class_weights is 'some'"), ({"sampling": "balanced"}, "would count twice")],
)
def test_other_settings_are_refused(settings, reason):
    with pytest.raises(FedpeftError, match=reason):
        TrainingSettings(rounds=1, **{"class_weights": "balanced", **settings})
