# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Bad input: one sentence with the site and the key, before anything is computed."""

import pytest
import torch
from peft import get_peft_model, get_peft_model_state_dict
from samples import adapter, generator, state
from torch import nn

from fedpeft import adapters
from fedpeft.alignment import Bottleneck, PIASettings, align_global, barycenter, integrate
from fedpeft.core.errors import FedpeftError

DOWN, UP = "layer.0.output.down.weight", "layer.0.output.up.weight"


def changed(state, key, tensor):
    return state | {key: tensor}


def without(state, key):
    return {k: t for k, t in state.items() if k != key}


def poisoned(state, key, value):
    tensor = state[key].clone()
    tensor.view(-1)[3] = value
    return changed(state, key, tensor)


BAD = {
    "nan": ("houlsby", lambda s: poisoned(s, DOWN, float("nan")), ["site rad", DOWN, "NaN"]),
    "infinity": ("houlsby", lambda s: poisoned(s, UP, float("-inf")), ["site rad", UP, "infinity"]),
    "nan in half precision": (
        "houlsby",
        lambda s: changed(s, UP, poisoned(s, UP, float("nan"))[UP].half()),
        ["site rad", UP, "NaN"],
    ),
    "integers": ("houlsby", lambda s: changed(s, DOWN, s[DOWN].int()), ["site rad", DOWN, "int32"]),
    "no tensor": ("houlsby", lambda s: changed(s, DOWN, [1.0]), ["site rad", DOWN, "list"]),
    "other stream": (
        "houlsby",
        lambda s: changed(s, DOWN, torch.ones(16, 31)),
        ["site rad", DOWN, "(16, 31)", "(16, 32)"],
    ),
    "other rank": ("houlsby", lambda s: changed(s, UP, torch.ones(16)), ["site rad", UP, "(16,)"]),
    "two widths": ("houlsby", lambda s: changed(s, UP, torch.ones(32, 12)), ["site rad", UP, "16", "12"]),
    "no neurons": ("houlsby", lambda s: changed(s, DOWN, torch.ones(0, 32)), ["site rad", DOWN, "(0, 32)"]),
    "missing tensor": (
        "houlsby",
        lambda s: without(s, "layer.0.output.up.bias"),
        ["site rad", "layer.0.output.up.bias"],
    ),
    "unknown layer": (
        "houlsby",
        lambda s: changed(s, "layer.9.output.up.bias", torch.ones(4)),
        ["site rad", "layer.9.output.up.bias"],
    ),
    "other kind": ("houlsby", lambda s: state("lora", generator(3)), ["site rad", "layer.0.attention.A"]),
    "no rule": ("compacter", lambda s: without(s, "shared.rule"), ["site rad", "shared.rule"]),
    "uneven blocks": (
        "compacter",
        lambda s: changed(s, "layer.0.output.down.bias", torch.ones(15)),
        ["site rad", "layer.0.output.down.bias", "(15,)"],
    ),
}


@pytest.mark.parametrize("server", [True, False])
@pytest.mark.parametrize("name", BAD)
def test_a_bad_adapter_is_refused_by_site_and_key(name, server):
    kind, spoil, parts = BAD[name]
    good = state(kind, generator(1))
    with pytest.raises(FedpeftError) as caught:
        integrate(
            [good, spoil(state(kind, generator(2)))],
            [1, 1],
            PIASettings(server=server),
            sites=["slake", "rad"],
            previous=good,
        )
    message = str(caught.value)
    assert all(part in message for part in parts), message
    assert message.count(". ") == 0


@pytest.mark.parametrize("name", ["nan", "other stream", "two widths", "missing tensor", "no rule"])
def test_it_is_refused_without_a_global_adapter_to_compare_with(name):
    kind, spoil, parts = BAD[name]
    with pytest.raises(FedpeftError) as caught:
        integrate([state(kind, generator(1)), spoil(state(kind, generator(2)))], [1, 1], sites=["slake", "rad"])
    assert all(part in str(caught.value) for part in parts)


def test_large_finite_values_are_not_taken_for_infinity():
    large = {key: tensor * 0 + 3e38 for key, tensor in state("houlsby", generator(1)).items()}
    merged, _ = integrate([large], [1], PIASettings(server=False))
    assert all(torch.equal(merged[key], large[key]) for key in large)


def test_nan_in_the_previous_global_adapter_is_refused():
    good = state("houlsby", generator(1))
    with pytest.raises(FedpeftError, match=r"the global adapter has NaN or infinity in layer\.0\.output\.down\.weight"):
        integrate([good], [1], previous=poisoned(good, DOWN, float("nan")))


def test_plain_fedavg_of_unequal_widths_is_refused_with_the_remedy():
    states = [state("houlsby", generator(k), width) for k, width in enumerate((16, 12))]
    with pytest.raises(FedpeftError, match=r"site rad has 12 neurons in layer\.0\.attention.*use server=True"):
        integrate(states, [1, 1], PIASettings(server=False), sites=["slake", "rad"])


@pytest.mark.parametrize(
    ("number", "counts", "names", "message"),
    [
        (2, [1, 0], ["a", "b"], "site b counts 0"),
        (2, [1, float("nan")], ["a", "b"], "site b counts nan"),
        (2, [1], ["a", "b"], "2 adapters, 1 counts"),
        (2, [1, 1], ["a", "a"], "1 different names"),
        (0, [], [], "at least one site"),
    ],
)
def test_counts_and_names_must_fit(number, counts, names, message):
    with pytest.raises(FedpeftError, match=message):
        integrate([state("houlsby", generator(k)) for k in range(number)], counts, sites=names)


