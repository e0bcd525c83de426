# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Answering by ranking: ALBEF's decoder, its loss, and which answer of the pool is the most probable."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from counted import counted
from small_albef import Reference, albef_folder, albef_tensors, pfeiffer_adapters, tuned_tensors

from fedpeft import answering, methods
from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.backbones import BackboneSettings, build, skeleton
from fedpeft.backbones.backbone import ANSWER, ANSWER_MASK
from fedpeft.core.errors import FedpeftError
from fedpeft.data.answers import AnswerVocabulary
from fedpeft.data.schema import Example
from fedpeft.importance import score
from fedpeft.site.learner import Learner
from fedpeft.site.loop import mean_loss, parts_of
from fedpeft.site.metrics import measured

pytestmark = pytest.mark.slow

POOL = AnswerVocabulary(["effusion in image", "nodule", "nodule in the image", "why", "where"])
INPUTS = ("input_ids", "attention_mask", "pixel_values")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return albef_folder(tmp_path_factory.mktemp("albef"))


def load(folder, name="albef-decoder"):
    return build(BackboneSettings(name=name, source=str(folder), text_length=20)).eval()


def ranking(backbone, candidates=0, pool=POOL):
    settings = TrainingSettings(rounds=1, answering="ranking", candidates=candidates)
    return answering.build(backbone, pool, settings, torch.Generator()).eval()


def examples():
    rng = np.random.default_rng(0)
    pairs = [
        ("where is the nodule ?", "nodule in the image"),
        ("why ?", "why"),
        ("is there an effusion ?", "unseen"),
    ]
    return [
        Example(rng.integers(0, 256, (20, 20, 3), dtype=np.uint8), question, answer, closed=False, image_id="")
        for question, answer in pairs
    ]


def batch_of(way):
    return way.collate([example.image for example in examples()], examples())


def by_hand(way, batch, places=None, decoder=None):
    """Log-probability of each answer of the pool for each question (B, N), one pair at a time.

    Args:
        way, batch: see above.
        places: of adapters.
        decoder: tensors of which the decoder's layers are; None: the encoder's.
    """
    reference = Reference(albef_tensors(), places)
    decoder = Reference(decoder, places) if decoder else reference
    states = reference.states(*(batch.inputs[name] for name in INPUTS))
    rows = []
    for number in range(len(states)):
        row = []
        for answer in POOL.answers:
            words = ["[CLS]", *answer.split(), "[SEP]"]
            ids = torch.tensor([way.backbone.tokenizer.convert_tokens_to_ids(words)])
            logits = decoder.words(ids[:, :-1], states[[number]], batch.inputs["attention_mask"][[number]])
            row.append(logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).sum())
        rows.append(torch.stack(row))
    return torch.stack(rows)


def test_ranking_is_the_decoders_log_probability_of_each_answer(folder):
    way = ranking(load(folder))
    batch = batch_of(way)
    expected = by_hand(way, batch)
    assert torch.allclose(way.answer_scores(batch.inputs), expected, atol=1e-4)
    best = [POOL.answers[number] for number in expected.argmax(1)]
    assert way.right(batch).tolist() == [a == example.answer for a, example in zip(best, examples(), strict=True)]
    assert way.unanswerable(examples()) == 1


TUNED = tuned_tensors(albef_tensors(), albef_tensors(seed=1))


def test_a_predicted_answer_has_its_share_of_the_probability_of_those_ranked(folder):
    way = ranking(load(folder), candidates=3)
    batch = batch_of(way)
    scores = way.answer_scores(batch.inputs)
    for found, row, chosen in zip(way.answers(batch, 2), scores, way.chosen(batch), strict=True):
        assert [POOL.answers[number] for number in row.topk(2).indices] == [scored.text for scored in found]
        assert found[0].text == POOL.answers[chosen]
        assert found[0].probability == pytest.approx(row.softmax(0).max().item(), rel=1e-4)
    assert all(sum(s.probability > 0 for s in found) == 3 for found in way.answers(batch, 5))


@pytest.mark.parametrize("candidates", [0, 1, 3])
def test_answers_of_the_same_tokens_are_ranked_once_and_are_right_alike(folder, candidates):
    """Whichever the model chooses has a second spelling, which the tokenizer reads alike."""
    first = ["where is", "why image"]
    both = AnswerVocabulary([*first, "where-is", "why-image"])
    backbone = load(folder)
    way, alone = (ranking(backbone, candidates, pool) for pool in (both, AnswerVocabulary(first)))
    batch = batch_of(way)
    assert torch.equal(way.answer_scores(batch.inputs)[:, :2], alone.answer_scores(batch.inputs))
    assert way.answers(batch, 2) == alone.answers(batch, 2)
    chosen = [first[number] for number in alone.chosen(batch)]
    for spelled in (lambda text: text, lambda text: text.replace(" ", "-")):
        right = [replace(one, answer=spelled(text)) for one, text in zip(examples(), chosen, strict=True)]
        wrong = [
            replace(one, answer=spelled(first[1 - first.index(text)])) for one, text in zip(right, chosen, strict=True)
        ]
        for asked, expected in ((right, True), (wrong, False)):
            assert way.right(way.collate([one.image for one in asked], asked)).tolist() == [expected] * 3


