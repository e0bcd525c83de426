# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Images with labels: the loss over known labels, a site that trains and is measured by macro-F1, what is refused."""

import dataclasses

import numpy as np
import pytest
import torch

from fedpeft import answering
from fedpeft.answering.classification import Multilabel
from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.backbones import BackboneSettings
from fedpeft.core.errors import DataError, FedpeftError
from fedpeft.core.metrics import ACCURACY, MACRO_F1
from fedpeft.data.answer_space import vocabulary_of
from fedpeft.data.answers import AnswerVocabulary
from fedpeft.data.partition import centralized
from fedpeft.data.schema import Example, SiteData
from fedpeft.job.site_policy import SitePolicy
from fedpeft.methods.settings import MethodSettings
from fedpeft.site import site_state
from fedpeft.site.learner import Learner
from fedpeft.site.loop import parts_of

LABELS = ("edema", "effusion", "nodule")


def example(number, *labels, unknown=()):
    rng = np.random.default_rng(number)
    image = rng.integers(0, 60, size=(32, 32, 3), dtype=np.uint8)
    for place, label in enumerate(LABELS):
        if label in labels:
            image[8 * place : 8 * place + 8] += 150
    return Example(image, "", "", closed=False, image_id=f"{number}", labels=labels, unknown_labels=tuple(unknown))


def examples(count=24):
    sets = [(), LABELS[:1], LABELS[1:], LABELS]
    return tuple(example(n, *sets[n % 4], unknown=LABELS[:1] if n % 8 == 2 else ()) for n in range(count))


class BackboneStandIn(torch.nn.Module):
    def collate(self, images, questions):
        return {}


def data(**changes):
    rows = examples()
    return dataclasses.replace(
        SiteData("chest", rows, (), rows[:8], "drawn here", labels=LABELS, metric=MACRO_F1), **changes
    )


def learner(folder, site_data=None, name="houlsby", policy=None, head="private", **training):
    return Learner(
        site="chest",
        backbone=BackboneSettings(),
        method=MethodSettings(name=name, aggregation="fedavg", head=head),
        training=TrainingSettings(rounds=2, learning_rate=5e-3, **training),
        site_data=site_data or data(),
        dataset="manifest",
        folder=folder,
        policy=policy,
    )


@pytest.mark.slow
def test_a_site_learns_its_labels(tmp_path):
    site = learner(tmp_path, local_epochs=6, batch_size=8)
    untrained = site.evaluate()
    first = site.train_round(1, {})
    second = site.train_round(2, first.state)
    assert second.metrics["loss"] < first.metrics["loss_first"]
    assert second.metrics["overall"] > untrained["overall"]
    assert second.metrics["open"] is second.metrics["closed"] is None
    assert 0 <= second.metrics["overall"] <= 1
    assert len(site.measured(site.data.test).f1_by_label()) == len(LABELS)
    assert len(site.vocabulary) == len(LABELS)


@pytest.mark.slow
def test_what_is_said_of_questions_does_not_refuse_a_method_here(tmp_path):
    few = data(train=examples(4), test=examples(2))
    site = learner(tmp_path, few, name="feddat_houlsby", answering="generation")
    assert np.isfinite(site.train_round(1, {}).metrics["loss"])


@pytest.mark.slow
def test_thresholds_of_the_validation_split_raise_the_figure_of_rare_labels(tmp_path):
    rows = examples(16)
    default = learner(tmp_path / "a", data(validation=rows))
    tuned = learner(tmp_path / "b", data(validation=rows), thresholds="validation")
    assert default.measured(rows).thresholds is None
    assert len(tuned.measured(rows).thresholds) == len(LABELS)
    assert tuned.evaluate(rows)["overall"] > default.evaluate(rows)["overall"]


@pytest.mark.slow
def test_labels_of_fewer_images_than_the_sites_file_asks_for_are_not_measured(tmp_path):
    for least in (1, 99):
        site = learner(tmp_path, policy=SitePolicy(min_class_images=least, min_test_samples=8))
        assert (site.evaluate()["overall"] is None, site.constant is None) == (least > 1, least > 1)


@pytest.mark.slow
@pytest.mark.parametrize(("head", "announced"), [("private", 10), ("federated", 3)])
def test_a_member_of_sums_announces_round_numbers(tmp_path, head, announced):
    site = learner(tmp_path, head=head, policy=SitePolicy(sum_with=("chest", "north", "west")))
    assert site.announced == {"train": 20, "validation": 0, "test": 10}
    assert site.announced_classes == announced


