# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""How much of the global adapter a site takes, and whether it takes a plan: method.pia.share and method.pia.accept."""

import pytest
import torch
from small_federations import learners_of

from fedpeft.alignment import PIASettings, settings
from fedpeft.alignment.client_pia import align_global, start_merged, with_order
from fedpeft.alignment.settings import FORMER_INTEGRATIONS, SHARES, _say_former_name
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import group_by_place
from fedpeft.core.settings import build
from fedpeft.core.states import equal
from fedpeft.federate import federate
from fedpeft.methods.settings import MethodSettings
from fedpeft.site import client_round, site_state
from fedpeft.site import learner as learner_module
from fedpeft.site.client_round import Mixed, accepted_global, chosen_share, own_trained
from fedpeft.site.learner import Learner
from fedpeft.site.loop import OPTIMIZERS
from fedpeft.site.site_batches import SiteBatches

pytestmark = pytest.mark.slow

SITES = ("slake", "vqa-rad")
# adapters from different seeds and a high rate, so that alignment really moves neurons
LIVELY = ("method.initialization=own", "training.learning_rate=0.3", "training.rounds=3")


def last(sections, folder):
    return list(federate(learners_of(sections, folder)))[-1].state


@pytest.mark.parametrize("integration", ["weight_space", "two_branches", "frozen_half"])
def test_a_whole_share_without_server_pia_is_fedavg_to_the_bit(sections, tmp_path, integration):
    whole = ["method.pia.share=1", "method.pia.server=false", f"method.pia.integration={integration}"]
    fedavg = last(sections(*LIVELY, "method.aggregation=fedavg"), tmp_path / "a")
    assert equal(fedavg, last(sections(*LIVELY, *whole), tmp_path / "b"))


@pytest.mark.parametrize("integration", ["weight_space", "two_branches", "frozen_half"])
def test_a_ramp_that_stays_at_half_is_half_to_the_bit(sections, tmp_path, integration):
    chosen = [*LIVELY, f"method.pia.integration={integration}"]
    ramp = [*chosen, "method.pia.share=[0.5, 0.5]"]
    assert equal(last(sections(*chosen), tmp_path / "a"), last(sections(*ramp), tmp_path / "b"))


@pytest.mark.parametrize("share", ["0.8", "[1, 0.6]", "validation"])
@pytest.mark.parametrize("accept", ["true", "places"])
@pytest.mark.parametrize("integration", ["weight_space", "two_branches", "frozen_half"])
def test_each_choice_runs_and_repeats_to_the_bit(sections, tmp_path, share, accept, integration):
    pia = [f"method.pia.{name}={value}" for name, value in (("share", share), ("accept", accept))]
    chosen = sections(*LIVELY, *pia, f"method.pia.integration={integration}", "training.rounds=2")
    assert equal(last(chosen, tmp_path / "a"), last(chosen, tmp_path / "b"))


def test_a_ramp_goes_from_the_first_round_to_the_last():
    shares = [PIASettings(share=(1.0, 0.6)).share_in(round, 5) for round in range(1, 6)]
    assert shares == pytest.approx([1, 0.9, 0.8, 0.7, 0.6])
    assert PIASettings(share=0.8).share_in(3, 5) == 0.8
    assert PIASettings(share="validation").share_in(3, 5) is None
    assert PIASettings(share=(1.0, 0.6)).share_in(1, 1) == 1


@pytest.fixture(scope="module")
def two(sections, tmp_path_factory):
    """A learner, its own adapter and one from elsewhere, and the loss of an adapter on its probe samples."""
    folder = tmp_path_factory.mktemp("two")
    made = learners_of(sections(*LIVELY), folder)
    own, other = (learner.train_round(1, {}).state for learner in made.values())
    learner = made["slake"]
    probe = learner.probe(2)
    return learner, own, other, probe


