# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Every tuning method learns, trains and exchanges what it declares, and changes nothing else."""

from types import SimpleNamespace

import pytest
import torch
from one_client import aggregations, check_identity
from peft import PeftModel
from torch import nn
from transformers import ViltModel

from fedpeft import adapters, methods
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import is_key, layers_of
from fedpeft.methods.settings import MethodSettings
from fedpeft.methods.trainable import Part, parameter_count

SETTINGS = {
    "compacter": {"reduction_factor": 4},
    "oft": {"oft_block_size": 8},
    "vera": {"r": 8},
    "dvpt": {"rank": 4},
    "lora_dvpt": {"dvpt": {"rank": 4}},
    "feddat_compacter": {"reduction_factor": 4},
}
TRAINING = [name for name in methods.names() if methods.get(name).exchanges]


@pytest.fixture(params=TRAINING)
def name(request):
    return request.param


@pytest.fixture
def prepared(name, vilt):
    backbone = nn.Module()
    backbone.model = vilt()
    return backbone, methods.get(name).tuning().prepare(backbone, SETTINGS.get(name, {}), seed=0)


def train(backbone, trainable, batch, steps=10):
    """Losses of a fit of one batch: the pooled output to random targets, with the method's own step."""
    goal = torch.randn(3, 32, generator=torch.Generator().manual_seed(5)).tanh()
    parameters = [p for p in trainable.parameters().values() if p.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=1e-2)

    def forward():
        return backbone.model(**batch()).pooler_output

    def loss(outputs):
        return (outputs - goal).square().mean()

    return [trainable.step([Part(forward, loss)], optimizer).item() for _ in range(steps)]


def whole(trainable):
    return trainable.state() | trainable.private_state()


def test_it_learns_and_changes_nothing_else(name, prepared, batch):
    backbone, trainable = prepared
    trained = {id(parameter) for parameter in trainable.parameters().values()}
    frozen = {n: p for n, p in backbone.named_parameters() if id(p) not in trained}
    before = {n: p.detach().clone() for n, p in frozen.items()}
    assert not any(p.requires_grad for p in frozen.values())
    losses = train(backbone, trainable, batch)
    assert losses[-1] < losses[0]
    assert all(torch.equal(p, before[n]) for n, p in frozen.items())


def test_its_state_has_its_keys_and_goes_back(name, prepared, batch):
    backbone, trainable = prepared
    first, private = trainable.state(), trainable.private_state()
    assert first.keys() | private.keys() == trainable.parameters().keys()
    assert all(map(is_key, first))
    assert not any(map(is_key, private))  # no message can hold them
    sizes = [sum(tensor.numel() for tensor in state.values()) for state in (first | private, first)]
    assert sizes == list(parameter_count_of(name, backbone))
    train(backbone, trainable, batch, steps=2)
    for state, now in ((first, trainable.state()), (private, trainable.private_state())):
        assert not state or any(not torch.equal(tensor, state[key]) for key, tensor in now.items())
    trainable.load(first)
    trainable.load_private(private)
    assert all(torch.equal(tensor, (first | private)[key]) for key, tensor in whole(trainable).items())


def parameter_count_of(name, backbone):
    fresh = nn.Module()
    with torch.device("meta"):
        fresh.model = ViltModel(backbone.model.config)
    return parameter_count(fresh, methods.get(name).tuning(), SETTINGS.get(name, {}))


def test_one_layer_trains_alone(name, prepared, batch):
    if not methods.get(name).layers:
        pytest.skip("declares that its layers do not train alone")
    backbone, trainable = prepared
    first = whole(trainable)
    assert layers_of(first) == [0, 1]
    trainable.train_only([1])
    train(backbone, trainable, batch, steps=2)
    changed = {key for key, tensor in whole(trainable).items() if not torch.equal(tensor, first[key])}
    assert changed
    assert layers_of(changed) == [1]


def test_aggregating_one_site_changes_nothing(name, prepared):
    generator = torch.Generator().manual_seed(6)
    first = prepared[1].state()
    state = {key: tensor + 0.1 * torch.randn(tensor.shape, generator=generator) for key, tensor in first.items()}
    for way in aggregations(name):
        check_identity(name, way, SETTINGS.get(name, {}), state)


PIA = [{"normalize": False}, {"reference": "largest"}, {"reference": "fixed_point"}, {"aligned_at": "site"}]


@pytest.mark.parametrize("pia", PIA, ids=str)
@pytest.mark.parametrize("name", [name for name in TRAINING if methods.get(name).neurons])
def test_aligning_one_site_changes_nothing_with_other_settings(name, pia, vilt, draw):
    backbone = nn.Module()
    backbone.model = vilt()
    first = methods.get(name).tuning().prepare(backbone, SETTINGS.get(name, {}), seed=0).state()
    state = draw({key: tuple(tensor.shape) for key, tensor in first.items()})
    check_identity(name, "pia", SETTINGS.get(name, {}), state, pia)


def test_its_aggregation_is_what_it_declares(name):
    method = methods.get(name)
    assert MethodSettings(name=name).aggregation == ("pia" if method.neurons else "fedavg")
    if not method.neurons:
        with pytest.raises(FedpeftError, match="does not declare: use aggregation='fedavg'"):
            MethodSettings(name=name, aggregation="pia")


@pytest.mark.parametrize("name", adapters.names())
def test_peft_reads_what_was_saved(name, vilt, run, tmp_path):
    config = adapters.config(name, **SETTINGS.get(name, {}))
    model = adapters.attach(vilt(), config)
    generator = torch.Generator().manual_seed(4)
    state = {k: v + 0.1 * torch.randn(v.shape, generator=generator) for k, v in adapters.adapter_state(model).items()}
    adapters.load_adapter_state(model, state)
    adapters.save_adapter(tmp_path, state, model.peft_config["default"], "vilt")
    expected = run(model)
    assert not torch.allclose(expected, run(vilt()))
    assert torch.equal(run(PeftModel.from_pretrained(vilt(), str(tmp_path)).eval()), expected)
    assert torch.equal(run(adapters.load_adapter(vilt(), tmp_path)), expected)


def test_adalora_is_not_taken_for_lora():
    from peft import AdaLoraConfig

    from fedpeft.methods.adapters import tuning_of

    with pytest.raises(FedpeftError, match="AdaLoraConfig is of no method"):
        tuning_of(AdaLoraConfig(total_step=10))
    with pytest.raises(FedpeftError, match="is of no method"):
        tuning_of(SimpleNamespace())


def test_settings_of_a_combination_stand_under_its_parts():
    settings = {"lora_vpt": {"lora": {"r": 2}, "vpt": {"tokens": 5}}}
    MethodSettings(name="lora_vpt", settings=settings).check_settings()
    for wrong, sentence in (({"r": 2}, "has no part 'r'"), ({"vpt": {"tokns": 5}}, "tokns"), ({"vpt": 5}, "vpt")):
        with pytest.raises(FedpeftError, match=sentence):
            MethodSettings(name="lora_vpt", settings={"lora_vpt": wrong}).check_settings()
