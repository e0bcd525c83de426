# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""FedDAT's two steps and AdapterFusion's attention, against the papers' equations written down in plain torch."""

import copy
import itertools
from dataclasses import replace

import pytest
import torch
from feddat_by_hand import KINDS, ByHand
from peft import PeftModel
from torch import nn
from torch.nn import functional as F

from fedpeft import adapters, methods
from fedpeft.answering.answering import Batch
from fedpeft.answering.classification import Multilabel
from fedpeft.answering.decoders import Generation, Ranking
from fedpeft.backbones.backbone import ANSWER, ANSWER_MASK, NO_TOKEN
from fedpeft.core.errors import FedpeftError
from fedpeft.data.answers import AnswerVocabulary
from fedpeft.methods.bottleneck.branches import Fusion
from fedpeft.methods.settings import MethodSettings
from fedpeft.methods.trainable import Part, kl_of_choices, kl_of_labels
from fedpeft.server.job_run import export_adapter
from fedpeft.site.loop import parts_of

RATE, CLASSES = 0.5, 7
NAMES = sorted(KINDS)
SETTINGS = {"reduction_factor": 4}


def with_head(vilt, tokens=0):
    """A ViLT, and a head from its features to logits of classes, or to those of each of the tokens of an answer."""
    backbone = nn.Module()
    backbone.model = vilt()
    linear = nn.Linear(32, CLASSES * max(tokens, 1))
    nn.init.normal_(linear.weight, std=0.3, generator=torch.Generator().manual_seed(8))
    nn.init.zeros_(linear.bias)
    return backbone, nn.Sequential(linear, nn.Unflatten(1, (tokens, CLASSES))) if tokens else linear


def drawn(state, seed):
    generator = torch.Generator().manual_seed(seed)
    return {key: tensor + 0.2 * torch.randn(tensor.shape, generator=generator) for key, tensor in state.items()}


def kl(teacher, learner):
    """KL(teacher || learner) at temperature 3, times 9, mean over the batch."""
    p, q = (torch.softmax(logits / 3, -1) for logits in (teacher, learner))
    return 9 * (p * (p.log() - q.log())).sum(-1).mean()


def cross_entropy(logits, target):
    return -logits.log_softmax(-1)[range(len(target)), target].mean()


def label_kl(teacher, learner):
    """The same where each label applies or not for itself, written as a sum over all 2^L sets of labels."""
    p, q = (torch.sigmoid(logits / 3) for logits in (teacher, learner))
    total = 0
    for labels in itertools.product((True, False), repeat=p.shape[-1]):
        applies = torch.tensor(labels)
        of_p, of_q = (torch.where(applies, x, 1 - x).prod(-1) for x in (p, q))
        total = total + of_p * (of_p.log() - of_q.log())
    return 9 * total.mean()


def label_loss(logits, target):
    """The mean over the labels that are known, then over images; all images have one here."""
    terms = F.softplus(torch.where(target == 1, -logits, logits)) * (target >= 0)
    return (terms.sum(-1) / (target >= 0).sum(-1)).mean()


def by_token(terms, target):
    """By sample, the values of the tokens that its answer has."""
    return [row[tokens != NO_TOKEN] for row, tokens in zip(terms, target, strict=True)]


def token_kl(teacher, learner):
    p, q = (torch.softmax(logits / 3, -1) for logits in (teacher, learner))
    return 9 * (p * (p.log() - q.log())).sum(-1)


def token_loss(logits, target):
    return -logits.log_softmax(-1).gather(-1, target.clamp_min(0)[..., None])[..., 0]


def averaged(terms):
    return sum(terms) / len(terms)


def of_tokens(way):
    def part(target):
        (one,) = parts_of(Batch(inputs={}, target=target, accepted=None, closed=None), way)
        return one

    return part


class Words(nn.Identity):
    """Stands for a decoder, of which Ranking needs the tokens of its answers."""

    def answer_tokens(self, answers):
        return {ANSWER: torch.ones(len(answers), 2, dtype=torch.long), ANSWER_MASK: torch.ones(len(answers), 2)}


WORDS = torch.tensor([[3, 6, 0], [2, NO_TOKEN, NO_TOKEN], [0, 0, 5]])  # answers of three, one and three tokens


def of_classes(target):
    return Part(None, lambda logits: F.cross_entropy(logits, target))


def of_labels(target):
    way = Multilabel(nn.Identity(), nn.Identity(), AnswerVocabulary(tuple("abcdefg")))
    (part,) = parts_of(Batch(inputs={}, target=target, accepted=None, closed=None), way)
    return part