def test_a_checkpoint_that_was_tuned_on_questions_has_its_own_decoder(tmp_path):
    folder = albef_folder(tmp_path, TUNED)
    way = ranking(load(folder))
    batch = batch_of(way)
    expected = by_hand(way, batch, decoder=albef_tensors(seed=1))
    assert torch.allclose(way.answer_scores(batch.inputs), expected, atol=1e-4)
    assert not torch.allclose(expected, by_hand(way, batch), atol=1)
    with torch.no_grad():
        inputs = {name: batch.inputs[name] for name in INPUTS}
        states = Reference(albef_tensors()).states(*inputs.values())
        assert torch.allclose(load(folder, "albef")(**inputs), states[:, 0], atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text_decoder.bert.encoder.layer.1.crossattention.self.key.bias": None}, "1 tensors missing .*decoder.encod"),
        ({"text_decoder.cls.predictions.transform.dense.bias": None}, "1 tensors missing .*word_transform.dense.bias"),
        ({"text_encoder.encoder.layer.0.output.dense.bias": None}, "1 tensors missing .*text_encoder.encoder.layer.0"),
        ({"text_decoder.bert.encoder.layer.2.output.dense.bias": torch.ones(32)}, "does not have, first decoder.*r.2"),
        ({"text_decoder.pooler.dense.bias": torch.ones(32)}, "that ALBEF does not have, first text_decoder.pooler"),
        ({"text_encoder.bert.embeddings.LayerNorm.bias": torch.ones(32)}, "does not have, first text_encoder.bert.emb"),
        ({"bias": torch.ones(9)}, "that ALBEF does not have, first bias"),
    ],
)
def test_a_tuned_checkpoint_that_does_not_fit_is_refused(changes, message, tmp_path):
    tensors = {name: tensor for name, tensor in (TUNED | changes).items() if tensor is not None}
    with pytest.raises(FedpeftError, match=message):
        load(albef_folder(tmp_path, tensors))


def test_the_loss_is_the_negative_log_probability_of_the_answer(folder):
    way = ranking(load(folder))
    batch = batch_of(way)
    losses = way.loss(way(batch.inputs), batch.target, reduction="none").detach()
    expected = -by_hand(way, batch)[[0, 1], [2, 3]]
    assert torch.allclose(losses[:2], expected, atol=1e-4)
    assert torch.allclose(losses.mean(), way.loss(way(batch.inputs), batch.target))
    assert mean_loss(way, [batch]) == pytest.approx(losses.mean().item(), rel=1e-5)


def test_only_the_answers_with_the_most_probable_first_tokens_are_ranked(folder):
    way = ranking(load(folder), candidates=2)
    inputs = batch_of(way).inputs
    few, full = way.answer_scores(inputs), ranking(load(folder)).answer_scores(inputs)
    ranked = few > -torch.inf
    assert ranked.sum(1).tolist() == [2, 2, 2]
    assert torch.allclose(few[ranked], full[ranked], atol=1e-5)
    begin = {ANSWER: way.ids[:1, :2].expand(3, -1), ANSWER_MASK: torch.ones(3, 2, dtype=torch.long)}
    first = way.backbone(**{name: inputs[name] for name in INPUTS}, **begin)[:, 0, way.ids[:, 1]]
    assert bool((first[ranked].reshape(3, 2).amin(1) >= first.masked_fill(ranked, -torch.inf).amax(1)).all())


def test_sizes_and_counts_are_the_papers():
    full = skeleton("albef-decoder")
    listed = {entry.name: entry for entry in counted("albef-decoder")}
    counts = {name: entry.exchanged for name, entry in listed.items()}
    assert [name for name, entry in listed.items() if entry.misfit] == ["classifier"]  # there is no head
    assert counts["pfeiffer"] == 2_236_320  # 30 places of 48 neurons
    assert counts["houlsby"] == 2 * counts["pfeiffer"]
    assert len(full.model.decoder.encoder.layer) == 6
    assert {parameter.device.type for parameter in full.parameters()} == {"meta"}