def test_a_round_without_tensors_is_refused():
    with pytest.raises(FedpeftError, match="nothing to average"):
        integrate([{}, {}], [1, 1])


def test_the_state_dict_of_peft_is_refused_with_the_function_to_use():
    tower = nn.ModuleDict({"blocks": nn.ModuleList([nn.Linear(8, 8)])})
    config = adapters.config("pfeiffer", target_modules={"output": "blocks.{layer}"}, reduction_factor=2)
    model = get_peft_model(tower, config)
    states = [get_peft_model_state_dict(model)] * 2
    message = r"which is not a key such as .*: make states with fedpeft\.adapters\.adapter_state\(model\)"
    with pytest.raises(FedpeftError, match=rf"^states\[0\] has 'base_model\.model\..*{message}"):
        integrate(states, [1, 1])
    with pytest.raises(FedpeftError, match=message):
        align_global(adapters.adapter_state(model), states[0], settings=PIASettings(support="weights"))
    integrate([adapters.adapter_state(model)] * 2, [1, 1])


@pytest.mark.parametrize("gamma", [10, 100])
def test_weights_that_leave_an_adapter_of_zeros_are_refused(gamma):
    states = [state("houlsby", generator(k)) for k in range(3)]
    integrate(states, [1, 1, 1], PIASettings(gamma=gamma))
    with pytest.raises(
        FedpeftError, match=rf"normalize=False with gamma={gamma} leaves a share of .* or normalize=True"
    ):
        integrate(states, [1, 1, 1], PIASettings(gamma=gamma, normalize=False))


@pytest.mark.parametrize("sites", [3, 5])
def test_one_site_far_away_cannot_end_the_papers_weights(sites):
    """It moves the reference away from all; what the others have in common stays as it would without it."""
    near = [state("houlsby", generator(0)) for _ in range(sites - 1)]
    for number, one in enumerate(near):  # as training leaves them
        noise = generator(number)
        for key, tensor in one.items():
            one[key] = tensor + 1e-3 * torch.randn(tensor.shape, generator=noise)
    far = {key: tensor + 100 for key, tensor in near[0].items()}
    settings = PIASettings(gamma=0.1, normalize=False)
    expected, _ = integrate(near, [1] * len(near), settings)
    merged, report = integrate([*near, far], [1] * sites, settings)
    assert all(torch.equal(merged[key], expected[key]) for key in expected)
    place = next(iter(report["places"].values()))
    assert place[f"states[{sites - 1}]"]["weight"] == 0
    with pytest.raises(FedpeftError, match="leaves a share of"):  # half of the sites are not left out
        integrate([near[0], far], [1, 1], settings)


def plain(**changes):
    tensors = adapter("houlsby", generator(1))
    fields = ("down.weight", "down.bias", "up.weight", "up.bias")
    return Bottleneck(**dict(zip(Bottleneck._fields, (tensors[name] for name in fields), strict=True)) | changes)


GOOD = plain()
NARROW = plain(down=GOOD.down[:12], down_bias=GOOD.down_bias[:12], up=GOOD.up[:, :12])
PASS = r"pass Bottleneck\(down, down_bias, up, up_bias\)"


@pytest.mark.parametrize(
    ("bad", "settings", "message"),
    [
        ((GOOD.down, GOOD.up), {}, rf"^adapters\[1\] is a tuple of 2: {PASS}"),
        (GOOD.down, {}, rf"^adapters\[1\] is a Tensor: {PASS}"),
        (plain(up=None), {}, r"^adapters\[1\] has None for down or up"),
        (plain(down=GOOD.down.numpy()), {}, r"^adapters\[1\] has down\.weight as numpy\.ndarray: pass torch tensors"),
        (plain(down=GOOD.down.int()), {}, r"^adapters\[1\] has down\.weight as torch\.int32: only floating-point"),
        (plain(down=GOOD.down[:, :31]), {}, r"^adapters\[1\] has down\.weight with shape \(16, 31\), another adapter"),
        (plain(down=GOOD.down * float("nan")), {}, r"^adapters\[1\] has NaN or infinity in down\.weight"),
        (plain(up=GOOD.up[:, :12]), {}, r"^adapters\[1\] has 16 neurons in down\.weight but 12 in up\.weight"),
        (
            {"down": GOOD.down, "up": GOOD.up},
            {},
            r"^adapters\[1\] has the tensors down, up: .* down\.weight, up\.w",
        ),
        (GOOD, {"gama": 0.1}, r"^barycenter has no setting 'gama': did you mean 'gamma'"),
        (GOOD, {"gamma": -1}, r"gamma is -1"),
        (GOOD, {"weights": [1]}, r"^weights has 1 numbers for 2 adapters"),
        (GOOD, {"weights": [1, 0]}, r"^adapters\[1\] has the weight 0"),
        (NARROW, {"server": False}, r"^adapters\[1\] has 12 neurons, the global adapter 16"),
    ],
)
def test_barycenter_names_what_to_pass(bad, settings, message):
    with pytest.raises(FedpeftError, match=message) as caught:
        barycenter([GOOD, bad], **settings)
    assert "site" not in str(caught.value)
    assert "layer." not in str(caught.value)


def test_barycenter_of_nothing_is_refused():
    with pytest.raises(FedpeftError, match="barycenter got no adapters"):
        barycenter([])
