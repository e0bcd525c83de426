# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""`training.measure`: the losses at both ends of a round are those of the model, those of its course are those of the
batches, and training stays the same."""

import pytest
import torch

from fedpeft.backbones.vilt import Vilt
from fedpeft.core.metrics import ENDS
from fedpeft.core.seeds import derive
from fedpeft.federate import federate
from fedpeft.site.learner import Learner
from fedpeft.site.loop import Evaluation, course_of
from fedpeft.site.site_state import load_before

pytestmark = pytest.mark.slow

SITES = ("slake", "vqa-rad")
MEASURE, STEPS = "training.measure=start", "training.measure=steps"


def run(sections, folder, *settings):
    """All rounds of a job, and its learners."""
    made = sections("method.probe_samples=5", *settings)
    learners = {site: Learner.from_sections(made, site=site, folder=folder / site) for site in SITES}
    return list(federate(learners)), learners


def by_hand(learner):
    """The mean loss over the probe, one sample after the other."""
    order = torch.randperm(
        len(learner.data.train),
        generator=torch.Generator().manual_seed(derive(learner.training.seed, "measure", learner.site)),
    )
    losses = []
    learner.answering.eval()
    for number in order[:5].tolist():
        (batch,) = learner.batches.draw([learner.data.train[number]], 1)
        with torch.no_grad():
            logits = learner.answering(batch.inputs)
        losses.append(torch.nn.functional.cross_entropy(logits, batch.target).item())
    learner.answering.train()
    return sum(losses) / len(losses)


def test_the_losses_are_those_of_the_model_before_and_after_training(sections, tmp_path, monkeypatch):
    expected = {}
    fit = Learner.fit

    def measured(self, optimizer, round):
        start = by_hand(self)
        losses = fit(self, optimizer, round)
        expected[self.site, round] = start, by_hand(self)
        return losses

    monkeypatch.setattr(Learner, "fit", measured)
    rounds, _ = run(sections, tmp_path, MEASURE)
    for result in rounds:
        for site, update in result.updates.items():
            got = tuple(update.metrics[name] for name in ENDS)
            assert got == pytest.approx(expected[site, result.round], rel=1e-5)
    starts = [result.updates["slake"].metrics["loss_start"] for result in rounds]
    assert len(set(starts)) == len(rounds) == 2


@pytest.mark.parametrize(
    "settings",
    [
        ("method.pia.integration=two_branches",),
        ("method.name=lora", "method.settings.lora.lora_dropout=0.5", "method.aggregation=fedavg"),
        ("method.aggregation=fedavg", "training.personalization=ditto", "training.augmentation=flips"),
        ("method.settings.houlsby.layers=[1]", "training.features_mib=64"),
    ],
    ids=["branches", "dropout", "ditto", "features"],
)
def test_measuring_changes_no_bit_of_a_run(sections, tmp_path, settings):
    (plain, _), (measured, _) = (
        run(sections, tmp_path / name, *settings, *more) for name, more in (("plain", ()), ("measured", (MEASURE,)))
    )
    for one, other in zip(plain, measured, strict=True):
        assert one.state.keys() == other.state.keys()
        assert all(torch.equal(tensor, other.state[key]) for key, tensor in one.state.items())
        for site, update in one.updates.items():
            assert not set(ENDS) & set(update.metrics)
            figures = dict(other.updates[site].metrics)
            assert all(figures.pop(name) > 0 for name in ENDS)
            assert figures == update.metrics


@pytest.mark.parametrize("personalization", ["none", "ditto"])
def test_the_course_of_the_loss_is_that_of_the_batches_and_stays_at_the_site(
    sections, tmp_path, monkeypatch, personalization
):
    settings = ("method.aggregation=fedavg", f"training.personalization={personalization}", "training.batch_size=2")
    batches = {}
    around = Evaluation.measure_training

    def counted(self, train, probe):
        losses = batches.setdefault(id(self), [])
        losses.append([])
        note = self.note
        self.note = lambda loss: losses[-1].append(loss) or note(loss)
        try:
            return around(self, train, probe)
        finally:
            del self.note

    monkeypatch.setattr(Evaluation, "measure_training", counted)
    rounds, learners = run(sections, tmp_path / "measured", *settings, STEPS)
    plain, _ = run(sections, tmp_path / "plain", *settings)
    for one, other in zip(rounds, plain, strict=True):
        assert all(torch.equal(tensor, other.state[key]) for key, tensor in one.state.items())
        assert {site: update.metrics for site, update in one.updates.items()} == {
            site: update.metrics for site, update in other.updates.items()
        }
    for learner in learners.values():
        courses = load_before(learner.folder, 3).losses
        assert list(courses) == ["00001", "00002"]
        for course, losses in zip(courses.values(), batches[id(learner._evaluation)], strict=True):
            assert course.shape == (20,)
            assert [course[0], course[-1]] == pytest.approx([losses[0], losses[-1]])
            assert min(losses) - 1e-6 <= course.min() <= course.max() <= max(losses) + 1e-6


def test_a_course_is_the_mean_of_equal_parts_or_lies_between_few_steps():
    assert course_of([3.0]).tolist() == [3.0] * 20
    assert course_of([0.0, 19.0]).tolist() == pytest.approx(list(range(20)))
    assert course_of(list(range(40))).tolist() == [2 * part + 0.5 for part in range(20)]


def test_a_loss_that_is_no_number_is_not_measured(sections, tmp_path, monkeypatch):
    monkeypatch.setattr("fedpeft.site.loop.mean_loss", lambda answering, batches: float("inf"))
    rounds, _ = run(sections, tmp_path, MEASURE, "method.aggregation=fedavg", "training.rounds=1")
    assert all(update.metrics[name] is None for update in rounds[0].updates.values() for name in ENDS)


def test_what_the_probe_draws_is_not_missing_in_training(sections, tmp_path, monkeypatch):
    """As ViLT draws the order of the patches of images of several sizes, also where it is only measured."""
    forward = Vilt.forward

    def drawing(self, **batch):
        torch.rand(1)
        return forward(self, **batch)

    monkeypatch.setattr(Vilt, "forward", drawing)
    drawn, end = [], Learner._uploaded
    monkeypatch.setattr(Learner, "fit", lambda self, optimizer, round: drawn.append(torch.rand(1).item()) or {})
    monkeypatch.setattr(Learner, "_uploaded", lambda *these: drawn.append(torch.rand(1).item()) or end(*these))
    for number, settings in enumerate([(), (MEASURE,)]):
        made = sections("method.probe_samples=5", *settings)
        Learner.from_sections(made, site="slake", folder=tmp_path / str(number)).train_round(1, {})
    assert drawn[:2] == drawn[2:]