def test_decoder_and_fusion_layers_begin_alike_and_share_nothing(folder):
    model = load(folder).model
    fusion, decoder = (dict(part.named_parameters()) for part in (model.text_encoder, model.decoder))
    for name, tensor in decoder.items():
        source = name.replace("layer.0.", "layer.2.").replace("layer.1.", "layer.3.")
        assert torch.equal(fusion[source], tensor)
    pointers = [parameter.data_ptr() for parameter in model.parameters()]
    assert len(pointers) == len(set(pointers))


@pytest.mark.parametrize("name", ["pfeiffer", "houlsby", "lora", "full", "adapterfusion"])
def test_methods_learn_the_answers(name, folder):
    backbone = load(folder)
    settings = {} if name in ("lora", "full") else {"reduction_factor": 4}
    trainable = methods.get(name).tuning().prepare(backbone, settings, seed=0)
    way = ranking(backbone)
    batch = batch_of(way)
    parameters = trainable.parameters()
    optimizer = torch.optim.Adam([p for p in parameters.values() if p.requires_grad], lr=1e-2)
    losses = [trainable.step(parts_of(batch, way), optimizer).item() for _ in range(12)]
    assert losses[-1] < 0.8 * losses[0]
    if name in ("pfeiffer", "lora"):
        assert {key.split(".")[2].split("_")[0] for key in parameters} == {"vision", "text", "decoder"}
        assert all(p.grad.abs().sum() > 0 for key, p in parameters.items() if key.endswith(("up.weight", ".B")))


def test_neurons_of_the_decoder_have_activations_and_layers_have_scores(folder):
    backbone = load(folder)
    trainable = methods.get("pfeiffer").tuning().prepare(backbone, {"reduction_factor": 4}, seed=0)
    way = ranking(backbone)
    batch = batch_of(way)
    state = trainable.state()
    (means,) = trainable.activations([state], [batch.inputs])
    assert means.keys() == {key.removesuffix(".up.bias") for key in state if key.endswith(".up.bias")}
    layers = {
        number: [p for key, p in trainable.parameters().items() if key.startswith(f"layer.{number}.")]
        for number in (0, 1)
    }
    scores = score(
        lambda rows: way(rows.inputs),
        layers,
        [batch],
        lambda logits, rows: way.loss(logits, rows.target, reduction="none"),
        method="lntk",
        model=way,
    )
    assert len(scores) == 2
    assert all(float(value) > 0 for value in scores)


def test_the_accuracy_does_not_depend_on_the_batch(folder):
    way, device = ranking(load(folder)), torch.device("cpu")
    alone = [way.collate([example.image], [example]) for example in examples()]
    together = [batch_of(way)]
    for metric in way.metrics:
        figures = [measured(way, rows, device=device, metric=metric).figures() for rows in (alone, together)]
        assert figures[0] == figures[1]


@pytest.mark.parametrize(
    ("backbone", "way", "message"),
    [
        ("albef", "ranking", "this backbone has no decoder to rank answers with: set training.answering to"),
        ("albef-decoder", "classification", "this backbone answers only by ranking: set training.answering to 'ran"),
    ],
)
def test_what_does_not_fit_is_refused(backbone, way, message, folder):
    with pytest.raises(FedpeftError, match=message):
        answering.build(load(folder, backbone), POOL, TrainingSettings(rounds=1, answering=way), torch.Generator())


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (
            {"name": "classifier", "aggregation": "none"},
            r"which trains the head alone, and with training\.answering='ranking' there is none",
        ),
        (
            {"aggregation": "fedavg", "head": "federated"},
            "head is 'federated', and with training.answering='ranking' there",
        ),
    ],
)
def test_a_method_that_needs_what_only_a_classifier_has_is_refused(method, message, tmp_path):
    sections = {
        "backbone": {"name": "tiny-albef-decoder"},
        "method": method,
        "training": {"rounds": 1, "answering": "ranking"},
        "data": {"dataset": "phantom", "train_size": 8, "validation_size": 4, "test_size": 4},
    }
    with pytest.raises(FedpeftError, match=message):
        Learner.from_sections(sections, site="head", folder=tmp_path)


def test_decoder_adapters_stand_where_those_of_the_text_stand(folder):
    backbone = load(folder)
    added = pfeiffer_adapters(backbone.model)
    way = ranking(backbone)
    batch = batch_of(way)
    expected = by_hand(way, batch, added)
    assert torch.allclose(way.answer_scores(batch.inputs), expected, atol=1e-3)
    assert not torch.allclose(by_hand(way, batch), expected, atol=1e-2)


@torch.inference_mode()
def test_the_vector_of_a_sample_does_not_depend_on_what_pads_its_question(folder):
    way = ranking(load(folder))
    together = way.pooled(batch_of(way).inputs)
    alone = [way.pooled(way.collate([example.image], [example]).inputs) for example in examples()]
    assert together.shape == (3, way.backbone.hidden_size)
    torch.testing.assert_close(together, torch.cat(alone))
