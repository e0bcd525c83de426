# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a site's model is measured by, against the formulas written out, and where there is nothing to measure."""

from fractions import Fraction
from itertools import product
from types import SimpleNamespace

import pytest
import torch

from fedpeft.answering.answering import Batch
from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.core.errors import FedpeftError
from fedpeft.core.metrics import ACCURACY, BALANCED_ACCURACY, MACRO_F1, TITLES, title_of
from fedpeft.data.answers import AnswerVocabulary
from fedpeft.data.schema import Example, SiteData
from fedpeft.job.site_policy import SitePolicy
from fedpeft.site.loop import Evaluation
from fedpeft.site.metrics import MEASURES_OF_ANSWERS, MacroF1, best_threshold, check_metric, measured

CPU = torch.device("cpu")
NEXT = 9  # an answer that is never right
LABELLED = [[1, -1], [0, -1], [-1, 1], [-1, -1], [1, -1]]  # of five images
SPLITS = {"train": "abc", "validation": "aaab", "test": "aabbc"}


class Fixed:
    """A model whose answers stand in the batch's inputs."""

    metrics = tuple(TITLES)

    def __init__(self, labelled=False):
        self.labelled = labelled

    def eval(self):
        return self

    def right(self, batch):
        return batch.inputs["chosen"] == batch.target

    def chosen(self, batch):
        return batch.inputs["chosen"]

    def probabilities(self, batch):
        return batch.inputs["probabilities"]


def batches(size=3, **columns):
    """Columns of n samples, in batches."""
    count = len(columns["target"])
    columns = {name: torch.as_tensor(values) for name, values in columns.items()}
    closed = columns.pop("closed", torch.zeros(count, dtype=torch.bool))
    target, accepted = columns.pop("target"), columns.pop("accepted", None)
    for start in range(0, count, size):
        rows = slice(start, start + size)
        yield Batch(
            {name: values[rows] for name, values in columns.items()},
            target[rows],
            None if accepted is None else accepted[rows],
            closed[rows],
        )


def figures(metric, min_images=1, min_samples=0, unseen=0, **columns):
    model, least = Fixed(labelled="probabilities" in columns), {"min_images": min_images, "min_samples": min_samples}
    return measured(model, batches(**columns), device=CPU, metric=metric, unseen=unseen, **least).figures()


def test_accuracy_is_the_share_of_right_answers_also_of_open_and_closed_questions():
    columns = {"target": [0, 1, 2, 2, 1], "chosen": [0, 1, 1, 2, 0], "closed": [True, False, False, False, True]}
    assert figures(ACCURACY, **columns) == pytest.approx({"overall": 0.6, "open": 2 / 3, "closed": 0.5})
    assert figures(ACCURACY, target=[0], chosen=[0]) == {"overall": 1.0, "open": 1.0, "closed": None}


def test_balanced_accuracy_is_the_mean_recall_of_the_classes_that_the_split_has():
    assert figures(BALANCED_ACCURACY, target=[0, 0, 0, 2], chosen=[0, 0, 1, 2])["overall"] == pytest.approx(5 / 6)
    assert figures(BALANCED_ACCURACY, target=[1, 1], chosen=[1, 1])["overall"] == 1.0


@pytest.mark.parametrize("metric", [BALANCED_ACCURACY, MACRO_F1])
@pytest.mark.parametrize("counts", [(3, 3, 3, 3), (2, 4, 6)])
def test_figures_that_are_equal_as_fractions_are_equal(metric, counts):
    by_fraction = {}
    target = [number for number, count in enumerate(counts) for _ in range(count)]
    for right in product(*(range(count + 1) for count in counts)):
        chosen = [n if i < r else NEXT for n, (c, r) in enumerate(zip(counts, right, strict=True)) for i in range(c)]
        recall = [Fraction(r, c) for r, c in zip(right, counts, strict=True)]
        parts = recall if metric == BALANCED_ACCURACY else [2 * share / (1 + share) for share in recall]
        overall = figures(metric, target=target, chosen=chosen)["overall"]
        assert by_fraction.setdefault(sum(parts) / len(parts), overall) == overall
    assert all(figure == pytest.approx(float(exact), abs=1e-9) for exact, figure in by_fraction.items())


def test_a_class_that_training_does_not_have_is_never_recognized():
    assert figures(BALANCED_ACCURACY, target=[-1, 0], chosen=[0, 0], unseen=1)["overall"] == 0.5
    assert figures(BALANCED_ACCURACY, target=[-1, -1, 0], chosen=[0, 0, 0], unseen=2)["overall"] == pytest.approx(1 / 3)
    assert figures(BALANCED_ACCURACY, target=[-1], chosen=[0], unseen=1)["overall"] == 0.0


def test_another_accepted_answer_is_recognized_as_the_first_that_training_has():
    several = {"target": [-1, 0, 1], "chosen": [1, 1, 0], "accepted": [[1, -1], [0, 1], [1, -1]]}
    assert figures(BALANCED_ACCURACY, **several)["overall"] == pytest.approx((1 / 2 + 1 / 1) / 2)
    assert figures(BALANCED_ACCURACY, target=[-1], chosen=[0], accepted=[[]], unseen=1)["overall"] == 0


