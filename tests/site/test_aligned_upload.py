# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""aligned_at="site" in whole rounds: what leaves a site has no order of its own, and what stays there keeps it."""

import pytest

from fedpeft.alignment import PIASettings
from fedpeft.alignment.client_pia import with_order
from fedpeft.core.errors import FedpeftError
from fedpeft.core.states import equal
from fedpeft.federate import federate
from fedpeft.methods.settings import MethodSettings
from fedpeft.server.aggregation import aggregate
from fedpeft.site import client_round, site_state
from fedpeft.site.learner import Learner

SITES = ("slake", "vqa-rad")
AT_SITE = "method.pia.aligned_at=site"
# adapters from different seeds and a high rate, so that alignment really moves neurons
LIVELY = ["method.initialization=own", "training.learning_rate=0.3", "training.rounds=3"]


def rounds(sections, folder):
    return list(federate({s: Learner.from_sections(sections, site=s, folder=folder / s) for s in SITES}))


def sorted_neurons(state):
    """Every tensor's numbers in rising order: equal for states that differ only in the order of neurons."""
    return {key: tensor.flatten().sort().values for key, tensor in state.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ["method.pia.integration=weight_space"],
        ["method.pia.integration=two_branches"],
        ["method.pia.client=false"],
        ["method.name=compacter", "method.settings.compacter.reduction_factor=4"],
        ["method.name=lora", "method.pia.support=weights", "method.pia.integration=weight_space"],
        [  # where layers are scheduled, all sites start from one adapter
            *("schedule.solver=own", "schedule.score=last_k", "schedule.budget=1", "schedule.score_samples=4"),
            "method.initialization=shared",
        ],
    ],
    ids=" ".join,
)
def test_a_job_repeats_to_the_bit_and_sends_what_it_keeps_in_another_order(sections, tmp_path, overrides):
    chosen = sections(AT_SITE, *LIVELY, *overrides)
    first, second = rounds(chosen, tmp_path / "a"), rounds(chosen, tmp_path / "b")
    assert equal(first[-1].state, second[-1].state)
    for site, update in first[-1].updates.items():
        kept = site_state.load_before(tmp_path / "a" / site, 4)
        own = {key: kept.adapter[key] for key in update.state}
        assert equal(sorted_neurons(update.state), sorted_neurons(own))
        assert equal(with_order(own, kept.orders), update.state)


@pytest.mark.slow
def test_neurons_move_before_they_are_sent_and_not_at_the_server(sections, tmp_path):
    last = rounds(sections(AT_SITE, *LIVELY), tmp_path)[-1]
    kept = {site: site_state.load_before(tmp_path / site, 4).adapter for site in SITES}
    assert any(not equal(last.updates[site].state, kept[site]) for site in SITES)
    replies = {site: (update.state, update.samples) for site, update in last.updates.items()}
    average, _ = aggregate(replies, MethodSettings(aggregation="fedavg"), previous=None)
    assert equal(last.state, average)


def test_what_a_round_sends_does_not_depend_on_the_order_in_which_training_left_the_neurons(sections, tmp_path):
    learner = Learner.from_sections(sections(AT_SITE), site="slake", folder=tmp_path)
    settings, received = PIASettings(client=False, aligned_at="site"), learner.trainable.state()
    samples = client_round.Samples(probe=list, validation=list, loss=lambda *_: 0.0)
    start = {
        "own": None,
        "first": received,
        "received": received,
        "settings": settings,
        "share": 0.5,
        "samples": samples,
    }
    end = client_round.start(learner.trainable, **start).end
    trained = {key: tensor + 0.01 for key, tensor in received.items()}
    flipped = dict(trained)
    for key in trained:
        if key.endswith(("down.weight", "down.bias")):
            flipped[key] = trained[key].flip(0)
        elif key.endswith("up.weight"):
            flipped[key] = trained[key].flip(1)
    assert not equal(flipped, trained)
    assert equal(end(flipped)[0], end(trained)[0])
    _, kept, orders = end(flipped)
    assert equal(kept, flipped)
    assert equal(with_order(flipped, orders), trained)
    assert end(trained)[2] == {}


def test_unequal_widths_are_refused_before_the_job_starts():
    widths = {"slake": {"reduction_factor": 4}}
    with pytest.raises(FedpeftError, match="unequal widths"):
        MethodSettings(pia={"aligned_at": "site"}, site_settings=widths)
