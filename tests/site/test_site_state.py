# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
import shutil

import numpy as np
import pytest
import torch

from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import set_aside_after
from fedpeft.core.metrics import ACCURACY, MACRO_F1
from fedpeft.core.settings import build
from fedpeft.data.answers import AnswerVocabulary
from fedpeft.data.schema import Example, SiteData
from fedpeft.site.site_state import ModelRecord, SiteRecord, SiteState, load_before, record_as_json, save


def state(round: int) -> SiteState:
    tensors = {"layer.0.output.down.weight": torch.full((2, 3), float(round))}
    return SiteState(round=round, adapter=tensors, head={"0.bias": torch.ones(2)}, optimizer={}, facts={"classes": 2})


def test_a_state_comes_back_to_the_bit(tmp_path):
    save(tmp_path, state(1))
    back = load_before(tmp_path, 2)
    assert back.round == 1
    assert back.facts == {"classes": 2}
    assert torch.equal(back.adapter["layer.0.output.down.weight"], state(1).adapter["layer.0.output.down.weight"])
    assert back.adapter["layer.0.output.down.weight"].dtype == torch.float32


def test_a_repeated_round_starts_from_the_round_before(tmp_path):
    save(tmp_path, state(1))
    save(tmp_path, state(2))
    assert load_before(tmp_path, 2).round == 1
    assert load_before(tmp_path, 3).round == 2
    assert load_before(tmp_path, 1) is None


def test_only_the_newest_four_stay_and_no_drafts(tmp_path):
    for number in range(1, 7):
        save(tmp_path, state(number))
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"round-0000{number}" for number in (3, 4, 5, 6)]


def test_the_best_round_stays_beside_the_newest_four_until_another_is_better(tmp_path):
    best = {1: 1, 2: 2, 9: 9}
    number_of_best = 0
    for number in range(1, 15):
        number_of_best = best.get(number, number_of_best)
        save(tmp_path, state(number), best=number_of_best)
        newest_four = set(range(max(1, number - 3), number + 1))
        kept = {int(path.name.removeprefix("round-")) for path in tmp_path.iterdir()}
        assert kept == newest_four | {number_of_best}
        assert load_before(tmp_path, number + 1).round == number


def test_what_is_newer_than_the_round_to_go_on_from_is_set_aside(tmp_path):
    for number in (1, 2, 3):
        save(tmp_path, state(number))
    kept = (tmp_path / "round-00003" / "head.safetensors").read_bytes()
    set_aside_after(tmp_path, 2)
    assert load_before(tmp_path, 9).round == 2
    (aside,) = (tmp_path / "set-aside").iterdir()
    assert (aside / "head.safetensors").read_bytes() == kept
    save(tmp_path, state(3))
    set_aside_after(tmp_path, 0)
    assert load_before(tmp_path, 9) is None
    assert len(list((tmp_path / "set-aside").iterdir())) == 4


def test_a_copy_beside_the_rounds_is_none_of_them(tmp_path):
    save(tmp_path, state(1))
    save(tmp_path, state(2))
    shutil.copytree(tmp_path / "round-00002", tmp_path / "round-00002.bak")
    assert load_before(tmp_path, 9).round == 2
    save(tmp_path, state(3))
    set_aside_after(tmp_path, 1)
    assert sorted(path.name for path in tmp_path.glob("round-*")) == ["round-00001", "round-00002.bak"]


def test_a_state_of_other_facts_is_refused(tmp_path):
    save(tmp_path, state(1))
    known = load_before(tmp_path, 2).facts
    assert load_before(tmp_path, 2, facts=known).round == 1
    with pytest.raises(FedpeftError, match="belongs to other data, another backbone, another seed or another site"):
        load_before(tmp_path, 2, facts={"site": "slake", **known, "train": -1})


def test_a_draft_of_a_killed_process_is_never_read(tmp_path):
    save(tmp_path, state(1))
    draft = tmp_path / ".round-00002.4711.draft"
    draft.mkdir()
    (draft / "adapter.safetensors").write_bytes(b"half")
    assert load_before(tmp_path, 3).round == 1


def test_a_damaged_state_is_named(tmp_path):
    (save(tmp_path, state(1)) / "head.safetensors").write_bytes(b"damaged")
    with pytest.raises(FedpeftError, match="round-00001 cannot be read"):
        load_before(tmp_path, 2)


def test_a_round_that_is_repeated_is_kept_beside_later_ones(tmp_path):
    for number in (*range(1, 7), 1):
        save(tmp_path, state(number))
    assert load_before(tmp_path, 2).round == 1


def test_a_record_says_whether_texts_stood_beside_the_images_of_training():
    for text, labels, asks in (("a report", ("a",), False), ("", ("a",), False), ("why ?", (), True), ("", (), False)):
        example = Example(np.zeros((2, 2, 3), np.uint8), text, "a", False, "1", labels=labels or None)
        data = SiteData("north", (example,), (), (example,), "", labels, MACRO_F1 if labels else ACCURACY)
        about = {
            "site": "north",
            "data": data,
            "dataset": "phantom",
            "backbone": "vilt",
            "seed": 0,
            "sections": {},
            "window": {},
        }
        record = SiteRecord(vocabulary=AnswerVocabulary(("a",)), **about).model_record((), thresholds=None, share=0.0)
        assert (record.reads_text, record.asks, record.labelled) == (bool(text), asks, bool(labels))
        older = {name: value for name, value in record_as_json(record).items() if name != "reads_text"}
        assert build(ModelRecord, older, section="record").reads_text is None
