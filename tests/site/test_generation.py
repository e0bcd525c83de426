# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Answering by generation: the answer's tokens are learned, written greedily and compared in their normal form."""

import numpy as np
import pytest
import torch
from small_models import bert, blip2, gpt2, granite, llava, paligemma, qwen_vl

from fedpeft import answering, methods
from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.backbones import BackboneSettings, build, skeleton
from fedpeft.backbones.backbone import ANSWER, ANSWER_MASK
from fedpeft.core.errors import FedpeftError
from fedpeft.data.answers import AnswerVocabulary
from fedpeft.data.schema import Example
from fedpeft.federate import federate
from fedpeft.methods.trainable import parameter_count
from fedpeft.site.learner import Learner

pytestmark = pytest.mark.slow

SAMPLES = {"where is the nodule ?": "in the image", "is there an effusion in the image ?": "why", "why ?": "nodule"}
FOLDERS = {"llava": llava, "blip2": blip2, "qwen_vl": qwen_vl, "paligemma": paligemma, "gpt2": gpt2}
OWN_NAMES = ("llava", "blip2")


@pytest.fixture(scope="module", params=FOLDERS)
def source(request, tmp_path_factory):
    return request.param, str(FOLDERS[request.param](tmp_path_factory.mktemp(request.param)))


def generating(name, folder):
    backbone = build(BackboneSettings(name=name if name in OWN_NAMES else "transformers", source=folder))
    trainable = methods.get("houlsby").tuning().prepare(backbone, {"reduction_factor": 2}, seed=0)
    settings = TrainingSettings(rounds=1, answering="generation")
    return answering.build(backbone, AnswerVocabulary(SAMPLES.values()), settings, torch.Generator()), trainable


def examples():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, size=(len(SAMPLES), 20, 24, 3), dtype=np.uint8)
    return [
        Example(image, question, answer, False, "image", alternatives=("never",))
        for image, (question, answer) in zip(images, SAMPLES.items(), strict=True)
    ]


def batch_of(generation, chosen):
    return generation.collate([example.image for example in chosen], chosen)


def test_it_writes_what_it_was_trained_to_write(source):
    generation, trainable = generating(*source)
    batch = batch_of(generation, examples())
    frozen = {name: p.clone() for name, p in generation.named_parameters() if not p.requires_grad}
    optimizer = torch.optim.Adam(trainable.parameters().values(), lr=2e-2)
    torch.manual_seed(0)
    for step in range(200):
        if step % 40 == 39 and generation.eval().right(batch).all():
            break
        optimizer.zero_grad()
        generation.train().loss(generation(batch.inputs), batch.target).backward()
        optimizer.step()
    generation.eval()
    assert generation.right(batch).tolist() == [True] * len(SAMPLES)
    with torch.no_grad():  # each token, those before it given, is the one that it writes
        logits = generation(batch.inputs)
    present = batch.target >= 0
    assert torch.equal(logits.argmax(-1)[present], batch.target[present])
    assert bool((logits[~present] == 0).all())
    assert all(torch.equal(p, frozen[name]) for name, p in generation.named_parameters() if name in frozen)
    others = batch_of(generation, [Example(e.image, e.question, "other", False, "image") for e in examples()])
    assert generation.right(others).tolist() == [False] * len(SAMPLES)


def test_a_sample_does_not_depend_on_its_batch(source):
    generation, _ = generating(*source)
    generation.eval()
    together = batch_of(generation, examples())
    with torch.no_grad():
        losses = generation.loss(generation(together.inputs), together.target, reduction="none")
        summed = generation.log_probability(generation(together.inputs), together.target)
        torch.testing.assert_close(summed, -losses * (together.target >= 0).sum(-1))
        for number, example in enumerate(examples()):
            alone = batch_of(generation, [example])
            own = generation.loss(generation(alone.inputs), alone.target)
            assert torch.isclose(own, losses[number], rtol=1e-4)
        assert torch.isclose(generation.loss(generation(together.inputs), together.target), losses.mean())


