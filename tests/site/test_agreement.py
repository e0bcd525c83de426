# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""How far sites agree, and what follows from it: method.pia.share=agreement."""

from dataclasses import replace

import pytest
import torch
from small_federations import learners_of

from fedpeft.alignment.client_pia import orders_between, with_order
from fedpeft.alignment.neurons import neurons_of
from fedpeft.alignment.settings import MIN_BY_AGREEMENT as MIN
from fedpeft.alignment.settings import PIASettings
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import group_by_place
from fedpeft.core.settings import build
from fedpeft.core.states import equal
from fedpeft.federate import federate
from fedpeft.job.composing import check_sections
from fedpeft.methods.settings import MethodSettings
from fedpeft.server.aggregation import parts_of
from fedpeft.site import site_state
from fedpeft.site.client_round import ENOUGH, agreement, next_agreement, reordered_to, share_of
from fedpeft.site.site_state import SiteState

SITES = ("slake", "vqa-rad")
AGREEMENT = ("method.pia.integration=weight_space", "method.pia.share=agreement", "method.pia.server=false")
KEYS = ("layer.0.output.down.weight", "layer.0.output.up.weight")


def state(*values):
    return {key: torch.tensor(value) for key, value in zip(KEYS, values, strict=True)}


def random(seed):
    generator = torch.Generator().manual_seed(seed)
    return {key: torch.randn(3, 4, generator=generator) for key in KEYS}


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_a_site_takes_its_own_part_off_the_mean(part):
    """Whatever its weight, the cosine is that with what the others changed."""
    before, mine, others = map(random, range(3))
    after = {key: before[key] + part * mine[key] + (1 - part) * others[key] for key in KEYS}
    flat_mine, flat_others = (torch.cat([x[key].flatten() for key in KEYS]) for x in (mine, others))
    expected = float(flat_mine @ flat_others / flat_mine.norm() / flat_others.norm())
    assert agreement(mine, before=before, after=after, part=part) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("reached", "share"), [(None, 1), (0.5, 1), (ENOUGH, 1), (ENOUGH - 0.05, 0.75), (-1, MIN)])
def test_the_less_they_agree_the_more_a_site_keeps(reached, share):
    assert share_of(reached) == pytest.approx(share)


def kept(**changes):
    values = {"round": 3, "adapter": state([1.0], [1.0]), "head": {}, "optimizer": {}, "agreement": 0.4}
    compared = {"received": state([0.0], [0.0]), "started": state([0.0], [0.0])}
    return SiteState(**{**values, **compared, **changes})


def test_the_mean_over_rounds_follows_the_last_one():
    assert next_agreement(kept(), state([1.0], [1.0]), round=4, part=0.5) == pytest.approx(0.5 * 0.4 + 0.5 * 1)
    assert next_agreement(kept(agreement=None), state([-1.0], [-1.0]), round=4, part=0.0) == pytest.approx(-1)


@pytest.mark.parametrize(
    ("own", "received", "round"),
    [
        (kept(), state([1.0], [1.0]), 5),  # it missed a round, whose change is not its own
        (kept(), {}, 4),
        (kept(received={}), state([1.0], [1.0]), 4),
    ],
    ids=["a round was missed", "nothing received", "nothing to compare with"],
)
def test_what_cannot_be_compared_changes_nothing(own, received, round):
    assert next_agreement(own, received, round=round, part=0.5) == 0.4


def test_after_a_round_in_which_a_site_joined_the_agreement_is_kept():
    """What changed the mean is what that site brought."""
    received = state([1.0], [1.0])
    assert next_agreement(kept(), received, round=4, part=0.5, joined=True) == 0.4
    assert next_agreement(kept(agreement=None), received, round=4, part=0.5, joined=True) is None


@pytest.mark.slow
def test_all_sites_keep_their_agreement_after_one_joined(sections, tmp_path, monkeypatch):
    told = {}

    def noted(own, *rest, round, joined, **how):
        told.setdefault(round, set()).add(joined)
        return next_agreement(own, *rest, round=round, joined=joined, **how)

    monkeypatch.setattr("fedpeft.site.client_round.next_agreement", noted)
    joins = ("schedule.joins={vqa-rad: 2}", "training.rounds=4")
    list(federate(learners_of(sections(*AGREEMENT, *joins), tmp_path)))
    assert told == {1: {False}, 2: {False}, 3: {True}, 4: {False}}


ORDERS = {"layer.0.output": torch.tensor([1, 2, 0, 3])}
BACK = {place: torch.argsort(order) for place, order in ORDERS.items()}