ANSWERS = {  # the target, our loss and divergence of it, and both by hand
    "classes": (torch.tensor([0, 3, 6]), of_classes, cross_entropy, kl),
    "labels": (
        torch.tensor([[1, 0, 0, 1, 0, -1, 0], [0, 0, 0, 0, 0, 0, 0], [-1, -1, 1, 1, 0, 0, 1]]),
        of_labels,
        label_loss,
        label_kl,
    ),
    "ranked": (
        WORDS,
        of_tokens(Ranking(Words(), AnswerVocabulary(("a",)), 0)),
        lambda logits, target: averaged([row.sum() for row in by_token(token_loss(logits, target), target)]),
        lambda teacher, learner: averaged([row.sum() for row in by_token(token_kl(teacher, learner), WORDS)]),
    ),
    "written": (
        WORDS,
        of_tokens(Generation(nn.Identity(), nn.Identity(), 3)),
        lambda logits, target: averaged([row.mean() for row in by_token(token_loss(logits, target), target)]),
        lambda teacher, learner: averaged([row.mean() for row in by_token(token_kl(teacher, learner), WORDS)]),
    ),
}
OTHER_ANSWERS = [("feddat_houlsby", answers) for answers in ANSWERS if answers != "classes"]


@pytest.mark.parametrize(("name", "answers"), [*((name, "classes") for name in NAMES), *OTHER_ANSWERS])
def test_the_two_steps_are_the_papers(name, answers, vilt, batch):
    """Against adapters as equations in hooks, gradients by hand and plain gradient descent."""
    target, our_part, own_loss, divergence = ANSWERS[answers]
    backbone, head = with_head(vilt, tokens=target.shape[1] if target is WORDS else 0)
    trainable = methods.get(name).tuning().prepare(backbone, SETTINGS, seed=0)
    a1, private = drawn(trainable.state(), 1), drawn(trainable.private_state(), 2)
    trainable.start(a1, None)
    trainable.load_private(private)
    a0 = {key.removeprefix("private."): tensor for key, tensor in private.items()}
    assert a0.keys() >= a1.keys()
    assert any("fusion" in key for key in a0) == KINDS[name].fused
    reference = ByHand(KINDS[name], vilt(), copy.deepcopy(head), {"a0": a0, "a1": a1, "a2": a1})

    teacher = reference.logits(batch(), "a0", "a2").detach()
    shared = reference.logits(batch(), "a1")
    reference.descend((own_loss(shared, target) + divergence(teacher, shared)) / 2, "a1", RATE)
    dual = reference.logits(batch(), "a0", "a2")
    loss = own_loss(dual, target)
    reference.descend((loss + divergence(shared.detach(), dual)) / 2, "a0", RATE)

    def stepped(now, before):
        assert now.keys() == before.keys()
        assert [key for key, tensor in now.items() if torch.equal(tensor, before[key])] == []

    parameters = [*trainable.parameters().values(), *head.parameters()]
    part = replace(our_part(target), forward=lambda: head(backbone.model(**batch()).pooler_output))
    value = trainable.step([part], torch.optim.SGD(parameters, lr=RATE))
    torch.testing.assert_close(value, loss.detach())
    stepped(trainable.state(), a1)
    torch.testing.assert_close(trainable.state(), detached(reference.states["a1"]))
    stepped(trainable.private_state(), private)
    now = {key.removeprefix("private."): tensor for key, tensor in trainable.private_state().items()}
    torch.testing.assert_close(now, detached(reference.states["a0"]))
    torch.testing.assert_close(dict(head.state_dict()), dict(reference.head.state_dict()))
    assert all(torch.equal(tensor, a1[key]) for key, tensor in trainable.beside().state.items())


@pytest.mark.parametrize("answers", ["labels", "ranked", "written"])
def test_divergences_of_the_parts_of_a_batch_add_up(answers):
    target, make, *_ = ANSWERS[answers]
    shape = target.shape if answers == "labels" else (*target.shape, CLASSES)
    logits, teacher = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    parts = [(rows, make(target[rows])) for rows in (slice(0, 2), slice(2, 3))]
    added = sum(part.divergence(logits[rows], teacher[rows]) * len(target[rows]) / 3 for rows, part in parts)
    torch.testing.assert_close(added, make(target).divergence(logits, teacher))


def detached(state):
    return {key: tensor.detach() for key, tensor in state.items()}


def test_a_way_to_answer_with_other_logits_than_those_of_one_choice_has_to_say_what_their_divergence_is():
    with pytest.raises(FedpeftError, match=r"needs logits \(B, C\), here they are \(2, 4, 9\): give the way to answer"):
        kl_of_choices(torch.zeros(2, 4, 9), torch.zeros(2, 4, 9))


def test_the_divergence_of_labels_is_that_of_as_many_coins():
    teacher, learner = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0)).mul(4).double()
    coins = (torch.distributions.Bernoulli(logits=logits) for logits in (teacher, learner))
    expected = torch.distributions.kl_divergence(*coins).sum(-1).mean()
    torch.testing.assert_close(kl_of_labels(learner, teacher), expected)
    assert kl_of_labels(teacher, teacher) == 0
    one = kl_of_labels(learner[:, :1], teacher[:, :1])  # a label is a choice of two
    choices = (torch.cat((logits[:, :1], torch.zeros(5, 1)), dim=-1) for logits in (learner, teacher))
    torch.testing.assert_close(kl_of_choices(*choices), one)


