# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""OmniMedVQA: eight clients by modality, the ways its answers are written, and what is counted."""

from __future__ import annotations

import json

import pytest
from layouts import as_json, picture

from fedpeft.data import DataError, DataSettings, load
from fedpeft.data.omni_med_vqa import CLIENTS, answers

NUMBERS = [16, 16, 19, 58, 27, 22, 36, 41]  # of answers, as the text of C.2.2 prints them
WORDS = {"ultrasound": "ultrasound", "oct": "OCT (Optical Coherence Tomography", "x-ray": "X-Ray"}
PER_SET = 10


def _record(site, name, number, **more):
    return {
        "question_id": f"{name}_{number}",
        "question_type": "Modality Recognition",
        "question": "What is the modality?",
        "gt_answer": CLIENTS[site].answers[number % len(CLIENTS[site].answers)] + ".",
        "image_path": f"Images/{name}/{number // 2}.png",
        "option_A": "MR",
        "modality_type": WORDS.get(site, "CT(Computed Tomography)"),
        **more,
    }


def _tree(root, site, **first):
    """Every data set of a client with ten pairs about five images; the archive brings a folder of the same name."""
    root = root / "OmniMedVQA" / "OmniMedVQA"
    for name in CLIENTS[site].sets:
        records = [_record(site, name, number) for number in range(PER_SET)]
        records[0] |= first
        for record in records:
            if not (root / record["image_path"]).exists():
                picture(root / record["image_path"])
        as_json(root / "QA_information" / "Open-access" / f"{name.replace('RUS CHN', 'RUS_CHN')}.json", records)
    return root


def _load(root, site, **settings):
    return load(DataSettings(dataset="omni_med_vqa", root=root, site=site, **settings))


def _all(data):
    return [example for part in data.splits().values() for example in part]


@pytest.mark.parametrize("site", CLIENTS)
def test_a_client_has_the_data_sets_of_its_modality_split_by_image(tmp_path, site):
    _tree(tmp_path, site)
    data = _load(tmp_path, site, validation_fraction=0)
    assert {example.image_id.split("/")[0] for example in _all(data)} == set(CLIENTS[site].sets)
    images = 5 * len(CLIENTS[site].sets)
    tested = round(images / 5)
    assert [len(part) for part in data.splits().values()] == [2 * (images - tested), 0, 2 * tested]
    assert not {e.image_id for e in data.train} & {e.image_id for e in data.test}
    assert data == _load(tmp_path, site, validation_fraction=0, split="paper")
    assert data.left_out == ()
    assert data.notes[0].startswith(f"{2 * images} pairs about {images} images; table 1 of F3OCUS prints")
    assert not any("does not print" in note for note in data.notes)


def test_the_printed_lists_and_numbers():
    assert [len(CLIENTS[site].answers) for site in CLIENTS] == NUMBERS
    assert sum(client.pairs for client in CLIENTS.values()) == 42532
    assert len([name for client in CLIENTS.values() for name in client.sets]) == 41
    assert {"x-ray", "microscopy", "yes, the tail appears to be abnormal"} <= set(answers())


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("x_ray.", "x-ray"),
        ("X-ray", "x-ray"),
        ("No, it's  normal", "no it's normal"),
        ("COVID-19, positive.", "covid-19 positive"),
        ("Spiculated\r\nmasses", "spiculated masses"),
        ("A new answer.", "a new answer"),
    ],
)
def test_spellings_of_one_answer_are_one_class(tmp_path, written, read):
    _tree(tmp_path, "x-ray", gt_answer=written)
    data = _load(tmp_path, "x-ray")
    found = {example.answer for example in _all(data) if example.image_id.endswith("/0.png")}
    assert read in found
    unprinted = any("1 pairs have 1 answers that F3OCUS does not print" in note for note in data.notes)
    assert unprinted == (read == "a new answer")


def test_other_modalities_of_a_set_are_left_out_and_counted(tmp_path):
    _tree(tmp_path, "oct", modality_type="X-Ray")
    data = _load(tmp_path, "oct")
    (_, others), *more = data.left_out
    assert (others, more) == (1, [])  # of OCT & X-Ray 2017; Retinal OCT-C8 is taken whole
    assert len(_all(data)) + others == 2 * PER_SET


def test_a_record_may_call_its_modality_by_another_key(tmp_path):
    root = _tree(tmp_path, "ultrasound")
    file = root / "QA_information" / "Open-access" / "RadImageNet.json"
    records = json.loads(file.read_text())
    records[0]["modality"] = records[0].pop("modality_type")
    as_json(file, records)
    assert len(_all(_load(tmp_path, "ultrasound"))) == PER_SET


def test_restricted_access_may_be_absent_and_is_read_where_it_is(tmp_path):
    root = _tree(tmp_path, "ct")
    assert any("Restricted-access is not there" in note for note in _load(tmp_path, "ct").notes)
    information = root / "QA_information"
    (information / "Restricted-access").mkdir()
    (information / "Open-access" / "Covid CT.json").rename(information / "Restricted-access" / "Covid CT.json")
    data = _load(tmp_path, "ct")
    assert len(_all(data)) == 3 * PER_SET
    assert not any("Restricted-access" in note for note in data.notes)


def test_what_is_missing_is_named(tmp_path):
    root = _tree(tmp_path, "ct")
    with pytest.raises(DataError, match=r"site='mri' is not a client of OmniMedVQA; choose one of ct, ultrasound"):
        _load(tmp_path, "mri")
    (root / "Images" / "Covid CT" / "0.png").unlink()
    with pytest.raises(DataError, match=r"Covid CT.0\.png, named in .*Covid CT\.json, record 1, is missing"):
        _load(tmp_path, "ct")
    (root / "QA_information" / "Open-access" / "Covid CT.json").unlink()
    with pytest.raises(DataError, match=r"'Covid CT\.json' is missing in .*Open-access; unpack OmniMedVQA there"):
        _load(tmp_path, "ct")


@pytest.mark.parametrize("path", ["../secret.png", "/etc/passwd", "Images\\..\\..\\secret.png", "C:/secret.png"])
def test_an_image_elsewhere_is_refused(tmp_path, path):
    _tree(tmp_path, "ultrasound")
    file = tmp_path / "OmniMedVQA" / "OmniMedVQA" / "QA_information" / "Open-access" / "RadImageNet.json"
    as_json(file, [_record("ultrasound", "RadImageNet", 0, image_path=path)])
    with pytest.raises(DataError, match=r"record 1: the image .* is not inside"):
        _load(tmp_path, "ultrasound")
