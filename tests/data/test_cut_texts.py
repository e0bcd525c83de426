# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Texts and answers longer than a backbone reads or writes are counted, and those are that reach no model."""

import numpy as np
import pytest
import torch
from small_models import MODELS, blip2

from fedpeft.backbones import BackboneSettings, build, prepared
from fedpeft.backbones.registry import TINY_FOLDER
from fedpeft.cli import main
from fedpeft.data import Example, SiteData
from fedpeft.data.remarks import cut_questions, cut_texts, cut_texts_of

IMAGE = np.zeros((20, 24, 3), np.uint8)
TINY = {"tiny-vilt": None, "tiny-albef": None, "tiny-albef-decoder": None, "vilt": str(TINY_FOLDER)}
READERS = [*TINY, "blip2", *(name for name in MODELS if name != "dinov2")]
WORD, OTHER = " where", " why"  # a token each, in every tokenizer here


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """Function: the settings of a backbone, whose folder is made once."""
    made = dict(TINY)

    def of(name):
        if name not in made:
            made[name] = str((blip2 if name == "blip2" else MODELS[name])(tmp_path_factory.mktemp(name)))
        registered = name if name in (*TINY, "blip2", "llava") else "transformers"
        return BackboneSettings(name=registered, source=made[name], text_length=12)

    return of


def site(rows, test=()):
    """A site with questions and answers."""
    rows, test = ([Example(IMAGE, *row, closed=False, image_id="i") for row in part] for part in (rows, test))
    return SiteData("here", tuple(rows), (), tuple(test or rows), "made here")


@pytest.mark.parametrize("name", READERS)
def test_the_texts_that_are_counted_are_those_whose_end_the_model_does_not_read(name, settings):
    backbone = prepared(settings(name))
    assert {parameter.device.type for parameter in backbone.parameters()} <= {"meta"}
    cut = []
    for words in range(8, 15):
        text = WORD * words
        one, other = (backbone.collate([IMAGE], [text[: -len(WORD)] + end])["input_ids"] for end in (WORD, OTHER))
        cut.append(torch.equal(one, other))
        said = list(cut_questions([text, "why", "why", ""], backbone))
        assert [sentence.startswith("1 of 3 texts are longer than backbone.text_length=12") for sentence in said] == (
            [True] * cut[-1]
        )
        assert not any("where" in sentence for sentence in said)
    assert cut == sorted(cut)
    assert {True, False} == set(cut)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny-vilt", "tiny-albef", "bert", "llava"])
def test_a_backbone_without_weights_reads_what_the_whole_one_does(name, settings):
    texts = [WORD * number for number in (1, 5, 30)]
    whole, bare = (make(settings(name)).collate([IMAGE] * 3, texts) for make in (build, prepared))
    assert whole.keys() == bare.keys()
    assert all(torch.equal(whole[key], bare[key]) for key in whole)


@pytest.mark.parametrize(
    ("name", "words", "remedy"),
    [
        ("tiny-vilt", 20, "set it to 22"),
        ("tiny-vilt", 60, "set it to 40, the most that this model reads, or shorten them"),
        ("llava", 60, "set it to 60"),
    ],
)
def test_the_remedy_is_one_that_the_model_can_take(name, words, remedy, settings):
    (sentence,) = cut_questions([WORD * words], prepared(settings(name)))
    assert remedy in sentence


def test_a_backbone_that_reads_no_text_is_not_loaded_for_it():
    assert list(cut_texts_of(site([(WORD * 99, "a")]), BackboneSettings(name="tiny-vit"))) == []


def test_answers_that_a_decoder_does_not_read_to_their_end_are_counted(settings):
    backbone = prepared(settings("tiny-albef-decoder"))
    data = site([("why", WORD * 38), ("why", WORD * 39)])
    assert [backbone.answer_tokens([example.answer])["answer_ids"].shape[1] for example in data.train] == [40, 40]
    (sentence,) = cut_texts(data, backbone, answers=True)
    assert sentence.startswith("2 of 4 answers are longer than the 40 tokens that the model reads of one")
    assert list(cut_texts(data, backbone)) == []


def test_answers_longer_than_what_a_language_model_may_write_are_counted(settings):
    data = site([("why", "where"), ("why", "the nodule")], test=[("why", "the nodule is there"), ("why", "where")])
    (sentence,) = cut_texts(data, prepared(settings("llava")), answers=True)
    assert sentence.startswith("1 of 4 answers are longer than the 3 tokens of the longest of training")


@pytest.fixture
def reports(tmp_path, monkeypatch):
    """A folder with a site whose reports are longer than the tiny ViLT reads, in a folder of its own."""
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "site"
    folder.mkdir()
    rows = ["image,labels,text,split"]
    for number in range(12):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / f"{number}.png")
        text = "the heart is of normal size " * (12 if number < 3 else 1)
        rows.append(f"{number}.png,{'ab'[number % 2]},{text},{'train' if number < 8 else 'test'}")
    (folder / "manifest.csv").write_text("\n".join(rows) + "\n")
    return folder


@pytest.mark.slow
def test_the_commands_say_it(reports, capsys):
    said = "3 of 12 texts are longer than backbone.text_length=40 tokens"
    for command in (
        ["data", "site"],
        ["new", "own", "--data", "site", "--backbone", "tiny_vilt"],
        ["data", "jobs/own"],
        ["doctor", "jobs/own"],
    ):
        assert main(command) == 0
        assert said in capsys.readouterr().out