def test_a_class_or_label_with_few_images_has_no_part_in_the_mean():
    classes = {"target": [0, 0, 1, 2, 2], "chosen": [0, 1, 0, 2, 2]}
    assert figures(BALANCED_ACCURACY, min_images=2, **classes)["overall"] == 0.75
    assert figures(BALANCED_ACCURACY, min_images=3, **classes)["overall"] is None
    labels = {"target": [[1, 1], [1, 0]], "probabilities": [[0.9, 0.1], [0.9, 0.1]]}
    assert figures(MACRO_F1, min_images=2, **labels)["overall"] == 1.0
    assert figures(MACRO_F1, min_images=3, **labels)["overall"] is None


@pytest.mark.parametrize("metric", [BALANCED_ACCURACY, MACRO_F1])
@pytest.mark.parametrize(
    ("least", "counted"), [({}, 5), ({"min_images": 2}, 4), ({"min_images": 3}, 0), ({"unseen": 1}, 5)]
)
def test_a_mean_over_answers_of_few_counted_samples_is_no_figure(metric, least, counted):
    """Neither those of answers with few images count, nor those of answers that training lacks."""
    columns = {"target": [-1, 0, 0, 1, 2, 2], "chosen": [0, 0, 0, 1, 2, 2], **least}
    free, enough, few = (figures(metric, min_samples=n, **columns)["overall"] for n in (0, counted, counted + 1))
    assert free == enough
    assert few is None


@pytest.mark.parametrize(("min_images", "counted"), [(1, 4), (2, 3), (3, 0)])
def test_a_mean_over_labels_of_few_images_for_which_one_is_known_is_no_figure(min_images, counted):
    """Neither does an image count of which only labels of fewer images are known."""
    columns = {"target": LABELLED, "probabilities": torch.full((5, 2), 0.9), "min_images": min_images}
    free, enough, few = (figures(MACRO_F1, min_samples=n, **columns)["overall"] for n in (0, counted, counted + 1))
    assert free == enough
    assert (free is None) == (counted == 0)
    assert few is None


@pytest.mark.parametrize(
    ("limits", "test", "validation"),
    [
        (None, 1.0, 1.0),
        ({"min_test_samples": 4, "min_validation_samples": 3}, 1.0, 1.0),
        ({"min_test_samples": 5, "min_validation_samples": 3}, None, 1.0),
        ({"min_test_samples": 4, "min_validation_samples": 4}, 1.0, None),
    ],
)
@pytest.mark.parametrize("metric", [BALANCED_ACCURACY, MACRO_F1])
def test_the_figures_of_a_round_are_of_as_many_samples_as_the_policy_says(metric, limits, test, validation):
    """Answers of fewer images than min_class_images are none of them: of 5 test samples 4 count, 3 of 4 validated."""
    rows = {
        name: tuple(Example(None, "", one, False, f"{number}") for number, one in enumerate(answers))
        for name, answers in SPLITS.items()
    }
    data = SiteData("site", rows["train"], rows["validation"], rows["test"], "drawn here", metric=metric)
    vocabulary = AnswerVocabulary(sorted({*SPLITS["train"]}))
    parts = {"vocabulary": vocabulary, "answering": Fixed(), "backbone": None, "features": None}
    model = SimpleNamespace(training=TrainingSettings(rounds=1), device=CPU, **parts)

    def answered(examples, size):
        numbers = [vocabulary.index(one.answer) for one in examples]
        return batches(target=numbers, chosen=numbers)

    policy = limits and SitePolicy(min_class_images=2, **limits)
    figures, _ = Evaluation(model, data, answered, policy=policy).measure_round()
    assert (figures["overall"], figures["validation"]) == (test, validation)


@pytest.mark.parametrize("metric", [BALANCED_ACCURACY, MACRO_F1])
def test_a_class_whose_questions_are_about_one_image_is_in_no_mean(metric):
    rows = tuple(Example(None, "", "ab"[number % 2], False, f"{number % 2 or number}") for number in range(6))
    data = SiteData("site", rows, (), rows, "drawn here", metric=metric)
    vocabulary = AnswerVocabulary(["a", "b"])
    parts = {"vocabulary": vocabulary, "answering": Fixed(), "backbone": None, "features": None}
    model = SimpleNamespace(training=TrainingSettings(rounds=1), device=CPU, **parts)

    def answered(examples, size):
        return batches(target=[vocabulary.index(one.answer) for one in examples], chosen=[0] * len(examples))

    wanted = {}
    for least in (1, 2):
        figures, _ = Evaluation(
            model, data, answered, policy=SitePolicy(min_class_images=least, min_test_samples=1)
        ).measure_round()
        wanted[least] = figures["overall"]
    alone = {BALANCED_ACCURACY: 1.0, MACRO_F1: 2 / 3}[metric]  # of a alone
    assert wanted == {1: pytest.approx(alone / 2), 2: pytest.approx(alone)}