@pytest.mark.parametrize("integration", ["weight_space", "two_branches", "frozen_half"])
def test_half_and_every_plan_is_the_papers_mean_to_the_bit(two, integration):
    """The aligned global adapter and the site's own, added and halved: before training, or after it."""
    learner, own, other, _ = two
    settings = PIASettings(integration=integration, support="weights", share=0.5, accept=False)
    aligned, _ = align_global(other, own, settings=settings)
    assert not equal(aligned, other)
    samples = client_round.Samples(probe=list, validation=list, loss=lambda batches, state: 0.0)
    finish, near, figures, orders, half, *_ = client_round.start(
        learner.trainable, own=own, first=own, received=other, settings=settings, share=0.5, samples=samples
    )
    assert equal(near, aligned)
    assert figures == {"global_share": 0.5, "plans": 4, "plans_taken": 4}
    assert equal(with_order(aligned, orders), other)
    assert (half is None) == (integration != "frozen_half")
    started = learner.trainable.state()
    learner.trainable.set_companion(None)
    mean = {key: (own[key] + aligned[key]) / 2 for key in own}
    assert equal(started, own if integration == "two_branches" else mean)
    upload, kept = finish(started)
    assert equal(upload, mean)
    assert equal(kept, mean)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("share", [0.0, 0.3, 0.5])
def test_of_a_frozen_half_the_own_part_alone_is_trained(kind, share):
    """Against autograd through `W = (1 - share) own + share frozen`, with weight decay on the own part."""
    torch.manual_seed(0)
    own, frozen, untrained, target = (torch.randn(3, 4) for _ in range(4))
    whole, free, part = (torch.nn.Parameter(value.clone()) for value in ((1 - share) * own + share * frozen, own, own))

    def loss(weights, beside):
        return ((weights - target) ** 4).sum() + (weights * beside).sum() + beside.square().sum()

    beside, its_own = torch.nn.Parameter(untrained.clone()), torch.nn.Parameter(untrained.clone())
    made = [OPTIMIZERS[kind]([*pair], lr=0.01, weight_decay=0.1) for pair in ((whole, beside), (part, its_own))]
    with own_trained({"a": whole, "b": free}, made[0], Mixed({"a": own, "c": own}, {"a": frozen, "c": own}, share)):
        for _ in range(5):
            for optimizer, value in zip(
                made, (lambda: whole, lambda: (1 - share) * part + share * frozen), strict=True
            ):
                optimizer.zero_grad()
                loss(value(), beside if optimizer is made[0] else its_own).backward()
                optimizer.step()
    torch.testing.assert_close(whole, (1 - share) * part + share * frozen)
    torch.testing.assert_close(beside, its_own)
    moved = whole.detach().clone()
    loss(whole, beside).backward()
    made[0].step()  # after the block all of W trains again
    assert not torch.equal(whole, moved)


MOVES = {"adamw": 0.5, "sgd": 0.25}  # what a step moves with a frozen half, as a share of what it moves without
ONE_STEP = (
    "training.batch_size=64",
    "training.local_epochs=1",
    "training.weight_decay=0",
    "training.optimizer_state=reset",
)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_round_with_a_frozen_half_moves_half_as_far_and_with_plain_gradients_a_quarter(sections, tmp_path, kind):
    moved = {}
    for form in ("weight_space", "frozen_half"):
        chosen = sections(*LIVELY, *ONE_STEP, f"method.pia.integration={form}", f"training.optimizer={kind}")
        learner = learners_of(chosen, tmp_path / form)["slake"]
        sent = learner.train_round(1, {}).state
        trained = learner.train_round(2, sent).state  # which begins with what the round before sent
        moved[form] = torch.cat([(trained[key] - sent[key]).flatten() for key in trained])
    distance = moved["weight_space"].abs()
    far = distance > 0.999 * distance.max()  # AdamW moves less where a gradient is nearly 0
    torch.testing.assert_close(moved["frozen_half"][far], MOVES[kind] * moved["weight_space"][far], rtol=0.01, atol=0)