def test_a_written_answer_has_the_probability_of_its_tokens(source):
    generation, _ = generating(*source)
    batch, samples = batch_of(generation.eval(), examples()), examples()
    with torch.no_grad():
        found = [answers for (answers,) in generation.answers(batch, max_answers=5)]
        texts = [scored.text for scored in found]
        inputs = generation.writer.collate([e.image for e in samples], [e.question for e in samples], texts)
        tokens = generation(inputs).log_softmax(-1).gather(-1, inputs[ANSWER][..., None])[..., 0]
    written = generation.writer.write(batch.inputs, generation.longest)
    assert [" ".join(text.lower().split()) for text in written] == texts
    expected = (tokens * inputs[ANSWER_MASK]).sum(-1).exp()
    assert torch.allclose(expected, torch.tensor([scored.probability for scored in found]), rtol=1e-3)


def test_what_nobody_sees_is_no_answer(tmp_path, monkeypatch):
    generation, _ = generating("gpt2", str(gpt2(tmp_path)))
    batch = batch_of(generation.eval(), examples())
    monkeypatch.setattr(generation.writer, "write", lambda inputs, longest: ["\u200b", " \u2060\n", "No\u200bdule "])
    assert generation.right(batch).tolist() == [False, False, True]
    with torch.no_grad():
        assert [scored.text for (scored,) in generation.answers(batch, max_answers=1)] == ["", "", "nodule"]


def test_the_end_of_an_answer_is_learned_and_a_prompt_does_not_end(source):
    generation, _ = generating(*source)
    batch = batch_of(generation, examples())
    end = generation.writer.tokenizer.eos_token_id
    ends = batch.inputs[ANSWER_MASK].sum(-1) - 1
    assert (batch.inputs[ANSWER][torch.arange(len(ends)), ends] == end).all()
    assert not (batch.inputs["input_ids"][:, -1] == end).any()
    assert generation.longest == 4
    assert not list(generation.head.parameters())


@pytest.mark.parametrize(
    ("folder", "message"),
    [(None, "does not write text"), (bert, "does not write text"), (granite, "changes its logits")],
    ids=["tiny-vilt", "bert", "granite"],
)
def test_a_model_that_does_not_write_is_refused(folder, message, tmp_path):
    settings = BackboneSettings(name="transformers", source=str(folder(tmp_path))) if folder else BackboneSettings()
    backbone = build(settings)
    with pytest.raises(FedpeftError, match=rf"{message}.*set training.answering to 'classification'"):
        answering.build(backbone, AnswerVocabulary(["a"]), TrainingSettings(rounds=1, answering="generation"), None)


@pytest.mark.parametrize(("half", "scale"), [(False, 1.0005), (True, 1.02)])  # of bfloat16's 8 bits 1.0005 changes none
def test_a_small_change_of_the_logits_is_seen_in_any_precision(tmp_path, half, scale):
    backbone = build(BackboneSettings(name="transformers", source=str(granite(tmp_path, scale=scale))), half=half)
    with pytest.raises(FedpeftError, match="changes its logits"):
        answering.build(backbone, AnswerVocabulary(["a"]), TrainingSettings(rounds=1, answering="generation"), None)


BFLOAT16 = ("training.precision=bfloat16", "training.frozen_precision=bfloat16")
RUNS = [
    ("llava", ("method.aggregation=pia",)),
    ("llava", BFLOAT16),
    ("blip2", (*BFLOAT16, "method.aggregation=pia")),
    ("blip2", ("backbone.image_size=32",)),
    ("llava", ("schedule.solver=exact", "schedule.budget=1")),
]


def learners(sections, tmp_path, name, *overrides, sites=("slake", "vqa-rad")):
    chosen = sections(
        f"federation.sites=[{', '.join(sites)}]",
        f"backbone.name={name}",
        f"backbone.source={FOLDERS[name](tmp_path / 'model')}",
        "training.answering=generation",
        "training.rounds=2",
        *overrides,
    )
    return {s: Learner.from_sections(chosen, site=s, folder=tmp_path / s) for s in sites}


@pytest.mark.parametrize(("name", "overrides"), RUNS, ids=["pia", "bf16", "blip2 bf16", "image size", "scheduled"])
def test_a_federation_of_models_that_write(name, overrides, sections, tmp_path):
    made = learners(sections, tmp_path, name, *overrides)
    results = list(federate(made))
    assert {learner.unanswerable for learner in made.values()} == {0}
    for site in made:
        losses = [result.updates[site].metrics["loss"] for result in results]
        assert losses[1] < losses[0]
        assert 0 <= results[-1].updates[site].metrics["overall"] <= 1
    assert all(key.startswith("layer.") for key in results[-1].state)


