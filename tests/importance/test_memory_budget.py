# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Algorithm 46 on a network whose memory can be counted by hand."""

import gc
import weakref
from itertools import combinations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedpeft.core.errors import FedpeftError
from fedpeft.importance import MemorySettings, count_layers, layer_budget, layer_memory, memory_budget
from fedpeft.importance.memory_budget import available_memory

SAMPLES, WIDTH, LAYERS = 64, 32, 4
ACTIVATION = 4 * SAMPLES * WIDTH
PARAMETERS = 4 * (WIDTH * WIDTH + WIDTH)


@pytest.mark.parametrize(
    ("costs", "available", "count"),
    [
        ([2, 2, 2], 6, 3),
        ([2, 2, 2], 5.9, 2),
        ([2, 2, 2], 1, 0),
        ([2, 2, 2], -1, 0),
        ([5, 1, 1], 4, 0),  # the walk stops at the first layer that does not fit
        ([1, 5, 1], 4, 1),
        ([], 4, 0),
        ([1, float("nan"), 100], 5, 1),
    ],
)
def test_the_walk_counts_layers_until_one_does_not_fit(costs, available, count):
    assert count_layers(costs, available) == count


class Stack(nn.Module):
    """Linear and ReLU, a few times; a ReLU's output is the next layer's input, kept once."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x):
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.head(x)


@pytest.fixture
def case():
    model = Stack()
    batch = {"x": torch.randn(SAMPLES, WIDTH), "y": torch.zeros(SAMPLES, dtype=torch.long)}
    layers = {number: list(layer.parameters()) for number, layer in enumerate(model.layers)}

    def loss(logits, batch):
        return F.cross_entropy(logits, batch["y"], reduction="none")

    return (lambda batch: model(batch["x"]), layers, batch, loss), model


def test_without_choice_every_layer_pays_for_its_own_activations(case):
    arguments, model = case
    # weights, gradients, two moments, and the layer's input, its output being the next one's
    expected = [ACTIVATION + 4 * PARAMETERS] * LAYERS
    fixed, costs = layer_memory(*arguments, model=model, settings=MemorySettings(choice="last"))
    assert costs.tolist() == expected
    assert fixed >= ACTIVATION + 4 * 3 * (WIDTH + 1)  # the head's input and gradients
    _, costs = layer_memory(*arguments, model=model, settings=MemorySettings(choice="last", optimizer_tensors=0))
    assert costs.tolist() == [ACTIVATION + 2 * PARAMETERS] * LAYERS


def test_with_free_choice_the_first_layer_pays_for_the_whole_way_back(case):
    arguments, model = case
    _, costs = layer_memory(*arguments, model=model)
    # every ReLU keeps its output, which a later layer needs anyway
    assert costs.tolist() == [LAYERS * ACTIVATION + 4 * PARAMETERS] + [4 * PARAMETERS] * (LAYERS - 1)


def test_the_budget_grows_with_the_memory_and_shrinks_with_the_margin(case):
    arguments, model = case
    before = [p.requires_grad for p in model.parameters()]
    fixed, costs = layer_memory(*arguments, model=model, settings=MemorySettings(choice="last"))
    for count in range(LAYERS + 1):
        exact = (fixed + float(costs[:count].sum())) / 2**20
        for available, expected in ((exact, count), (exact * 0.999, max(0, count - 1))):
            settings = MemorySettings(choice="last", available_mib=available, margin=0.0)
            assert layer_budget(*arguments, model=model, settings=settings) == expected
        tight = MemorySettings(choice="last", available_mib=exact / 0.8 * 1.001, margin=0.2)
        assert layer_budget(*arguments, model=model, settings=tight) == count
    assert [p.requires_grad for p in model.parameters()] == before


@pytest.fixture
def failing(monkeypatch):
    """Function: measuring a step raises an error if more than so many layers train in it."""
    measured = memory_budget._saved_bytes

    def install(error, *, above):
        def measure(step, model):
            if sum(layer.weight.requires_grad for layer in model.layers) > above:
                raise error
            return measured(step, model)

        monkeypatch.setattr(memory_budget, "_saved_bytes", measure)

    return install


@pytest.mark.parametrize("error", [torch.OutOfMemoryError(), RuntimeError("can't allocate memory"), MemoryError()])
@pytest.mark.parametrize(
    ("choice", "fits", "budget"), [("any", -1, 0), ("any", 0, 0), ("last", -1, 0), ("last", 0, 0), ("last", 2, 2)]
)
def test_layers_whose_pass_does_not_fit_do_not_count(case, failing, error, choice, fits, budget):
    arguments, model = case
    failing(error, above=fits)
    settings = MemorySettings(choice=choice, available_mib=9)
    assert layer_budget(*arguments, model=model, settings=settings) == budget
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_another_error_of_a_pass_is_raised(case, failing):
    arguments, model = case
    failing(RuntimeError("shapes do not match"), above=0)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        layer_budget(*arguments, model=model)


class Unequal(nn.Module):
    """Residual blocks of different widths."""

    def __init__(self):
        super().__init__()
        blocks = [nn.Sequential(nn.Linear(WIDTH, w), nn.Tanh(), nn.Linear(w, WIDTH)) for w in (4, 64, 8, 256, 24)]
        self.layers = nn.ModuleList(blocks)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(F.relu(x))
        return self.head(x)


def needs(model, batch, loss, chosen):
    """What these layers need, measured as one layer while all others are frozen."""
    group = [p for number in chosen for p in model.layers[number].parameters()]
    model.layers.requires_grad_(False)
    fixed, costs = layer_memory(lambda b: model(b["x"]), {"chosen": group}, batch, loss, model=model)
    model.layers.requires_grad_(True)
    return fixed + float(costs.sum())


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["any", "last"])
def test_with_unequal_layers_what_the_budget_promises_fits(case, choice):
    (_, _, batch, loss), _ = case
    model = Unequal()
    numbers = range(len(model.layers))
    layers = {number: list(model.layers[number].parameters()) for number in numbers}
    several = [some for n in range(1, 6) for some in combinations(numbers, n)]
    choices = {some: needs(model, batch, loss, some) for some in several}
    counted = set()
    for available in (*choices.values(), *(value - 1 for value in choices.values())):
        settings = MemorySettings(choice=choice, available_mib=available / 2**20, margin=0.0)
        count = layer_budget(lambda b: model(b["x"]), layers, batch, loss, model=model, settings=settings)
        counted.add(count)
        promised = [c for c in choices if len(c) == count and (choice == "any" or c == tuple(numbers)[-count:])]
        assert all(choices[chosen] <= available for chosen in promised)
    assert counted == set(range(len(model.layers) + 1))


def test_layers_may_be_iterators(case):
    arguments, model = case
    function, layers, *others = arguments
    once = ({name: iter(group) for name, group in layers.items()} for _ in range(2))
    (_, costs), (_, expected) = (layer_memory(function, g, *others, model=model) for g in (next(once), layers))
    assert torch.equal(costs, expected)
    assert layer_budget(function, next(once), *others, model=model, settings=MemorySettings(available_mib=9)) == LAYERS


def test_reserved_memory_counts_where_the_free_memory_is_given(case):
    arguments, model = case
    for reserved, count in ((0, LAYERS), (9, 0)):
        settings = MemorySettings(available_mib=9, reserved_mib=reserved)
        assert layer_budget(*arguments, model=model, settings=settings) == count


@pytest.mark.parametrize("choice", ["any", "last"])
def test_measuring_changes_neither_statistics_nor_the_global_generator(choice):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    layers = {"first": model[0].parameters(), "last": model[3].parameters()}
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    generator = torch.get_rng_state()
    x, settings = torch.ones(5, 3), MemorySettings(choice=choice)
    layer_memory(model, layers, x, lambda y, _: y.square().sum(dim=1), model=model, settings=settings)
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


def test_the_optimizer_state_of_the_head_counts(case):
    arguments, model = case
    without, with_state = (
        layer_memory(*arguments, model=model, settings=MemorySettings(optimizer_tensors=tensors))[0]
        for tensors in (0, 2)
    )
    assert with_state - without == 2 * 4 * 3 * (WIDTH + 1)


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["any", "last"])
def test_measuring_leaves_nothing_in_memory(case, choice):
    (model_fn, *others), model = case
    seen = []
    for layer in model.layers:
        layer.register_forward_hook(lambda module, inputs, output: seen.extend(map(weakref.ref, (*inputs, output))))
    layer_memory(
        lambda batch: model_fn({**batch, "x": batch["x"].clone()}),
        *others,
        model=model,
        settings=MemorySettings(choice=choice),
    )
    gc.collect()
    assert len(seen) > LAYERS
    assert not [tensor for tensor in seen if tensor() is not None]


def test_this_machine_has_room_for_a_tiny_model(case):
    arguments, model = case
    assert available_memory(torch.device("cpu")) > 0
    assert layer_budget(*arguments, model=model) == LAYERS


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_the_peak_is_measured(case):
    (_, _, batch, loss), model = case
    model.cuda()
    batch = {key: value.repeat(64, *[1] * (value.dim() - 1)).cuda() for key, value in batch.items()}
    layers = {number: list(layer.parameters()) for number, layer in enumerate(model.layers)}
    fixed, costs = layer_memory(lambda b: model(b["x"]), layers, batch, loss, model=model)
    assert fixed > 0
    assert float(costs[0]) >= 64 * ACTIVATION + 4 * PARAMETERS
    assert layer_budget(lambda b: model(b["x"]), layers, batch, loss, model=model) == LAYERS


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"margin": 1.0}, "margin is 1.0"),
        ({"margin": -0.1}, "margin is -0.1"),
        ({"optimizer_tensors": -1}, "optimizer_tensors is -1"),
        ({"choice": "best"}, "choice is 'best', allowed are any, last"),
        ({"available_mib": float("nan")}, "available_mib is nan"),
    ],
)
def test_bad_settings_are_refused(settings, sentence):
    with pytest.raises(FedpeftError, match=sentence):
        MemorySettings(**settings)


def test_the_memory_of_an_unknown_device_must_be_given(case):
    with pytest.raises(FedpeftError, match="device meta is not known: set available_mib"):
        available_memory(torch.device("meta"))


def test_main_memory_that_is_kept_for_something_else_is_not_free(case, monkeypatch):
    arguments, model = case
    monkeypatch.setattr("fedpeft.importance.memory_budget.available_memory", lambda _: 8 * 2**20)
    chosen = {mib: MemorySettings(reserved_mib=mib) for mib in (0, 7, 9)}
    counts = [layer_budget(*arguments, model=model, settings=one) for one in chosen.values()]
    assert counts == [LAYERS, LAYERS, 0]