def test_in_two_branches_the_order_of_the_frozen_neurons_changes_nothing_but_what_is_sent(sections, tmp_path):
    found = {}
    for solver in ("exact", "identity"):
        chosen = sections(
            *LIVELY, "method.pia.integration=two_branches", "method.pia.server=false", f"method.pia.solver={solver}"
        )
        first, second, _ = federate(learners_of(chosen, tmp_path / solver))
        found[solver] = first, second, site_state.load_before(tmp_path / solver / "slake", 3)
    exact, identity = found["exact"], found["identity"]
    assert exact[2].record.rounds[-1]["plans_taken"] > 0 == identity[2].record.rounds[-1]["plans_taken"]
    for site in SITES:
        metrics = identity[1].updates[site].metrics
        assert exact[1].updates[site].metrics == pytest.approx(metrics, rel=1e-6)  # sums in another order
    for key, tensor in exact[2].trained.items():  # sums in another order round otherwise
        torch.testing.assert_close(tensor, identity[2].trained[key], rtol=0, atol=1e-5)
    assert not equal(exact[1].updates["slake"].state, identity[1].updates["slake"].state)


@pytest.mark.parametrize(("former", "today"), FORMER_INTEGRATIONS.items())
def test_a_former_name_gives_the_same_bytes_and_one_sentence(sections, tmp_path, caplog, former, today):
    _say_former_name.cache_clear()
    states = [
        last(sections(*LIVELY, "training.rounds=2", f"method.pia.integration={name}"), tmp_path / name)
        for name in (former, today)
    ]
    assert equal(*states)
    assert [record.getMessage() for record in caplog.records if record.name == settings.__name__] == [
        f"method.pia.integration={former} is now called {today} and computes the same."
    ]


@pytest.mark.parametrize("each_place", [False, True])
@pytest.mark.parametrize("share", [0.25, 0.5, 0.8])
def test_an_accepted_plan_never_raises_the_loss_of_the_merged_adapter(two, each_place, share):
    learner, own, other, probe = two
    aligned, _ = align_global(other, own, settings=PIASettings(support="weights"))
    assert not equal(aligned, other)

    def loss(state):
        return learner.loss(probe, state)

    accepted = accepted_global(own, other, aligned, share=share, loss=loss, each_place=each_place)
    merged = [loss(start_merged(own, state, share)) for state in (accepted, other)]
    assert merged[0] <= merged[1]


def test_which_plans_are_taken_does_not_depend_on_the_order_of_the_keys(two):
    """Tensors come from another process in an order that differs from call to call."""
    learner, own, other, probe = two
    aligned, _ = align_global(other, own, settings=PIASettings(support="weights"))

    def loss(state):
        return learner.loss(probe, state)

    taken = [
        accepted_global(own, {key: other[key] for key in keys}, aligned, share=0.5, loss=loss, each_place=True)
        for keys in (list(other), sorted(other), reversed(list(other)))
    ]
    assert equal(taken[0], taken[1])
    assert equal(taken[0], taken[2])
    assert group_by_place(other) == group_by_place(reversed(list(other)))
    assert [*group_by_place(other)] == [*group_by_place(reversed(list(other)))]


def test_a_plan_is_taken_where_it_lowers_the_loss_and_only_there(two):
    _, own, other, _ = two
    aligned, _ = align_global(other, own, settings=PIASettings(support="weights"))
    against = start_merged(own, aligned, 0.5)

    def distance(state):
        return sum(float((state[key] - against[key]).square().sum()) for key in state)

    def farness(state):
        return -distance(state)

    for each_place in (False, True):
        for loss, expected in ((distance, aligned), (farness, other)):
            taken = accepted_global(own, other, aligned, share=0.5, loss=loss, each_place=each_place)
            assert equal(taken, expected)


