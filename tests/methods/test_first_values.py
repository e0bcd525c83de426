# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Which values a tensor can begin with, by the distribution that its method declares."""

import re

import pytest
import torch
from grids import each
from scipy import stats

from fedpeft import methods
from fedpeft.answering import classification
from fedpeft.methods.first_values import Bounded, Constant, Normal, Uniform, key_generator, misfit

SIZE = 64, 16
DISTRIBUTIONS = [Constant(), Constant(0.1), Normal(0.02), Uniform(0.25), Uniform(0.5, known=False)]


def drawn(first, shape=SIZE, seed=0):
    return first.drawn(shape, key_generator(seed, "layer.0.output.down.weight"))


@pytest.mark.slow
@each("dtype", [torch.float32, torch.bfloat16, torch.float16])
@each("first", DISTRIBUTIONS)
def test_what_a_method_draws_fits_in_every_dtype_and_size(first, dtype):
    for shape in ((1,), (2, 2), SIZE, (1000, 1000)):
        for seed in range(3):
            assert first.misfit(drawn(first, shape, seed).to(dtype)) is None


HALF = torch.full(SIZE, 0.02)
HALF[::2] = -0.02
OTHERS = {
    "one number": torch.full(SIZE, 0.3),
    "the standard deviation": torch.full(SIZE, 0.02),
    "plus and minus the standard deviation": HALF,
    "zeros": torch.zeros(SIZE),
    "twice as wide": drawn(Normal(0.04)),
    "half as wide": drawn(Normal(0.01)),
    "another mean": drawn(Normal(0.02)) + 0.01,
    "one large value": torch.cat([drawn(Normal(0.02)).flatten(), torch.tensor([1.0])]),
    "the largest allowed number": torch.full(SIZE, -1e6),
}


@each("values", OTHERS.values())
@each("first", [Constant(0.1), Normal(0.02), Uniform(0.5)])
def test_anything_else_does_not_fit(first, values):
    assert first.misfit(values)


def test_of_an_unknown_bound_the_values_say_which():
    first = Uniform(0.5, known=False)
    assert first.misfit(drawn(Uniform(0.1))) is None
    for values in (torch.full(SIZE, 0.1), torch.zeros(SIZE), drawn(Normal(0.02)), drawn(Uniform(0.6))):
        assert first.misfit(values)


def test_small_tensors_are_looked_at_together():
    state = {f"layer.{n}.output.down.weight": torch.full((2, 2), 0.02) for n in range(6)}
    assert misfit(dict(list(state.items())[:1]), dict.fromkeys(state, Normal(0.02))) == ""
    said = misfit(state, dict.fromkeys(state, Normal(0.02)))
    assert said == (
        "values of root mean square 0.02 in 6 tensors together, where its method begins with values from N(0, 0.02^2)"
    )


def test_the_distance_is_that_of_kolmogorov_and_smirnov():
    """The limit that n values keep to but for a chance of 1e-9 lies beyond the exact one, by what rounding adds."""
    for count in (100, 1000, 10_000):
        exact = stats.kstwo.ppf(1 - 1e-9, count)
        moved = drawn(Normal(1.0), (count,)).double().sort().values
        quantiles = torch.special.ndtri((torch.arange(count, dtype=torch.float64) + 0.5) / count)
        assert Normal(1.0).misfit(moved) is None
        for shift, fits in ((0.9 * exact, True), (1.2 * exact + 0.02, False)):
            p = (torch.special.ndtr(quantiles) + shift).clamp(1e-12, 1 - 1e-12)
            assert (Normal(1.0).misfit(torch.special.ndtri(p)) is None) == fits


TENSORS = {  # a method, its settings, a key and shape: what it declares
    ("houlsby", "layer.0.output.down.weight"): Normal(0.02),
    ("houlsby", "layer.0.output.up.bias"): Constant(),
    ("pfeiffer", "layer.0.output.norm.weight"): Constant(1.0),
    ("parallel", "layer.0.output.up.weight"): Constant(),
    ("compacter", "shared.rule"): Normal(0.01),
    ("compacter", "layer.0.output.down.left"): Uniform((6 / 80) ** 0.5),
    ("adapterfusion", "layer.0.output.down.weight"): Normal(0.02),
    ("feddat_adapterfusion", "layer.0.output.up.weight"): Normal(0.02),
    ("feddat_compacter", "shared.rule"): Normal(0.01),
    ("lora", "layer.0.query.A"): Uniform(0.25),
    ("lora", "layer.0.query.B"): Constant(),
    ("dora", "layer.0.query.magnitude"): Bounded(),
    ("lora_vpt", "layer.0.query.A"): Uniform(0.25),
    ("lora_vpt", "layer.0.prompt.tokens"): Uniform((6 / 16) ** 0.5, known=False),
    ("attention_vpt", "backbone.layer.0.query.weight"): Bounded(),
    ("promptfl", "layer.0.prompt.tokens"): Normal(0.02),
    ("dvpt", "layer.0.prompt.basis"): Bounded(),
    ("ia3", "layer.0.key.ia3_l"): Constant(1.0),
    ("oft", "layer.0.query.oft_R.weight"): Constant(),
    ("hra", "layer.0.query.hra_u"): Uniform((2 / 16) ** 0.5, copies=2),
    ("vera", "layer.0.query.vera_lambda_d"): Constant(0.1),
    ("vera", "layer.0.query.vera_lambda_b"): Constant(),
    ("fourierft", "layer.0.query.fourierft_spectrum"): Constant(),
    ("miss", "layer.0.query.miss_block"): Constant(),
    ("full", "backbone.layer.0.query.weight"): Bounded(),
    ("layernorm", "layer.0.output_norm.ln_tuning_layers.weight"): Bounded(),
}


@pytest.mark.parametrize(("place", "expected"), TENSORS.items(), ids=lambda each: re.sub(r"\W+", "-", str(each)))
def test_methods_declare_how_they_begin(place, expected):
    name, key = place
    assert methods.get(name).tuning().first_values({}, key, SIZE) == expected


def test_settings_change_how_lora_begins():
    declared = methods.get("lora").tuning().first_values
    assert declared({"start_std": 0.5}, "layer.0.query.A", SIZE) == Normal(0.5)
    assert declared({"init_lora_weights": False}, "layer.0.query.B", SIZE) == Bounded()


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_a_head_begins_as_declared(kind):
    head = classification.build_head(kind, 16, 8, torch.Generator().manual_seed(0)).state_dict()
    assert (
        misfit(head, {key: classification.first_values(f"head.{key}", tuple(each.shape)) for key, each in head.items()})
        == ""
    )
    assert classification.first_values("head.0.weight", SIZE) == Normal(classification.INITIAL_STD)