def adapter(seed):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"down.weight": (4, 6), "down.bias": (4,), "up.weight": (6, 4), "up.bias": (6,)}
    return {f"layer.0.output.{name}": torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def test_the_order_between_two_adapters_leads_from_one_to_the_other():
    received = adapter(0)
    aligned = with_order(received, BACK)
    orders = orders_between(received, aligned)
    assert torch.equal(orders["layer.0.output"], ORDERS["layer.0.output"])
    assert all(torch.equal(tensor, received[key]) for key, tensor in with_order(aligned, orders).items())
    assert orders_between(received, received) == {}


def test_a_site_that_took_a_plan_compares_the_same_neurons():
    before, trained, after = map(adapter, range(3))
    there = kept(adapter=trained, started=before, received=before, agreement=None)
    moved = {"adapter": with_order(trained, BACK), "started": with_order(before, BACK), "orders": ORDERS}
    figures = [next_agreement(one, after, round=4, part=0.3) for one in (there, replace(there, **moved))]
    assert figures[1] == pytest.approx(figures[0])


def test_where_nobody_aligns_what_it_sent_its_part_of_the_mean_is_in_its_own_order():
    """Without alignment on the server a site takes off what it sent, and compares the neurons of the mean."""
    before, mine, others = map(adapter, range(3))
    started, trained = (with_order(x, BACK) for x in (before, {key: before[key] + mine[key] for key in before}))
    sent = {key: trained[key] - started[key] for key in before}
    after = {key: before[key] + 0.4 * sent[key] + 0.6 * others[key] for key in before}
    settings = PIASettings(integration="weight_space", share="agreement", server=False)
    own = kept(adapter=trained, started=started, received=before, orders=ORDERS, agreement=None)
    mine, others = (torch.cat([x[key].flatten() for key in before]) for x in (mine, others))
    expected = float(torch.nn.functional.cosine_similarity(mine, others, dim=0))
    assert next_agreement(own, after, settings, round=4, part=0.4) == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        ["method.name=houlsby"],
        ["method.name=lora"],
        ["method.name=compacter", "method.settings.compacter.reduction_factor=2"],
    ],
    ids=["houlsby", "lora", "compacter"],
)
def test_a_start_from_the_global_adapter_does_not_depend_on_the_order_that_a_site_kept(
    sections, tmp_path, monkeypatch, method
):
    """Moments, agreement and upload are those of the same neurons, to the bit."""
    monkeypatch.setattr("fedpeft.site.client_round.ENOUGH", -1.0)
    chosen = sections(*AGREEMENT, *method, "method.pia.server=true")  # the order of the mean is not the site's
    there, moved = (learners_of(chosen, tmp_path / name) for name in ("there", "moved"))
    first = next(iter(federate(there)))
    for site, learner in there.items():
        own = site_state.load_before(learner.folder, 2)
        place = next(place for place, names in group_by_place(own.adapter).items() if neurons_of(names))
        neurons = neurons_of(group_by_place(own.adapter)[place])
        width = neurons.width(neurons.gather(own.adapter, group_by_place(own.adapter)[place]))
        order = torch.arange(width).roll(1)
        back = reordered_to(replace(own, orders={place: torch.argsort(order)}), first.state)
        assert any(not torch.equal(back.optimizer[key], own.optimizer[key]) for key in own.optimizer)
        site_state.save(moved[site].folder, replace(back, orders={place: order}))
        updates = [one[site].train_round(2, first.state, part=0.5) for one in (there, moved)]
        assert all(torch.equal(updates[0].state[key], updates[1].state[key]) for key in updates[0].state)
        kept_states = [site_state.load_before(one[site].folder, 3) for one in (there, moved)]
        assert kept_states[0].agreement == pytest.approx(kept_states[1].agreement)


@pytest.mark.parametrize("server", [True, False])
def test_neurons_are_compared_in_the_order_of_the_mean_where_it_follows_another_site(server):
    """The mean is the adapter of the largest site, whose own order it takes; without alignment it follows nobody."""
    before, mine = adapter(0), adapter(1)
    trained = {key: before[key] + 0.1 * mine[key] for key in before}
    after = with_order(trained, BACK)
    settings = PIASettings(reference="largest", integration="weight_space", share="agreement", server=server)
    own = kept(adapter=trained, started=before, received=before, agreement=None)
    figure = next_agreement(own, after, settings, round=4, part=0.0)
    assert figure == pytest.approx(1) if server else figure < 0.5


@pytest.mark.parametrize(("reference", "moves"), [("largest", True), ("fixed_point", True), ("fedavg", False)])
def test_a_site_knows_its_neurons_again_where_the_mean_may_follow_another_site(sections, tmp_path, reference, moves):
    """The moments of the optimizer act on the neurons that they were measured for."""
    changes = ("method.pia.client=false", f"method.pia.reference={reference}")
    learner = learners_of(sections(*changes), tmp_path)["slake"]
    trained = learner.train_round(1, learner.first_state()).state
    own = site_state.load_before(learner.folder, 2)
    assert bool(own.received) is moves
    place, names = next((place, names) for place, names in group_by_place(trained).items() if neurons_of(names))
    order = torch.arange(neurons_of(names).width(neurons_of(names).gather(trained, names))).roll(1)
    back = reordered_to(own, with_order(trained, {place: order}), learner.pia)
    key = next(key for key in own.optimizer if key.startswith(f"{place}.down.weight/exp_avg"))
    assert torch.equal(back.optimizer[key], own.optimizer[key][order] if moves else own.optimizer[key])