@pytest.mark.parametrize("best", SHARES)
def test_the_share_with_the_lowest_loss_is_chosen_and_the_larger_of_equals(two, best):
    _, own, other, _ = two
    wanted = start_merged(own, other, best)

    def loss(share, taken):
        merged = start_merged(own, taken, share)
        return sum(float((merged[k] - wanted[k]).abs().sum()) for k in merged)

    share, state = chosen_share(lambda share: other, loss)
    assert (share, state is other) == (best, True)
    assert chosen_share(lambda share: other, lambda share, taken: 0.0)[0] == 1


@pytest.mark.parametrize("integration", ["weight_space", "two_branches", "frozen_half"])
def test_a_share_is_measured_on_the_model_that_training_starts_from(two, integration):
    learner, own, other, _ = two
    losses = []

    def loss(batches, state):
        losses.append(learner.loss(batches, state))
        return losses[-1]

    samples = client_round.Samples(probe=list, validation=learner.batches.validation, loss=loss)
    settings = PIASettings(integration=integration, share="validation", support="weights", accept=False)
    client_round.start(
        learner.trainable, own=own, first=own, received=other, settings=settings, share=None, samples=samples
    )
    chosen = learner.loss(learner.batches.validation(), learner.trainable.state())
    learner.trainable.set_companion(None)
    assert len(losses) == len(SHARES)
    assert chosen == min(losses)


def test_the_validation_split_is_never_trained_on(sections, tmp_path, monkeypatch):
    chosen = sections(*LIVELY, "method.pia.share=validation")
    learner = learners_of(chosen, tmp_path)["slake"]
    drawn, batches = [], SiteBatches.draw

    def recorded(self, examples, *args, **more):
        drawn.append((examples, len(args) > 1 or bool(more.get("generator"))))
        return batches(self, examples, *args, **more)

    monkeypatch.setattr(SiteBatches, "draw", recorded)
    for round in (1, 2):
        learner.train_round(round, learner.values.first)
    held = {id(example) for example in learner.data.validation}
    assert any(shuffled for _, shuffled in drawn)
    assert not any(id(example) in held for examples, shuffled in drawn if shuffled for example in examples)


def test_without_a_validation_split_the_share_cannot_be_chosen(sections, tmp_path):
    chosen = sections(*LIVELY, "method.pia.share=validation", "data.validation_size=0")
    learner = learners_of(chosen, tmp_path)["slake"]
    learner.train_round(1, {})
    with pytest.raises(FedpeftError, match=r"share is 'validation', and site slake has no validation split"):
        learner.train_round(2, learner.values.first)


def test_the_frozen_branch_has_its_share_of_the_output(two):
    learner, own, other, probe = two
    inputs = probe[0].inputs
    outputs = {}
    for share in (0.0, 0.25, 1.0):
        learner.trainable.load(own)
        learner.trainable.set_companion(other, share)
        learner.backbone.eval()
        with torch.no_grad():
            outputs[share] = learner.backbone(**inputs)
    learner.trainable.set_companion(None)
    with torch.no_grad():
        torch.testing.assert_close(outputs[0.0], learner.backbone(**inputs))
    assert not torch.allclose(outputs[0.25], outputs[0.0])
    assert not torch.allclose(outputs[0.25], outputs[1.0])


@pytest.mark.parametrize(
    ("pia", "sentence"),
    [
        ({"share": 1.5}, "share is 1.5, allowed are"),
        ({"share": "half"}, "share is 'half', allowed are"),
        ({"share": [0.1, 0.2, 0.3]}, "allowed are a number from 0 to 1, a list of two"),
        ({"share": True}, "share is True"),
        ({"accept": "always"}, "accept is 'always', allowed are False, True, places"),
    ],
)
def test_other_values_are_refused(pia, sentence):
    with pytest.raises(FedpeftError, match=sentence):
        build(MethodSettings, {"pia": pia}, section="method")


def test_accepting_needs_one_width():
    with pytest.raises(FedpeftError, match="accept compares with moving no neuron"):
        MethodSettings(pia={"accept": True}, site_settings={"slake": {"reduction_factor": 4}})