@pytest.mark.slow
def test_thresholds_of_shares_are_half_of_what_predicting_a_label_everywhere_reaches(tmp_path):
    rows = (*(example(n, *LABELS[: n // 4]) for n in range(8)), example(8, unknown=LABELS[:1]), example(9))
    site = learner(tmp_path, data(train=rows, test=rows), thresholds="share")
    everywhere = {LABELS[0]: 2 * 4 / (9 + 4)}  # tp, of 9 images where it is known
    assert site.measured(rows).thresholds == pytest.approx((everywhere[LABELS[0]] / 2, 0.5, 0.5))
    update = site.train_round(1, {})
    record = site_state.load_before(tmp_path, 2).record
    assert dict(zip(record.answers, record.thresholds, strict=True))[LABELS[0]] == pytest.approx(4 / 13)
    assert update.metrics["validation"] is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "expected"),
    [({"class_weights": "balanced"}, (1 / 5, 3 / 7)), ({"sampling": "balanced"}, None)],
    ids=["weighted", "balanced"],
)
def test_thresholds_of_shares_follow_what_moves_probabilities(tmp_path, settings, expected):
    """Weights as their formula says (3 of 4 images and 1 of 4), and without a formula one half."""
    rows = tuple(example(number, *labels) for number, labels in enumerate((LABELS[:1], LABELS[:1], LABELS[:2], ())))
    site = learner(tmp_path, data(train=rows, test=rows), thresholds="share", **settings)
    assert site.measured(rows).thresholds == (expected and pytest.approx((*expected, 1 / 2)))


def way():
    return Multilabel(torch.nn.Identity(), torch.nn.Identity(), AnswerVocabulary(LABELS))


def test_the_loss_is_the_mean_over_known_labels_and_then_over_images():
    logits = torch.tensor([[0.3, -1.0, 2.0], [0.5, 0.1, -0.2], [1.0, 1.0, 1.0]])
    target = torch.tensor([[1, 0, -1], [0, 1, 1], [-1, -1, -1]])
    terms = torch.nn.functional.softplus(torch.where(target == 1, -logits, logits))
    expected = [terms[0, :2].mean(), terms[1].mean()]
    losses = way().loss(logits, target, reduction="none")
    assert torch.allclose(losses, torch.stack([*expected, torch.tensor(0.0)]))
    assert torch.isclose(way().loss(logits, target), sum(expected) / 2)
    assert torch.isclose(way().loss(logits, target, reduction="sum"), sum(expected))


def test_a_batch_without_a_known_label_has_no_loss():
    logits = torch.ones(2, 3, requires_grad=True)
    loss = way().loss(logits, torch.full((2, 3), -1))
    loss.backward()
    assert (loss.item(), logits.grad.abs().sum().item()) == (0, 0)


def test_parts_of_a_batch_have_the_loss_of_the_whole():
    model = way()
    model.backbone.collate = lambda images, questions: {"x": torch.randn(len(images), 3)}
    rows = [*examples(7), example(99, unknown=LABELS)]
    batch = model.collate([row.image for row in rows], rows)
    model.forward = lambda inputs: inputs["x"]
    whole, *_ = parts_of(batch, model)
    parts = parts_of(batch, model, micro_batch=3)
    assert torch.isclose(sum(part.loss(part.forward()) for part in parts), whole.loss(whole.forward()))
    teacher = torch.randn(8, 3)
    taught = zip(parts, teacher.split(3), strict=True)
    assert torch.isclose(
        sum(part.share * part.divergence(part.forward(), rows) for part, rows in taught),
        whole.divergence(whole.forward(), teacher),
    )


def test_a_backbone_that_answers_in_words_is_refused():
    settings = TrainingSettings(rounds=1)
    backbone = torch.nn.Identity()
    backbone.answering = "ranking"
    with pytest.raises(FedpeftError, match="images have labels, and this backbone answers only by ranking"):
        answering.build(backbone, AnswerVocabulary(LABELS), settings, torch.Generator(), labelled=True)


def test_another_metric_is_refused(tmp_path):
    with pytest.raises(FedpeftError, match="measured by accuracy, and this way of answering only by macro_f1"):
        learner(tmp_path, data(metric=ACCURACY))


@pytest.mark.parametrize(
    "row",
    [
        Example(np.zeros((8, 8, 3), np.uint8), "why?", "yes", closed=True, image_id="q"),
        example(1, "fracture"),
        example(1, unknown=["fracture"]),
    ],
)
def test_an_example_that_does_not_fit_the_labels_is_refused(row):
    with pytest.raises(DataError, match=r"labels that it does not declare, or questions among images with labels"):
        data(train=(*examples(), row))


def test_images_with_labels_among_questions_are_refused():
    with pytest.raises(DataError, match="labels that it does not declare"):
        data(labels=())


def test_the_labels_of_a_federated_head_are_those_of_the_data_set():
    assert vocabulary_of(data(), LABELS).answers == LABELS
    with pytest.raises(DataError, match="has 3 labels, which are not the 2 answers of the federated head"):
        vocabulary_of(data(), LABELS[:2])


def test_sites_of_another_kind_are_not_pooled():
    one, other = data(), data(site="other", labels=(*LABELS, "mass"))
    assert centralized("all", [one, one]).labels == LABELS
    with pytest.raises(DataError, match="pools 'chest', 'other', which have other labels"):
        centralized("all", [one, other])


@pytest.mark.slow
def test_without_a_validation_split_thresholds_are_those_of_shares(tmp_path):
    rows = examples(16)
    by_share = learner(tmp_path / "a", data(train=rows, test=rows), thresholds="share")
    validated = learner(tmp_path / "b", data(train=rows, test=rows), thresholds="validation")
    assert not validated.data.validation
    assert validated.measured(rows).thresholds == by_share.measured(rows).thresholds != (0.5, 0.5, 0.5)


def test_a_label_that_the_head_lacks_is_refused_and_not_taken_for_its_last_one():
    way = Multilabel(BackboneStandIn(), torch.nn.Linear(4, 2), AnswerVocabulary(LABELS[:2]))
    assert way.collate([None], [example(0, "edema", unknown=["effusion"])]).target.tolist() == [[1, -1]]
    for wrong in (example(0, "nodule"), example(0, "edema", unknown=["nodule"])):
        with pytest.raises(DataError, match="the label 'nodule' is not one of this model's 2"):
            way.collate([None], [wrong])
