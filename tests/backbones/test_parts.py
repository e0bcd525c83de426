# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The files of app_configs/backbones: one for each backbone, which fit any job and train a model of their kind."""

import math
from pathlib import Path

import pytest
from small_albef import albef_folder
from small_models import blip2, llava

from fedpeft.backbones import BACKBONES
from fedpeft.client import answering
from fedpeft.client.learner import Learner
from fedpeft.federate import federate
from fedpeft.jobs import compose_parts, part_of

CONFIGS = Path(__file__).parents[2] / "app_configs"
PARTS = sorted(file.stem for file in CONFIGS.glob("backbones/*.yml"))
SMALL = {"albef": albef_folder, "albef_decoder": albef_folder, "llava": llava, "blip2": blip2}
SIZES = {"albef": ["backbone.image_size=16", "backbone.text_length=20"]}
FEW = ["training.rounds=1", "training.local_epochs=1", "training.device=cpu", "method.probe_samples=2"]
FEW += [f"data.{split}_size=6" for split in ("train", "validation", "test")]


def composed(part, overrides=()):
    parts = ["tasks/phantom", f"backbones/{part}", "methods/fedavg", "deployments/laptop"]
    return compose_parts(CONFIGS, parts, overrides)


def test_every_backbone_that_is_one_model_has_a_part():
    named = [part_of(CONFIGS, f"backbones/{part}")["backbone"]["name"] for part in PARTS]
    assert sorted(named) == sorted(set(BACKBONES.own_names()) - {"transformers"})


@pytest.mark.parametrize("part", PARTS)
def test_a_part_fits_any_task_and_leaves_what_the_task_trains_with(part):
    sections, alone = composed(part), part_of(CONFIGS, f"backbones/{part}")
    pretrained = BACKBONES.get(sections["backbone"]["name"])
    assert answering.get(sections["training"].get("answering", "classification")).reads in pretrained.makes
    assert pretrained.tiny is ("source" not in sections["backbone"])
    task = part_of(CONFIGS, "tasks/phantom")["training"]
    assert not task.keys() & alone.get("training", {}).keys()
    if pretrained.half:  # a model of billions
        assert {sections["training"][name] for name in ("precision", "frozen_precision")} == {"bfloat16"}
        assert sections["training"]["checkpointing"]


@pytest.mark.parametrize("part", SMALL)
def test_a_small_model_of_the_kind_trains_as_its_part_says(part, tmp_path):
    folder = tmp_path / "backbone"
    folder.mkdir()
    sizes = SIZES.get(part.removesuffix("_decoder"), [])
    few = [*FEW, f"backbone.source={SMALL[part](folder)}", "method.settings={houlsby: {reduction_factor: 2}}", *sizes]
    sections = composed(part, few)
    site = sections["federation"]["sites"][0]
    learner = Learner.from_sections(sections, site=site, folder=tmp_path / "state")
    (only,) = federate({site: learner})
    assert math.isfinite(only.updates[site].metrics["loss"])
