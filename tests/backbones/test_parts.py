# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The files of app_configs/backbones: one for each backbone, which fit any job and train a model of their kind."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_albef import albef_folder
from small_models import bert, blip2, llava, resnet

from fedpeft import answering, importance
from fedpeft.backbones import BACKBONES
from fedpeft.backbones.backbone import WHEEL
from fedpeft.core.keys import layer_of
from fedpeft.federate import federate
from fedpeft.job.composing import compose_parts, part_of
from fedpeft.site.learner import Learner

pytestmark = pytest.mark.slow

CONFIGS = Path(__file__).parents[2] / "app_configs"
PARTS = sorted(file.stem for file in CONFIGS.glob("backbones/*.yml"))
SMALL = {"albef": albef_folder, "albef_decoder": albef_folder, "llava": llava, "blip2": blip2, "mmbt_small": bert}
IMAGES = {"mmbt_small": resnet}
SIZES = {"albef": ["backbone.image_size=16", "backbone.text_length=20"]}
FEW = ["training.rounds=1", "training.local_epochs=1", "training.device=cpu", "method.probe_samples=2"]
FEW += [f"data.{split}_size=6" for split in ("train", "validation", "test")]


RELATIVE = 1e-3  # of scores in bfloat16
F3OCUS = ("methods/pfeiffer", "schedules/f3ocus", "schedules/kernel_of_outputs")


def composed(part, overrides=(), tuned_by=("methods/fedavg",)):
    parts = ["tasks/phantom", f"backbones/{part}", *tuned_by, "deployments/laptop"]
    return compose_parts(CONFIGS, parts, overrides)


def small_learner(part, folder, tuned_by=("methods/fedavg",), method="houlsby"):
    for name in ("backbone", "images"):
        (folder / name).mkdir()
    source = folder / "backbone"
    sizes = SIZES.get(part.removesuffix("_decoder"), [])
    sizes = [*sizes, *(f"backbone.image_source={IMAGES[one](folder / 'images')}" for one in {part} & IMAGES.keys())]
    own = f"method.settings={{{method}: {{reduction_factor: 2}}}}"
    sections = composed(part, [*FEW, f"backbone.source={SMALL[part](source)}", own, *sizes], tuned_by)
    site = sections["federation"]["sites"][0]
    return Learner.from_sections(sections, site=site, folder=folder / "state")


def test_every_backbone_that_is_one_model_has_a_part():
    named = {part_of(CONFIGS, f"backbones/{part}")["backbone"]["name"] for part in PARTS}
    assert named == set(BACKBONES.own_names()) - {"transformers", "mmbt"}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_fits_any_task_and_leaves_what_the_task_trains_with(part):
    sections, alone = composed(part), part_of(CONFIGS, f"backbones/{part}")
    pretrained = BACKBONES.get(sections["backbone"]["name"])
    assert answering.get(sections["training"].get("answering", "classification")).reads in pretrained.makes
    assert (pretrained.tiny or pretrained.default_source.startswith(WHEEL)) is ("source" not in sections["backbone"])
    task = part_of(CONFIGS, "tasks/phantom")["training"]
    assert task.keys() & alone.get("training", {}).keys() == ({"batch_size"} if pretrained.half else set())
    if pretrained.half:  # a model of billions
        assert sections["training"]["batch_size"] == 4, "F3OCUS, supplement"
        assert {sections["training"][name] for name in ("precision", "frozen_precision")} == {"bfloat16"}
        assert sections["training"]["checkpointing"]


@pytest.mark.parametrize("part", SMALL)
def test_a_small_model_of_the_kind_trains_as_its_part_says(part, tmp_path):
    learner = small_learner(part, tmp_path)
    (only,) = federate({learner.site: learner})
    assert math.isfinite(only.updates[learner.site].metrics["loss"])


def test_what_a_frozen_image_encoder_made_is_kept_and_changes_no_bit(tmp_path):
    states, calls = [], []
    for number, keeps in enumerate((True, False)):
        (folder := tmp_path / str(number)).mkdir()
        learner = small_learner("mmbt_small", folder)
        learner.training = replace(learner.training, local_epochs=2)
        if not keeps:
            learner.backbone.keep_encoded(0)
        images = []
        learner.backbone.images.encoder.register_forward_hook(lambda *_, images=images: images.append(1))
        (only,) = federate({learner.site: learner})
        states.append(only.updates[learner.site].state)
        calls.append(len(images))
    kept, computed = states
    assert calls[0] <= 18 < calls[1] <= 24, "six images of each split, those of training twice"
    assert all(torch.equal(tensor, computed[key]) for key, tensor in kept.items())


@pytest.mark.parametrize("part", SMALL)
def test_a_small_model_of_the_kind_is_scored_by_the_kernel_of_its_answers(part, tmp_path):
    learner = small_learner(part, tmp_path, F3OCUS, "pfeiffer")
    settings = learner.schedule.score_settings
    learner.schedule = replace(learner.schedule, score_settings={"target": "logits"})
    found = learner.score_layers(1, learner.trainable.state())
    parameters, layers = learner.trainable.parameters(), {}
    _, samples = learner._score_samples(1)
    for batch in samples:
        logits = learner.answering.eval()(batch.inputs)
        if logits.ndim == 3:  # written or ranked: the logit of each token of the answer
            logits = logits.flatten(0, 1)[batch.target.flatten() >= 0][:, batch.target[batch.target >= 0]].diagonal()
        for output in logits.flatten():
            rows = torch.autograd.grad(output, list(parameters.values()), retain_graph=True)
            for key, row in zip(parameters, rows, strict=True):
                layers.setdefault(layer_of(key), {}).setdefault(key, []).append(row.flatten().double())
    kernels = [sum(torch.stack(r) @ torch.stack(r).T for r in layers[n].values()) for n in sorted(layers)]
    expected = torch.stack([torch.linalg.eigvalsh(kernel)[-1] for kernel in kernels])
    assert found == pytest.approx((expected / expected.sum()).tolist(), rel=RELATIVE)
    learner.schedule = replace(learner.schedule, score_settings=settings)
    assert sum(learner.score_layers(1, learner.trainable.state())) == pytest.approx(1)


def test_every_score_is_computed_where_answers_are_written(tmp_path):
    learner = small_learner("llava", tmp_path, F3OCUS, "pfeiffer")
    for name in importance.names():
        learner.schedule = replace(learner.schedule, score=name, score_settings={})
        assert sum(learner.score_layers(1, learner.trainable.state())) == pytest.approx(1), name
