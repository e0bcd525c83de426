# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A federation of backbones of one family and different depth."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from small_federations import learners_of
from tiny_vilt import tiny_vilt

from fedpeft import methods
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import layers_of, renumbered
from fedpeft.core.states import equal
from fedpeft.federate import federate
from fedpeft.inference.export import export
from fedpeft.inference.kept_model import find
from fedpeft.inference.predictor import Predictor, find_adapter
from fedpeft.server.aggregation import aggregate
from fedpeft.site.learner import Learner

pytestmark = pytest.mark.slow

SITES = ("slake", "vqa-rad")
SHALLOW, DEEP = SITES
FEDAVG = ("method.aggregation=fedavg",)
PIA = ("training.learning_rate=0.3", "method.pia.integration=weight_space")


@pytest.fixture(scope="module")
def deep_source(tiny_source, tmp_path_factory):
    """The two-layer ViLT of the other tests with a third layer."""
    folder = tmp_path_factory.mktemp("deep")
    shutil.copytree(tiny_source, folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    same = ("hidden_size", "intermediate_size", "vocab_size", "max_position_embeddings")
    tiny_vilt(**{name: config[name] for name in same}, num_hidden_layers=3).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def mixed(sections, deep_source):
    """Function: sections of a job in which one site has the deeper backbone."""

    def build(*overrides):
        section = f"backbone.sites={{{DEEP}: {{source: {deep_source}}}}}"
        return sections(section, "method.matched_layers=3", "federation.sites=[slake, vqa-rad]", *overrides)

    return build


ABLE = [
    name
    for name in methods.names()
    if methods.get(name).unequal_backbones and methods.get(name).exchanges and methods.get(name).layers
]


def test_the_page_names_every_method_that_cannot():
    page = (Path(__file__).parents[2] / "docs" / "backbones.md").read_text()
    (sentence,) = re.findall(r"unequal ranks\. (.*?`promptfl`)", page, re.DOTALL)
    unable = {name for name in methods.names() if methods.get(name).exchanges} - {*ABLE}
    assert set(re.findall(r"`(\w+)`", sentence)) == unable


def test_a_shallower_site_predicts_with_an_export_of_its_own(mixed, tmp_path, tiny_source):
    """Its layers have its own numbers there, those of the deepest backbone in the server's files."""
    list(federate(learners_of(mixed(*FEDAVG, "training.rounds=1"), tmp_path / "state")))
    kept = find(tmp_path / "state" / SHALLOW, site=None)
    export(kept, tmp_path / "handed")
    found = Predictor(kept, find_adapter(str(tmp_path / "handed"), tmp_path)).model.trainable.state()
    assert equal(found, Predictor(kept).model.trainable.state())


@pytest.mark.parametrize("name", ABLE)
def test_each_layer_is_averaged_over_the_sites_that_have_it(mixed, tmp_path, name):
    (result,) = federate(learners_of(mixed(f"method.name={name}", *FEDAVG, "training.rounds=1"), tmp_path))
    own = {site: update.state for site, update in result.updates.items()}
    assert layers_of(own[SHALLOW]) == [0, 2]
    assert layers_of(own[DEEP]) == layers_of(result.state) == [0, 1, 2]
    for key, tensor in result.state.items():
        sent = [state[key] for state in own.values() if key in state]
        assert len(sent) == 1 + (".1." not in key)
        torch.testing.assert_close(tensor, sum(sent) / len(sent))


@pytest.mark.parametrize(
    "overrides",
    [
        ["method.pia.integration=two_branches"],
        ["method.head=federated"],
        ["method.name=lora", "method.aggregation=svd", "method.site_settings={slake: {r: 2}}"],
        ["method.name=lora", "method.aggregation=stack", "method.site_settings={slake: {r: 2}}"],
        ["method.name=feddat_compacter"],
    ],
    ids=" ".join,
)
def test_a_new_process_goes_on_to_the_bit(mixed, tmp_path, overrides):
    chosen = mixed(*overrides, "training.learning_rate=0.05")
    *_, together = federate(learners_of(chosen, tmp_path / "together"))
    state = Learner.from_sections(chosen, site=DEEP, folder=tmp_path / "first").first_state()
    for number in (1, 2):
        fresh = learners_of(chosen, tmp_path / "apart")
        replies = {}
        for site, learner in fresh.items():
            received = {key: state[key] for key in learner.first_state()}
            update = learner.train_round(number, received)
            replies[site] = (update.state, update.samples)
        state, _ = aggregate(replies, fresh[DEEP].method, previous=state)
    assert equal(together.state, state)


@pytest.mark.parametrize("overrides", [(), FEDAVG], ids=["pia", "fedavg"])
def test_equal_backbones_give_what_they_give_without_the_setting(sections, tmp_path, overrides):
    two = sections("federation.sites=[slake, vqa-rad]", *overrides)
    same = sections("federation.sites=[slake, vqa-rad]", *overrides, "method.matched_layers=2", "backbone.sites={}")
    *_, plain = federate(learners_of(two, tmp_path / "plain"))
    *_, matched = federate(learners_of(same, tmp_path / "matched"))
    assert equal(plain.state, matched.state)


def test_a_layer_that_no_site_of_a_round_has_stays_as_it_was(mixed, tmp_path):
    chosen = mixed("schedule.clients_per_round=1", "training.rounds=4")
    made = learners_of(chosen, tmp_path)
    before, seen = made[DEEP].first_state(), set()
    for result in federate(made):
        (site,) = result.updates
        seen.add(site)
        for key in before:
            assert torch.equal(before[key], result.state[key]) == (site == SHALLOW and ".1." in key), key
        before = result.state
    assert seen == set(SITES)


def test_a_site_aligns_the_global_layers_to_its_own(mixed, tmp_path):
    """The order of the neurons in what the shallow site receives does not matter, in the layer that it numbers 1."""
    chosen = mixed(*PIA)
    state = next(federate(learners_of(chosen, tmp_path / "a"))).state
    other = dict(state)
    order = torch.randperm(4, generator=torch.Generator().manual_seed(1))
    assert not torch.equal(order, torch.arange(4))
    for slot in ("attention", "output"):
        for name, axis in (("down.weight", 0), ("down.bias", 0), ("up.weight", 1)):
            key = f"layer.2.{slot}.{name}"
            assert state[key].shape[axis] == 4
            other[key] = state[key].index_select(axis, order)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    uploads = []
    for folder, sent in (("a", state), ("b", other)):
        learner = learners_of(chosen, tmp_path / folder, [SHALLOW])[SHALLOW]
        uploads.append(learner.train_round(2, {key: sent[key] for key in learner.first_state()}).state)
    assert all(torch.allclose(uploads[0][key], uploads[1][key], atol=1e-5) for key in uploads[0])


def test_what_a_site_keeps_has_its_own_numbers(mixed, tmp_path):
    learner = learners_of(mixed(), tmp_path, [SHALLOW])[SHALLOW]
    sent = learner.train_round(1, learner.first_state()).state
    numbers = {0: 0, 2: 1}
    assert {renumbered(key, numbers) for key in sent} == set(learner.trainable.state())
    assert equal({renumbered(key, numbers): tensor for key, tensor in sent.items()}, learner.trainable.state())


@pytest.mark.parametrize(
    ("overrides", "message", "setting"),
    [
        (["method.matched_layers=2"], "has 3 layers, and method.matched_layers is 2", "method.matched_layers"),
        (["method.settings.houlsby.layers=[0]"], "in layers 0, and 1 layers are matched with 2", "matched_layers"),
        (["method.settings.houlsby.layer_widths={'0': 8}"], "the same tensor of another layer", "matched_layers"),
    ],
)
def test_a_site_whose_layers_cannot_be_matched_says_so_when_it_is_built(mixed, tmp_path, overrides, message, setting):
    with pytest.raises(FedpeftError, match=message) as caught:
        learners_of(mixed(*overrides), tmp_path, [DEEP])
    assert caught.value.setting.endswith(setting)