@pytest.mark.parametrize("name", NAMES)
def test_the_sites_model_is_the_local_adapter_beside_the_received_one(name, vilt, batch):
    settings = {"reduction_factor": 4}
    backbone, _ = with_head(vilt)
    trainable = methods.get(name).tuning().prepare(backbone, settings, seed=0)
    received = drawn(trainable.state(), 1)
    trainable.start(received, None)

    def output():
        with torch.no_grad():
            return backbone.model(**batch()).pooler_output

    both = output()
    trainable.load(drawn(trainable.state(), 3))  # a1, which only trains
    torch.testing.assert_close(output(), both)
    trainable.load_private(drawn(trainable.private_state(), 4))
    assert not torch.allclose(output(), both)


def test_fusion_is_attention_over_what_the_adapters_add():
    generator = torch.Generator().manual_seed(0)
    fusion = Fusion(6)
    for parameter in fusion.parameters():
        nn.init.normal_(parameter, generator=generator)
    h = torch.randn(2, 3, 6, generator=generator)
    outputs = [torch.randn(2, 3, 6, generator=generator) for _ in range(3)]
    fused = fusion(h, outputs)
    for sample in range(2):
        for token in range(3):
            query = fusion.query.weight @ h[sample, token] + fusion.query.bias
            adds = [output[sample, token] for output in outputs]
            scores = torch.stack([query @ (fusion.key.weight @ z) for z in adds])
            values = torch.stack([fusion.value.weight @ z for z in adds])
            torch.testing.assert_close(fused[sample, token], torch.softmax(scores, 0) @ values)


def test_a_new_fusion_of_equal_adapters_is_one_adapter(vilt, batch, run):
    backbone, _ = with_head(vilt)
    trainable = methods.get("adapterfusion").tuning().prepare(backbone, {}, seed=0)
    state = drawn(trainable.state(), 1)
    trainable.start(state, None)
    alone = adapters.attach(vilt(), adapters.config("pfeiffer"))
    adapters.load_adapter_state(alone, state)
    torch.testing.assert_close(run(backbone.model), run(alone))


def test_adapterfusion_goes_on_with_its_own_adapter_beside_the_received_one(vilt, run):
    backbone, _ = with_head(vilt)
    trainable = methods.get("adapterfusion").tuning().prepare(backbone, {}, seed=0)
    own, received = drawn(trainable.state(), 1), drawn(trainable.state(), 2)
    trainable.start(received, own)
    assert all(torch.equal(tensor, own[key]) for key, tensor in trainable.state().items())
    with_it = run(backbone.model)
    trainable.start(own, own)
    assert not torch.allclose(run(backbone.model), with_it)


def test_settings_of_the_adapters_below_apply():
    settings = {"houlsby": {"reduction_factor": 4, "activation": "relu"}, "feddat_houlsby": {"reduction_factor": 8}}
    method = MethodSettings(name="feddat_houlsby", settings=settings)
    assert method.settings_of("a") == {"reduction_factor": 8, "activation": "relu"}
    fused = MethodSettings(name="feddat_adapterfusion", settings={"pfeiffer": {"reduction_factor": 4}})
    assert fused.settings_of("a") == {"reduction_factor": 4}
    with pytest.raises(FedpeftError, match="reduktion"):
        MethodSettings(name="feddat_houlsby", settings={"feddat_houlsby": {"reduktion": 8}}).check_settings()


@pytest.mark.parametrize("name", NAMES)
def test_sites_count_alike_in_feddats_mean(name):
    assert MethodSettings(name=name).pia.weighting == "uniform"
    assert MethodSettings(name=name, pia={"weighting": "samples"}).pia.weighting == "samples"
    with pytest.raises(FedpeftError, match=r"aligns neurons, which .* does not declare"):
        MethodSettings(name=name, aggregation="pia")


@pytest.mark.parametrize("name", ["adapterfusion", *NAMES])
def test_the_global_adapter_is_exported_as_that_of_the_method_below(name, vilt, run, tmp_path):
    backbone, _ = with_head(vilt)
    kind = methods.with_bases(name)[0]
    settings = {"reduction_factor": 4}
    state = drawn(methods.get(name).tuning().prepare(backbone, settings, seed=0).state(), 1)
    export_adapter(tmp_path, state, MethodSettings(name=name, settings={kind: settings}), family="vilt")
    alone = adapters.attach(vilt(), adapters.config(kind, **settings))
    adapters.load_adapter_state(alone, state)
    assert torch.equal(run(PeftModel.from_pretrained(vilt(), str(tmp_path)).eval()), run(alone))