def test_a_site_that_writes_has_no_head_to_train_where_its_budget_is_nothing(sections, tmp_path):
    own = ("schedule.solver=exact", "schedule.budget=1", "schedule.site_budgets={slake: 0}")
    made = learners(sections, tmp_path, "llava", *own)
    assert made["vqa-rad"].layer_budget() == 1
    with pytest.raises(FedpeftError, match="site slake has a budget of 0 layers and no head to train"):
        made["slake"].layer_budget()


def test_a_site_of_a_secure_sum_has_no_head_to_draw(sections, tmp_path):
    """Its seeds have a salt; building the way of answering again would compare half with single precision."""
    made = learners(sections, tmp_path, "llava", "training.precision=bfloat16", sites=("slake",))
    (first, *_) = federate(made, salts=lambda site, round, received: "salt")
    assert first.updates["slake"].metrics["loss"] > 0
    assert made["slake"].model.drawn_head(1) == {}


PAPER = ("schedule.solver=nsga2", "schedule.score=lntk", "schedule.budget=1", "training.batch_size=4")
OUTPUTS = "schedule.score_settings={target: logits, directions: 4}"


@pytest.mark.parametrize("way", ["classification", "generation"])
@pytest.mark.parametrize("name", OWN_NAMES)
def test_the_papers_score_is_of_a_head_or_of_what_is_written(name, way, sections, tmp_path):
    """As the jobs of LLaVA and BLIP-2 under jobs/paper have it, with a linear head, and as their parts write."""
    one = learners(sections, tmp_path, name, *PAPER, OUTPUTS, f"training.answering={way}", sites=("slake",))["slake"]
    scores = one.score_layers(1, one.first_state())
    assert len(scores) == 2
    assert sum(scores) == pytest.approx(1)
    update = one.train_round(1, one.first_state(), [1])
    assert {key.split(".")[1] for key in update.state} == {"1"}
    assert 0 <= update.metrics["overall"] <= 1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("method.name=classifier", "method.aggregation=none"), "trains the head alone"),
        (("method.head=federated",), "head is 'federated'"),
    ],
)
def test_what_needs_a_classifier_is_refused(overrides, message, sections, tmp_path):
    with pytest.raises(FedpeftError, match=message):
        learners(sections, tmp_path, "llava", *overrides, sites=("slake",))["slake"].train_round(1, {})


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("{question}", "once each"),
        ("{image}{question}{question}", "once each"),
        ("{image}{question}" + 400 * "x", "at most 400 characters"),
    ],
)
def test_a_prompt_needs_image_and_question(prompt, message):
    with pytest.raises(FedpeftError, match=message) as refused:
        BackboneSettings(name="llava", prompt=prompt)
    assert refused.value.setting == "prompt"


def test_a_prompt_is_what_stands_around_the_question(tmp_path):
    folder = str(llava(tmp_path))
    short, long = (
        build(BackboneSettings(name="llava", source=folder, prompt=prompt)).collate(
            [np.zeros((8, 8, 3), np.uint8)], ["why"]
        )
        for prompt in ("{image}{question}", "in the <image> <question> is")
    )
    assert long["input_ids"].shape[1] == short["input_ids"].shape[1] + 3
    with pytest.raises(FedpeftError, match="does not read images as tokens of its text: leave it out"):
        build(BackboneSettings(name="transformers", source=str(bert(tmp_path / "bert")), prompt="{image}{question}"))
    with pytest.raises(FedpeftError, match="reads image and question apart: leave it out"):
        BackboneSettings(prompt="{image}{question}")
    with pytest.raises(FedpeftError, match="parts of it are special tokens"):
        build(BackboneSettings(name="llava", source=folder, prompt="{image} <bos> {question}"))
    with pytest.raises(FedpeftError, match=r"begin it with '\{image\}'"):
        build(BackboneSettings(name="blip2", source=str(blip2(tmp_path / "blip2")), prompt="where {image}{question}"))


@pytest.mark.parametrize(("name", "width", "parameters"), [("llava", 4096, 134_496_256), ("blip2", 2560, 52_602_880)])
def test_adapters_stand_in_the_32_layers_of_the_language_model(name, width, parameters):
    backbone = skeleton(name)
    assert (backbone.num_layers, backbone.hidden_size) == (32, width)
    neurons = width // 16
    assert parameters == 32 * 2 * (2 * width * neurons + neurons + width)
    assert parameter_count(backbone, methods.get("houlsby").tuning(), {}).exchanged == parameters
