# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What LoRA starts from, and how often its product counts: PEFT's values, or those of the federated tuning of ViTs."""

import math
from pathlib import Path

import pytest
import torch

from fedpeft import adapters, methods
from fedpeft.alignment.factors import fresh_factors
from fedpeft.backbones import BackboneSettings, build
from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import build as build_settings
from fedpeft.job.composing import compose, recipes
from fedpeft.methods.first_values import misfit
from fedpeft.methods.setting_limits import refused_settings
from fedpeft.methods.settings import MethodSettings

START = {"start_std": 0.1}
CONFIGS = Path(__file__).parents[2] / "app_configs"
VISION_JOBS = [job for job in recipes(CONFIGS) if "vit_" in job or "isic" in job]


def prepared(name="lora", settings=None, seed=0):
    backbone = build(BackboneSettings(name="tiny-vit"))
    return methods.get(name).tuning().prepare(backbone, settings or {}, seed=seed)


def factors(trainable):
    state = trainable.state()
    return [{key: tensor for key, tensor in state.items() if key.endswith(end)} for end in (".A", ".B")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "settings"), [("lora", START), ("dora", START), ("lora_vpt", {"lora": START})])
def test_a_is_normal_with_the_papers_deviation_and_b_is_zero(name, settings):
    trainable = prepared(name, settings)
    down, up = factors(trainable)
    values = torch.cat([tensor.flatten() for tensor in down.values()])
    assert values.std().item() == pytest.approx(0.1, rel=0.03)
    assert abs(values.mean().item()) < 0.005
    assert values.abs().max() > 0.3  # a uniform one with this deviation would end at 0.17
    assert not any(tensor.any() for tensor in up.values())
    assert trainable.start_std == 0.1


@pytest.mark.parametrize("rank", [4, 8])
def test_xavier_is_that_of_torch(rank):
    trainable = prepared(settings={"r": rank, "start_std": "xavier"})
    down, up = factors(trainable)
    expected = torch.cat([torch.nn.init.xavier_normal_(torch.empty_like(tensor)).flatten() for tensor in down.values()])
    values = torch.cat([tensor.flatten() for tensor in down.values()])
    assert values.std().item() == pytest.approx(expected.std().item(), rel=0.05)
    assert not any(tensor.any() for tensor in up.values())
    tuning = methods.get("lora").tuning()
    declared = {k: tuning.first_values({"r": rank, "start_std": "xavier"}, k, tuple(t.shape)) for k, t in down.items()}
    assert not misfit(down, declared)
    fresh = fresh_factors(trainable.state(), 3, start_std="xavier")
    assert not misfit({key: fresh[key] for key in down}, declared)


@pytest.mark.slow
def test_it_depends_on_the_seed_and_the_usual_start_is_pefts():
    (first, _), (again, _), (other, _) = (factors(prepared(settings=START, seed=seed)) for seed in (0, 0, 1))
    default, _ = factors(prepared())
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not any(torch.equal(first[key], other[key]) for key in first)
    assert max(tensor.abs().max().item() for tensor in default.values()) <= 1 / math.sqrt(96)


def test_factors_that_start_anew_in_every_round_start_so_too():
    state = prepared(settings=START).state()
    fresh = fresh_factors(state, 3, start_std=0.1)
    values = torch.cat([fresh[key].flatten() for key in fresh if key.endswith(".A")])
    assert values.std().item() == pytest.approx(0.1, rel=0.03)
    assert fresh_factors(state, 3, start_std=None)["layer.0.query.A"].abs().max() <= 1 / math.sqrt(96)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"start_std": 0}, "lora has start_std=0, it must be a number above 0"),
        ({"start_std": "0.1"}, "lora has start_std='0.1'"),
        ({"start_std": "kaiming"}, "it must be a number above 0, or 'xavier'"),
        ({"start_std": True}, "lora has start_std=True"),
        ({"start_std": 0.1, "init_lora_weights": False}, "and another init_lora_weights: leave one of them out"),
    ],
)
def test_what_is_no_deviation_is_refused(settings, message):
    with pytest.raises(FedpeftError, match=message):
        prepared(settings=settings)
    with pytest.raises(FedpeftError, match=message):
        methods.get("lora").tuning().check(settings)


def test_a_site_has_limits_for_it_and_pefts_own_configuration_does_not_know_it():
    limits = methods.get("lora").limits
    assert not any(list(refused_settings(start, limits)) for start in (START, {"start_std": "xavier"}))
    assert all(list(refused_settings({"start_std": value}, limits)) for value in (0, 1.5, "0.1", True))
    with pytest.raises(FedpeftError, match="has no setting 'start_std'"):
        adapters.config("lora", **START)


@pytest.mark.parametrize("name", ["lora", "lora_vpt", "lora_dvpt"])
@pytest.mark.parametrize("job", VISION_JOBS)
def test_the_products_of_the_vision_jobs_count_twice_as_in_the_paper(job, name):
    section = compose(CONFIGS, job, [f"method.name={name}"])["method"]
    settings = build_settings(MethodSettings, section, section="method").settings_of("")
    products = prepared(name, settings).products()
    assert {product.scale for product in products.values()} == {2}


@pytest.mark.parametrize("job", [job for job in VISION_JOBS if job.startswith("paper/")])
def test_the_papers_jobs_have_its_rank_and_start(job):
    settings = compose(CONFIGS, job)["method"]["settings"]["lora"]
    assert (settings["r"], settings["start_std"]) == (4, 0.1)


@pytest.mark.parametrize("name", ["lora", "dora", "lora_vpt", "lora_dvpt"])
def test_the_papers_job_starts_every_form_of_lora_as_the_paper_says(name):
    sections = compose(CONFIGS, "paper/vit_ham10000", [f"method.name={name}"])
    settings = sections["method"]["settings"][name]
    assert settings.get("lora", settings) == {"r": 4, "lora_alpha": 8, **START}
    assert not list(refused_settings(settings, methods.get(name).limits))