def test_samples_are_drawn_only_where_they_are_needed(two):
    learner, own, other, _ = two

    def never(*_):
        raise AssertionError("nothing is to be drawn")

    samples = client_round.Samples(probe=never, validation=never, loss=never)
    settings = PIASettings(support="weights", integration="weight_space")
    client_round.start(
        learner.trainable, own=own, first=own, received=other, settings=settings, share=0.5, samples=samples
    )


def test_a_site_that_joins_later_first_trains_what_the_others_have_trained(sections, tmp_path, monkeypatch):
    original, trained = learner_module.train_epochs, []

    def watched(*args, epochs, first_step, **others):
        trained.append((epochs, first_step))
        return original(*args, epochs=epochs, first_step=first_step, **others)

    monkeypatch.setattr(learner_module, "train_epochs", watched)
    joined = sections("method.pia.client=false", "training.rounds=3", "schedule.joins={vqa-rad: 2}")
    first, second, third = federate(learners_of(joined, tmp_path / "joined"))
    assert list(first.updates) == ["slake"]
    assert list(second.updates) == list(third.updates) == ["slake", "vqa-rad"]
    (once, start), (_, second_step), (later, no_step), _, (last, third_step) = trained
    assert (once, start) == (last, 0)
    assert (later, no_step) == (2 * once, 0)
    assert third_step == 2 * second_step


NARROW = "method.site_settings={slake: {reduction_factor: 2}}"  # 4 elsewhere


@pytest.mark.slow
@pytest.mark.parametrize(("share", "mass"), [("1.0", "preserved"), ("[0.5, 1.0]", "paper")])
def test_a_global_adapter_of_another_width_is_loaded_as_wide_as_the_sites_own(sections, tmp_path, share, mass):
    """Also by a site that has none of its own yet, or has lost it: in the order of its first neurons."""
    wide = ("method.settings={houlsby: {reduction_factor: 4}}", NARROW, "method.pia.support=weights")
    chosen = sections(*wide, f"method.pia.mass={mass}", f"method.pia.share={share}", "training.rounds=2")
    made = {site: Learner.from_sections(chosen, site=site, folder=tmp_path / site) for site in ("slake", "vqa-rad")}
    *_, last = federate(made)
    assert last.round == 2
    shapes = {site: {key: tensor.shape for key, tensor in one.state.items()} for site, one in last.updates.items()}
    assert shapes["slake"] == {key: tensor.shape for key, tensor in last.state.items()} != shapes["vqa-rad"]
    narrow = made["vqa-rad"]
    site_state.clear(narrow.folder)
    integration = narrow.integrate(3, None, last.state)
    expected, _ = align_global(last.state, narrow.values.first, None, PIASettings(support="weights", mass=mass))
    assert equal(narrow.trainable.state(), expected)
    assert equal(integration.near, expected)
    assert narrow.train_round(3, last.state).state.keys() == last.state.keys()


def test_a_site_whose_training_fails_misses_the_round_if_the_federation_is_tolerant(sections, tmp_path, monkeypatch):
    chosen = sections("training.rounds=1")
    sites = ("slake", "vqa-rad", "vqa-med-2019")
    made = {site: Learner.from_sections(chosen, site=site, folder=tmp_path / site) for site in sites}

    def diverge(*_, **__):
        raise FedpeftError("the loss is not finite", code="training-diverged")

    monkeypatch.setattr(made["vqa-rad"], "train_round", diverge)
    with pytest.raises(FedpeftError, match="the loss is not finite"):
        list(federate(made, quorum=2))
    with pytest.raises(FedpeftError, match=r"the quorum is 3.*vqa-rad: the loss is not finite"):
        list(federate(made, quorum=3, tolerant=True))
    (only,) = federate(made, quorum=2, tolerant=True)
    assert only.refused == {"vqa-rad": "site vqa-rad: the loss is not finite"}
    assert set(only.updates) == {"slake", "vqa-med-2019"}