def by_hand(probabilities, target):
    """F1 = 2 tp / (2 tp + fp + fn) of each label that occurs."""
    scores = []
    for label in range(len(target[0])):
        pairs = [(p[label] >= 0.5, t[label]) for p, t in zip(probabilities, target, strict=True) if t[label] >= 0]
        tp = sum(p and t for p, t in pairs)
        wrong = sum(p != bool(t) for p, t in pairs)
        if any(t for _, t in pairs):
            scores.append(2 * tp / (2 * tp + wrong))
    return sum(scores) / len(scores) if scores else None


@pytest.mark.parametrize("seed", range(5))
def test_macro_f1_is_the_mean_over_labels_that_occur_of_known_images(seed):
    generator = torch.Generator().manual_seed(seed)
    probabilities = torch.rand(11, 4, generator=generator)
    target = torch.randint(-1, 2, (11, 4), generator=generator)
    target[:, 3] = 0
    expected = by_hand(probabilities.tolist(), target.tolist())
    assert figures(MACRO_F1, target=target, probabilities=probabilities)["overall"] == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(8))
def test_a_threshold_has_the_highest_f1_of_all(seed):
    generator = torch.Generator().manual_seed(seed)
    probabilities = torch.randint(0, 8, (15,), generator=generator) / 8  # with equal ones
    target = torch.randint(-1, 2, (15,), generator=generator)

    def f1(threshold):
        return by_hand([[float(p >= threshold)] for p in probabilities], [[int(t)] for t in target])

    chosen = best_threshold(probabilities, target)
    best = max(f1(p) for p in probabilities)
    assert f1(chosen) == pytest.approx(best)
    assert chosen == max(p for p in probabilities if f1(p) == pytest.approx(best))


def test_thresholds_come_from_the_validation_split():
    validation, test = MacroF1(), MacroF1()
    for batch in batches(target=[[1, 0], [0, 0]], probabilities=[[0.2, 0.3], [0.1, 0.3]]):
        validation.add(Fixed(), batch)
    for batch in batches(target=[[1, 1], [1, 0]], probabilities=[[0.25, 0.6], [0.15, 0.4]]):
        test.add(Fixed(), batch)
    assert test.f1_by_label() == [0.0, 1.0]
    test.tune(validation)
    assert test.f1_by_label() == [pytest.approx(2 / 3), 1.0], "0.2 of the first label, 0.5 of the one that nobody has"


@pytest.mark.parametrize("seed", range(4))
def test_the_macro_f1_of_answers_is_that_of_each_answer_against_all_others(seed):
    f1_score = pytest.importorskip("sklearn.metrics").f1_score
    target, chosen = torch.randint(0, 5, (2, 17), generator=torch.Generator().manual_seed(seed))
    expected = f1_score(target, chosen, labels=sorted(set(target.tolist())), average="macro", zero_division=0)
    found = figures(MACRO_F1, target=target, chosen=chosen)
    assert found == {"overall": pytest.approx(expected), "open": None, "closed": None}


ANSWERS = [  # what, the questions, F1 of their answers
    ("each right", {"target": [0, 1, 2], "chosen": [0, 1, 2]}, [1, 1, 1]),
    ("one answer for all", {"target": [0, 0, 1], "chosen": [0, 0, 0]}, [4 / 5, 0]),
    ("another that is accepted", {"target": [0, 1], "chosen": [1, 1], "accepted": [[0, 1], [1, -1]]}, [1, 1]),
    ("an answer that training lacks", {"target": [-1, 0], "chosen": [0, 0], "unseen": 1}, [2 / 3, 0]),
    ("one of them, accepted by another name", {"target": [-1, 0], "chosen": [0, 0], "accepted": [[0], [0]]}, [1]),
    ("an answer of few questions", {"target": [0, 0, 1], "chosen": [0, 1, 0], "min_images": 2}, [1 / 2]),
    ("none with enough questions", {"target": [0, 1], "chosen": [0, 1], "min_images": 2}, []),
]


@pytest.mark.parametrize(("columns", "scores"), [row[1:] for row in ANSWERS], ids=[row[0] for row in ANSWERS])
def test_the_macro_f1_of_answers_is_the_mean_over_those_that_occur(columns, scores):
    expected = pytest.approx(sum(scores) / len(scores)) if scores else None
    assert figures(MACRO_F1, **columns)["overall"] == expected


def test_without_any_positive_label_nothing_is_measured():
    assert figures(MACRO_F1, target=[[0, -1]], probabilities=[[0.9, 0.9]])["overall"] is None


def test_every_metric_has_a_measure_and_a_title():
    assert set(MEASURES_OF_ANSWERS) == set(TITLES)
    assert title_of([ACCURACY, MACRO_F1, ACCURACY]) == "accuracy or macro-F1"
    assert title_of([]) == "accuracy"


def test_a_metric_that_a_way_of_answering_does_not_have_is_refused():
    way = Fixed()
    way.metrics = (MACRO_F1,)
    with pytest.raises(FedpeftError, match="measured by accuracy, and this way of answering only by macro_f1"):
        check_metric(ACCURACY, way)