def test_control_variates_move_with_their_neurons():
    control = {f"{prefix}{key}": tensor for prefix in ("own/", "global/") for key, tensor in adapter(0).items()}
    moved = reordered_to(kept(adapter=adapter(1), started={}, received={}, control=control, orders=ORDERS), {}).control
    for key, tensor in with_order(adapter(0), ORDERS).items():
        assert torch.equal(moved[f"own/{key}"], tensor)
        assert torch.equal(moved[f"global/{key}"], control[f"global/{key}"])


def test_fedalas_shares_move_with_their_neurons_and_the_moments_of_dittos_own_model_stay():
    moments = {f"{key}/exp_avg": tensor for key, tensor in adapter(2).items()}
    own = kept(adapter=adapter(1), started={}, received={}, personal=adapter(0), orders=ORDERS)
    assert equal(reordered_to(own, {}).personal, with_order(adapter(0), ORDERS))
    assert not equal(with_order(adapter(0), ORDERS), adapter(0))
    assert equal(reordered_to(replace(own, personal=moments), {}).personal, moments)


def test_before_its_first_round_a_site_has_no_agreement():
    assert next_agreement(None, state([1.0], [1.0]), round=1, part=0.0) is None


def test_parts_are_those_of_the_mean_and_only_for_who_needs_them():
    chosen = {"name": "houlsby", "aggregation": "pia", "pia": {"integration": "weight_space", "share": "agreement"}}
    samples = {"a": 30, "b": 10, "c": 10}
    method = build(MethodSettings, {**chosen, "robust": {"max_share": 1}}, section="method")
    assert parts_of(samples, method) == pytest.approx({"a": 0.6, "b": 0.2, "c": 0.2})
    assert parts_of(samples, build(MethodSettings, chosen, section="method"))["a"] == pytest.approx(0.5)
    assert parts_of(samples, build(MethodSettings, {"name": "houlsby"}, section="method")) == {}


@pytest.mark.parametrize(
    ("pia", "more", "part"),
    [
        ({"aligned_at": "site"}, {"secure_sum": True}, 0.8),  # a sum caps nobody
        ({"aligned_at": "site"}, {}, 0.5),
        ({"aligned_at": "site", "normalize": False}, {}, 0.5),  # the server's integration alone has it
        ({"server": False, "normalize": False}, {}, 0.5),
        ({"normalize": False}, {}, 1 / 3),
    ],
)
def test_a_part_is_that_of_the_mean_that_is_taken(pia, more, part):
    settings = {"integration": "weight_space", "share": "agreement", **pia}
    method = build(MethodSettings, {"name": "houlsby", "aggregation": "pia", "pia": settings, **more}, section="method")
    assert parts_of({"a": 80, "b": 10, "c": 10}, method)["a"] == pytest.approx(part)


@pytest.mark.slow
def test_sites_that_agree_are_averaged_as_by_fedavg(sections, tmp_path, monkeypatch):
    monkeypatch.setattr("fedpeft.site.client_round.ENOUGH", -1.0)
    rounds = "training.rounds=3"
    *_, ours = federate(learners_of(sections(*AGREEMENT, rounds), tmp_path / "ours"))
    *_, fedavg = federate(learners_of(sections("method.aggregation=fedavg", rounds), tmp_path / "fedavg"))
    assert all(torch.equal(ours.state[key], fedavg.state[key]) for key in fedavg.state)


@pytest.mark.slow
def test_sites_that_do_not_keep_a_part_of_their_own_and_resume_to_the_bit(sections, tmp_path, monkeypatch):
    monkeypatch.setattr("fedpeft.site.client_round.ENOUGH", 1.0)
    chosen = sections(*AGREEMENT, "training.rounds=3")
    _, second, third = federate(learners_of(chosen, tmp_path / "a"))
    *_, fedavg = federate(learners_of(sections("method.aggregation=fedavg", "training.rounds=3"), tmp_path / "b"))
    assert not all(torch.equal(third.state[key], fedavg.state[key]) for key in fedavg.state)
    parts = parts_of(
        {s: u.samples for s, u in second.updates.items()}, learners_of(chosen, tmp_path / "a")["slake"].method
    )
    for site, learner in learners_of(chosen, tmp_path / "a").items():  # in new processes, from their folders
        again = learner.train_round(3, second.state, part=parts[site])
        assert all(torch.equal(again.state[key], third.updates[site].state[key]) for key in again.state)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["method.pia.integration=two_branches"], "or use integration='weight_space'"),
        (["method.pia.output_axis=matched"], "or use output_axis='fixed'"),
        (["schedule.solver=own", "schedule.budget=1"], "set schedule.solver to 'all'"),
        (["method.robust.average=median"], "leave robust.average out"),
        (["method.site_settings={slake: {reduction_factor: 4}}"], "give a number as share"),
    ],
)
def test_where_it_has_no_meaning_it_is_refused(sections, overrides, sentence):
    server = "method.pia.server=true"
    with pytest.raises(FedpeftError, match=sentence):
        check_sections(sections(*AGREEMENT, server, *overrides))
