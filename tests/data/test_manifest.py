# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A site's own folder with manifest.csv or manifest.jsonl."""

from __future__ import annotations

import json

import pytest
from grids import each
from layouts import lines, picture
from PIL import Image

from fedpeft.data import DataError, DataSettings, load
from fedpeft.data.chosen_image import image_name
from fedpeft.data.records import BadRows, csv_rows


def _load(root, **settings):
    return load(DataSettings(dataset="manifest", root=root, **settings))


def _images(part) -> set[str]:
    return {example.image_id for example in part}


def _scans(root, count: int = 10) -> None:
    for number in range(count):
        picture(root / "scans" / f"{number}.png")


def _rows(count: int = 10, **more: str) -> list[dict]:
    row = {"question": 'Where, if "any", is it?', "answer": "Left, upper", **more}
    return [{"image": f"scans/{number}.png", **row} for number in range(count)]


def _csv(root, rows: list[dict]) -> None:
    def quoted(value: str) -> str:
        return '"' + value.replace('"', '""') + '"'

    lines(
        root / "manifest.csv", [",".join(rows[0]), *(",".join(map(quoted, row.values())) for row in rows)], end="\r\n"
    )


def _jsonl(root, rows: list[dict]) -> None:
    lines(root / "manifest.jsonl", [json.dumps(row) for row in rows] + [""])


@pytest.mark.parametrize("write", [_csv, _jsonl])
def test_without_a_split_column_the_images_are_split(tmp_path, write):
    _scans(tmp_path)
    write(tmp_path, _rows() + _rows(question="Is it?", answer="no"))
    site = _load(tmp_path, site="north")
    parts = [_images(part) for part in site.splits().values()]
    assert [len(part) for part in parts] == [7, 1, 2]
    assert len(set().union(*parts)) == 10
    assert [len(part) for part in site.splits().values()] == [14, 2, 4]
    one = next(example for example in site.train if example.answer != "no")
    assert (one.question, one.answer, one.closed) == ('Where, if "any", is it?', "left, upper", False)
    assert all(example.closed for example in site.train if example.answer == "no")
    assert one.image == tmp_path / one.image_id
    assert site == _load(tmp_path, site="north")
    assert site.site == "north"
    assert _load(tmp_path, site="north", seed=1) != site


@pytest.mark.parametrize("write", [_csv, _jsonl])
def test_its_own_splits_and_answer_types_count(tmp_path, write):
    _scans(tmp_path)
    rows = _rows(answer_type="CLOSED ")
    for number, row in enumerate(rows):
        row["split"] = ["train", "Train", "test", "val", "validate"][number % 5]
    write(tmp_path, rows)
    site = _load(tmp_path, site="north")
    assert [len(part) for part in site.splits().values()] == [4, 4, 2]
    assert all(example.closed for part in site.splits().values() for example in part)


def test_a_missing_validation_set_is_cut_from_train(tmp_path):
    _scans(tmp_path)
    rows = _rows()
    for number, row in enumerate(rows):
        row["split"] = "test" if number < 2 else "train"
    _csv(tmp_path, rows)
    site = _load(tmp_path, validation_fraction=0.25)
    assert [len(part) for part in site.splits().values()] == [6, 2, 2]
    assert _images(site.test) == {"scans/0.png", "scans/1.png"}


def test_the_folder_of_a_site_is_found_under_the_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPEFT_DATA", str(tmp_path))
    for name in ("north", "."):
        _scans(tmp_path / name)
        _jsonl(tmp_path / name, _rows(8 if name == "north" else 10))
    assert sum(len(part) for part in _load(None, site="north").splits().values()) == 8
    assert sum(len(part) for part in _load(None, site="south").splits().values()) == 10


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        (
            "manifest.csv",
            ["picture,label", "scans/0.png,a"],
            r"line 2: 'image' is missing; a manifest needs image, question, answer; or image, labels; or image, label",
        ),
        (
            "manifest.csv",
            ["image,question", "a,b"],
            r"line 2: 'answer' is missing; a manifest needs image, question, answer; or image, labels; or",
        ),
        ("manifest.csv", ["image,question,answer"], r"manifest\.csv holds no record"),
        ("manifest.csv", ["image,question,answer", "scans/0.png,a, b,c"], r"line 2: it has fewer or more fields"),
        ("manifest.csv", ["image,question,answer", "scans/0.png,a"], r"line 2: it has fewer or more fields"),
        ("manifest.csv", ["image,question,answer", "scans/0.png,,yes"], r"line 2: 'question' is empty"),
        (
            "manifest.csv",
            ["image,question,answer", "scans/0.png,a,"],
            r"line 2: 'answer' is empty, or what .*; fill it in",
        ),
        ("manifest.csv", ["image,question,answer", "scans/z.png,a,b"], r"scans.z\.png, named in .*line 2, is missing"),
        ("manifest.csv", ["image,question,answer", "../0.png,a,b"], r"line 2: the image \.\./0\.png is not inside"),
        ("manifest.csv", ["image,question,answer", f"{'x' * 300}.png#3,a,b"], r"x\.png, named in .*line 2, is missing"),
        (
            "manifest.csv",
            ["image,question,answer,split", "scans/0.png,a,b,held"],
            r"line 2: split is 'held'; allowed are train",
        ),
        (
            "manifest.csv",
            ["image,question,answer,split", "scans/0.png,a,b,train", "scans/1.png,a,b,"],
            r"line 3: 'split' is empty while other rows have one",
        ),
        ("manifest.csv", ["image,question,answer,split", "scans/0.png,a,b,test"], r"'north' has an empty train split"),
        ("manifest.csv", ["image,question,answer,answer_type", "scans/0.png,a,b,x"], r"line 2: answer_type is 'x'"),
        ("manifest.csv", ["image,question,answer", 'scans/0.png,"a"b,c'], r"line 2: not valid CSV"),
        ("manifest.csv", ['"image" ,"question" ,"answer"', '"scans/0.png" ,"a" ,"b"'], r"line 1: not valid CSV"),
        ("manifest.jsonl", ['{"image": "scans/0.png"'], r"manifest\.jsonl, line 1 is not valid JSON"),
        ("manifest.jsonl", ['{"image": "scans/0.png"}'], r"line 1: 'question' is missing; a manifest needs"),
        ("manifest.jsonl", ["[1]"], r"line 1: it is not a JSON object"),
        ("manifest.jsonl", ['{"image": ' + "[" * 100_000], r"line 1 is nested too deeply"),
        ("manifest.jsonl", ['{"split": ' + "[" * 900 + "]" * 900 + "}"], r"line 1 is nested too deeply"),
        ("manifest.jsonl", ['{"image": ' + "9" * 5000 + "}"], r"too long a number"),
        ("notes.txt", ["x"], r"neither 'manifest\.csv' nor 'manifest\.jsonl'; put"),
        ("Manifest.CSV", ["image,question"], "Manifest.CSV holds no record"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(tmp_path, name, content, sentence):
    _scans(tmp_path)
    lines(tmp_path / name, content)
    with pytest.raises(DataError, match=sentence) as error:
        _load(tmp_path, site="north")
    assert "\n" not in str(error.value).partition(" Expected:\n")[0]


SPELLINGS = {
    "semicolons": ("image;question;answer", "scans/{n}.png;Is it, or not?;yes", "separated by semicolons"),
    "bars": ("image|question|answer", "scans/{n}.png|Is it, or not?|yes", "separated by vertical bars"),
    "tabs": ("image\tquestion\tanswer", "scans/{n}.png\tIs it; or not?\tyes", "separated by tabs"),
    "capitals and blanks": ("Image, Question ,ANSWER", "scans/{n}.png,Is it?,yes", "'Question ' as question"),
    "a quote behind a blank that quotes nothing": ("image,question,answer", 'scans/{n}.png, "Is it" or not?,yes', ""),
    "a blank behind commas": ('image, "question", answer', 'scans/{n}.png, "Is it, or not?", "yes"', ""),
    "a mark at the beginning": ("\ufeffimage,question,answer", "scans/{n}.png,Is it?,yes", ""),
    "quotes": ('"image";"question";"answer"', '"scans/{n}.png";"Is it; or not?";"yes"', "separated by semicolons"),
    "another column": ("image,question,answer,Patient ID", "scans/{n}.png,Is it?,yes,7", "not read: 'Patient ID'"),
    "an underscore": ("image,question,answer,Answer Type", "scans/{n}.png,Is it?,yes,OPEN", "as answer_type"),
}


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(("header", "row", "note"), SPELLINGS.values(), ids=list(SPELLINGS))
def test_a_table_is_read_as_spreadsheets_write_it_and_what_was_found_is_said(tmp_path, header, row, note, end):
    _scans(tmp_path)
    lines(tmp_path / "manifest.csv", [header, *(row.format(n=n) for n in range(10))], end=end)
    site = _load(tmp_path)
    assert sum(map(len, site.splits().values())) == 10
    assert {example.answer for example in site.train} == {"yes"}
    assert [note in one for one in site.notes] == [True] * bool(note)


@pytest.mark.parametrize(
    ("header", "row", "name"),
    [
        ("image,label,text", "scans/{n}.png,a{m},a report", "text"),
        ("image,labels,question_type", "scans/{n}.png,a,where", "question_type"),
        ("image,question,answer,text", "scans/{n}.png,Is it?,yes,a report", "text"),
        ("image,labels,text", "scans/{n}.png,a,a report", ""),
    ],
)
def test_a_column_of_another_kind_of_table_is_named_as_not_read(tmp_path, header, row, name):
    _scans(tmp_path)
    lines(tmp_path / "manifest.csv", [header, *(row.format(n=n, m=n % 2) for n in range(10))])
    site = _load(tmp_path)
    assert all("not read beside" in one and repr(name) in one for one in site.notes)
    assert len(site.notes) == bool(name)


@pytest.mark.parametrize("write", [_csv, _jsonl])
def test_a_missing_value_among_labels_is_refused(tmp_path, write):
    _scans(tmp_path)
    values = ["left", "left|nan", "right"] if write is _csv else [["left"], ["nan"], ["right"]]
    write(tmp_path, [{"image": f"scans/{n}.png", "labels": values[n % 3]} for n in range(10)])
    with pytest.raises(
        DataError, match=r"(?s)3 of 10 rows cannot be used.*'labels' has among them what programs write"
    ):
        _load(tmp_path)


def test_keys_of_jsonl_are_read_in_any_case_too(tmp_path):
    _scans(tmp_path)
    _jsonl(tmp_path, [{key.title(): value for key, value in row.items()} for row in _rows()])
    assert "'Image' as image" in _load(tmp_path).notes[0]
    _jsonl(tmp_path, [{**row, "Answer": "no"} for row in _rows()])
    with pytest.raises(DataError, match="line 1: 'answer' is there twice; remove one"):
        _load(tmp_path)


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        ("image,Image ,question,answer", "has the columns 'image' and 'Image ', which read alike; rename one"),
        (
            "image,question,answer,label",
            "has the columns 'image', 'question', 'answer', 'label', and a manifest has .*: keep",
        ),
        ("image,label,labels,text", "has the columns 'image', 'label', 'labels', 'text', and a manifest has"),
        ("file,frage;antwort,x,y", "'image' is missing; a manifest needs .* and this one has 'file', 'frage;antwort'"),
        (
            "image,question,reply,x",
            "'answer' is missing; a manifest needs .* and this one has 'image', 'question', 're",
        ),
    ],
)
def test_a_header_that_can_be_read_in_two_ways_or_none_says_what_was_found_and_what_is_expected(
    tmp_path, header, sentence
):
    _scans(tmp_path)
    lines(tmp_path / "manifest.csv", [header, "scans/0.png,a,b,c"])
    with pytest.raises(DataError, match=sentence):
        _load(tmp_path)


@pytest.mark.slow
@each("value", ["", " ", "nan", "NaN", "N/A", "na", "NULL", "<NA>", "#VALUE!", "1.#IND"])
@each("column", ["question", "answer", "label"])
def test_a_value_that_is_missing_is_refused_in_every_row(tmp_path, value, column):
    _scans(tmp_path)
    rows = [{"image": r["image"], "label": "a"} for r in _rows()] if column == "label" else _rows()
    rows[3][column] = rows[7][column] = value
    _csv(tmp_path, rows)
    sentence = (
        rf"2 of 10 rows cannot be used:\nline 5: '{column}' is empty, or .*; fill .*\nline 9: '{column}' is empty"
    )
    with pytest.raises(DataError, match=sentence):
        _load(tmp_path)


WRONG_CSV = {  # line -> its fields, and what is wrong with it
    3: ("scans/z.png,Is it?,yes,train", "The image {root}/scans/z.png, named in line 3, is missing; restore"),
    5: ("scans/3.png,Is it?,n/a,train", "line 5: 'answer' is empty, or"),
    6: ("scans/4.png,Is it?,yes,held", "line 6: split is 'held'; allowed"),
    7: ("scans/5.png,Is it?,yes", "line 7: it has fewer or more fields"),
    8: ("../6.png,Is it?,yes,train", "line 8: the image ../6.png is not inside"),
    9: ("scans/7.png,Is it?,yes,", "line 9: 'split' is empty while other rows have one"),
    10: ('scans/8.png,"Is" it?,yes,train', "line 10: not valid CSV"),
}
WRONG_JSONL = {
    2: ('{"image": "scans/0.png"', "line 2 is not valid JSON"),
    4: ('{"image": "scans/0.png", "question": "Is it?"}', "line 4: 'answer' is missing, which other rows have"),
    5: ("[1]", "line 5: it is not a JSON object"),
    7: (
        '{"image": "scans/0.png", "Image": "x", "question": "Is it?", "answer": "yes"}',
        "line 7: 'image' is there twice",
    ),
    8: ('{"image": "scans/0.png", "question": "", "answer": "yes"}', "line 8: 'question' is empty"),
    9: ('{"image": 7, "question": "Is it?", "answer": "yes"}', "line 9: 'image' is empty or not text"),
    10: ('{"image": "scans/0.png", "question": "Is it?", "answer": ["yes"]}', "line 10: an answer is list"),
}


@pytest.mark.parametrize(
    ("name", "head", "right", "wrong"),
    [
        ("manifest.csv", ["image,question,answer,split"], "scans/{n}.png,Is it?,yes,train", WRONG_CSV),
        (
            "manifest.jsonl",
            ['{"image": "scans/0.png", "question": "Is it?", "answer": "yes"}'],
            '{{"image": "scans/{n}.png", "question": "Is it?", "answer": "yes"}}',
            WRONG_JSONL,
        ),
    ],
    ids=["csv", "jsonl"],
)
def test_all_bad_rows_are_named_at_once(tmp_path, name, head, right, wrong):
    _scans(tmp_path)
    rows = [wrong[line][0] if line in wrong else right.format(n=line - 2) for line in range(2, 11)]
    lines(tmp_path / name, [*head, *rows])
    with pytest.raises(DataError) as error:
        _load(tmp_path)
    first, *others = str(error.value).split("\n")
    count = len(rows) + (name == "manifest.jsonl")
    assert first == f"{tmp_path / name}: {len(wrong)} of {count} rows cannot be used:"
    assert len(others) == len(wrong)
    for _, sentence in wrong.values():
        assert any(one.startswith(sentence.format(root=tmp_path)) for one in others), sentence


@pytest.mark.slow
def test_of_many_bad_rows_the_first_twenty_are_named_and_all_are_counted(tmp_path):
    lines(tmp_path / "manifest.csv", ["image,question,answer", *(f"{n}.png,Is it?,yes" for n in range(1500))])
    with pytest.raises(DataError) as error:
        _load(tmp_path)
    first, *others = str(error.value).split("\n")
    assert first.endswith("manifest.csv: 1,500 of 1,500 rows cannot be used, the first 20 are:")
    assert [f"{n}.png, named in line {n + 2}" in one for n, one in enumerate(others)] == [True] * 20


@pytest.mark.parametrize("answer", ["None", "-1", "?"])
def test_what_may_be_missing_or_an_answer_is_an_answer_and_counted_as_such(tmp_path, answer):
    _scans(tmp_path)
    _csv(tmp_path, _rows(answer=answer))
    (note,) = _load(tmp_path).notes
    assert note.startswith(f"10 answers are {answer.lower()!r}, which is an answer like others: where it says that")


def test_labels_may_be_empty_and_not_missing(tmp_path):
    _scans(tmp_path)
    _csv(tmp_path, [{"image": row["image"], "labels": ("mass", "")[n % 2]} for n, row in enumerate(_rows())])
    assert _load(tmp_path).left_out == ()
    _csv(tmp_path, [{"image": row["image"], "labels": ("mass", "nan")[n % 2]} for n, row in enumerate(_rows())])
    with pytest.raises(DataError, match=r"5 of 10 rows cannot be used:\nline 3: 'labels' is empty, or .*\nline 5"):
        _load(tmp_path)


@pytest.mark.parametrize("value", ["", "nan", "None", "none", "NULL", " n/a "])
def test_a_field_that_may_be_absent_may_also_hold_what_programs_write_then(tmp_path, value):
    _scans(tmp_path)
    may_be_absent = ("answer_type", "question_type", "split", "patient")
    _csv(tmp_path, _rows())
    plain = _load(tmp_path)
    _csv(tmp_path, [{**row, **dict.fromkeys(may_be_absent, value)} for row in _rows()])
    site = _load(tmp_path)
    assert site.splits() == plain.splits()
    assert site.notes == ("10 rows name no patient; their images count as different patients.",)
    _csv(tmp_path, [{"image": row["image"], "labels": "mass", "text": value} for row in _rows()])
    assert {example.question for split in _load(tmp_path).splits().values() for example in split} == {""}


def test_images_without_a_patient_stand_alone_and_are_counted(tmp_path):
    _scans(tmp_path)
    _csv(tmp_path, [{**row, "patient": ("a", "None", "", "b")[n % 4]} for n, row in enumerate(_rows())])
    site = _load(tmp_path)
    assert site.notes == ("5 rows name no patient; their images count as different patients.",)
    assert {e.group for split in site.splits().values() for e in split} == {"a", "b", ""}


def test_two_manifests_and_the_papers_split_are_refused(tmp_path):
    _scans(tmp_path)
    _csv(tmp_path, _rows())
    _jsonl(tmp_path, _rows())
    with pytest.raises(DataError, match=r"Both .*manifest\.csv and .*manifest\.jsonl are there"):
        _load(tmp_path)
    with pytest.raises(DataError, match="split='paper' has no meaning for a manifest"):
        _load(tmp_path, split="paper")


@pytest.mark.parametrize("write", [_csv, _jsonl])
def test_images_with_one_class_are_measured_by_balanced_accuracy(tmp_path, write):
    _scans(tmp_path)
    write(tmp_path, [{"image": row["image"], "label": f"Kind {n % 2}"} for n, row in enumerate(_rows())])
    site = _load(tmp_path, site="north")
    assert site.metric == "balanced_accuracy"
    assert site.labels == ()
    assert {(e.question, e.answer) for split in site.splits().values() for e in split} == {
        ("", "kind 0"),
        ("", "kind 1"),
    }


def test_the_most_frequent_spelling_of_a_class_or_label_is_kept(tmp_path):
    _scans(tmp_path)
    words = ("Viral  Pneumonia", "viral pneumonia", "viral pneumonia", "COVID-19", "Covid-19", "COVID-19", "normal")
    _csv(tmp_path, [{"image": row["image"], "label": words[n % 7]} for n, row in enumerate(_rows())])
    assert _load(tmp_path).spellings() == {"covid-19": "COVID-19"}  # 2 of 4 rows write the other one in small letters
    _csv(
        tmp_path,
        [{"image": row["image"], "labels": ("Mass|Edema", "edema|Mass")[n > 2]} for n, row in enumerate(_rows())],
    )
    assert _load(tmp_path).spellings() == {"mass": "Mass"}


@pytest.mark.parametrize("write", [_csv, _jsonl])
def test_images_with_labels_are_measured_by_macro_f1(tmp_path, write):
    _scans(tmp_path)
    labels = ("Edema", "", "Mass | edema", "mass")
    rows = [
        {"image": row["image"], "labels": labels[n % 4], "text": f"report {n}", "patient": f"p{n // 2}"}
        for n, row in enumerate(_rows())
    ]
    write(tmp_path, rows)
    site = _load(tmp_path, site="north")
    assert (site.metric, site.labels) == ("macro_f1", ("edema", "mass"))
    found = {e.image_id: (e.labels, e.question) for split in site.splits().values() for e in split}
    assert found["scans/1.png"] == ((), "report 1")
    assert found["scans/2.png"] == (("edema", "mass"), "report 2")
    patients = [{e.group for e in split} for split in site.splits().values()]
    assert sum(map(len, patients)) == 5


def test_labels_may_be_a_list_and_nothing_else(tmp_path):
    _scans(tmp_path)
    _jsonl(
        tmp_path, [{"image": row["image"], "labels": ["Mass", "edema"] if n else None} for n, row in enumerate(_rows())]
    )
    assert _load(tmp_path).labels == ("edema", "mass")
    _jsonl(tmp_path, [{"image": row["image"], "labels": {"mass": 1}} for row in _rows()])
    with pytest.raises(DataError, match="line 1: 'labels' is neither text nor a list of texts; correct that row"):
        _load(tmp_path)


def test_an_image_of_two_patients_is_refused(tmp_path):
    _scans(tmp_path)
    _csv(tmp_path, [*_rows(patient="a"), *_rows(count=1, patient="")])
    with pytest.raises(DataError, match=r"image 'scans/0\.png' is in two groups \(patients\)"):
        _load(tmp_path)


@pytest.mark.parametrize(
    ("name", "one"),
    [
        ("a.png", "a.png"),
        ("a.png#", "a.png"),
        ("a.png#00", "a.png"),
        ("a.png#01", "a.png#1"),
        ("a.nii#0", "a.nii#0"),
        ("a.nii#axial-07", "a.nii#7"),
        ("a.nii#axial", "a.nii"),
        ("a.nii#sagittal-3", "a.nii#sagittal-3"),
        ("a.nii#other", "a.nii#other"),
    ],
)
def test_an_image_has_one_name(name, one):
    assert image_name(name, name.partition("#")[0]) == one


@pytest.mark.parametrize(
    ("written", "image"),
    [
        ("scans/0.png#0", "scans/0.png"),
        ("./scans/0.png", "scans/0.png"),
        ("scans\\0.png#00", "scans/0.png"),
        (" scans//0.png ", "scans/0.png"),
        (".\\many.tif#02", "many.tif#2"),
        ("cafe\u0301.png", "caf\u00e9.png"),
    ],
)
def test_an_image_is_left_out_by_any_spelling_that_a_table_may_have(tmp_path, written, image):
    gray = Image.new("L", (4, 4))
    gray.save(tmp_path / "many.tif", save_all=True, append_images=[gray] * 2)
    names = [*(f"scans/{number}.png" for number in range(8)), "many.tif#2", "caf\u00e9.png"]
    for name in [name for name in names if name.endswith(".png")]:
        picture(tmp_path / name)
    _jsonl(tmp_path, [{"image": name, "question": "Is it?", "answer": "no"} for name in names])
    settings = DataSettings(dataset="manifest", root=tmp_path)
    for site in (_load(tmp_path, exclude=[written]), load(settings, without=[written])):
        assert set().union(*map(_images, site.splits().values())) == {*names} - {image}
        assert site.left_out == (("its image is excluded", 1),)


@pytest.mark.parametrize("part", ["#0", "#", "#00"])
def test_a_file_of_one_frame_is_one_image_however_it_is_named(tmp_path, part):
    _scans(tmp_path)
    once = [{**row, "patient": f"p{number}"} for number, row in enumerate(_rows())]
    again = [{**row, "image": f"{row['image']}{part}"} for row in once]
    _csv(tmp_path, once)
    expected = sum(map(len, _load(tmp_path).splits().values()))
    _csv(tmp_path, [*once, *again])
    assert sum(map(len, _load(tmp_path).splits().values())) == expected  # as repeated rows
    _csv(tmp_path, [*once, *({**row, "patient": "b"} for row in again)])
    with pytest.raises(DataError, match=r"image 'scans/0\.png' is in two groups \(patients\)"):
        _load(tmp_path)


@pytest.mark.parametrize("key", ["image", "question", "answer", "patient"])
def test_half_of_a_character_is_refused_with_its_line(tmp_path, key):
    """JSON may hold one, for instance of a text that was cut within an emoji; no file of UTF-8 can."""
    _scans(tmp_path)
    rows = _rows(patient="a")
    rows[2] = {**rows[2], key: "what \ud83d"}
    _jsonl(tmp_path, rows)
    with pytest.raises(DataError, match=r"jsonl, line 3: a text has half of a character .*; correct that row"):
        _load(tmp_path)


def test_the_jobs_labels_hold_where_it_names_some(tmp_path):
    _scans(tmp_path)
    _csv(tmp_path, [{"image": row["image"], "labels": "mass"} for row in _rows()])
    assert _load(tmp_path, answers=["Nodule", "Mass"]).labels == ("mass", "nodule")
    with pytest.raises(DataError, match=r"1 labels of the manifest are not in data\.answers; add them"):
        _load(tmp_path, answers=["nodule"])


def test_a_table_without_any_label_is_refused(tmp_path):
    _scans(tmp_path)
    _csv(tmp_path, [{"image": row["image"], "labels": ""} for row in _rows()])
    with pytest.raises(DataError, match="no image of the manifest has a label; fill in 'labels', or name them"):
        _load(tmp_path)
    assert _load(tmp_path, answers=["mass"]).labels == ("mass",)


def test_patients_that_differ_in_case_alone_are_counted_in_a_note(tmp_path):
    _scans(tmp_path)
    _csv(tmp_path, [{**row, "patient": ("p1", "P1", "p2", "p3")[n % 4]} for n, row in enumerate(_rows())])
    (note,) = _load(tmp_path).notes
    assert note.startswith("1 patients are written both with small and with capital letters and count as several")


@pytest.mark.parametrize("first", ["sep=;", '"sep=;"', "SEP=;;;", "sep=,", "sep=\t", "sep=|"])
def test_the_line_that_names_the_separator_for_excel_is_no_header(tmp_path, first):
    _scans(tmp_path)
    separator = next(one for one in ";,\t|" if one in first)
    rows = [["image", "question", "answer"], *([f"scans/{n}.png", "Which?", "yes"] for n in range(10))]
    lines(tmp_path / "manifest.csv", [first, *map(separator.join, rows)], end="\r\n")
    site = _load(tmp_path)
    assert sum(map(len, site.splits().values())) == 10
    assert len(site.notes) == (separator != ",")
    lines(tmp_path / "manifest.csv", [first, *map(separator.join, [*rows, ["scans/1.png"]])], end="\r\n")
    with pytest.raises(DataError, match=r"manifest\.csv, line 13: it has fewer or more fields"):
        _load(tmp_path)
    read = csv_rows(tmp_path / "manifest.csv", ("image",), bad=(bad := BadRows(tmp_path / "manifest.csv")))
    assert [read[0].where, bad.count] == [f"{tmp_path / 'manifest.csv'}, line 3", 1]


@pytest.mark.parametrize("key", ["question", "label", "labels"])
def test_a_patient_is_one_however_the_blanks_or_the_whole_number_are_written(tmp_path, key):
    _scans(tmp_path)
    target = {"question": "Which?", "answer": "yes"} if key == "question" else {key: "mass"}
    patients = (
        [f"P{' ' * (1 + n // 5)}{n % 5}" for n in range(10)],
        [n % 5 if n < 5 else float(n % 5) for n in range(10)],
    )
    for written, groups in zip(patients, ([f"P {n}" for n in range(5)], list("01234")), strict=True):
        _jsonl(tmp_path, [{"image": f"scans/{n}.png", **target, "patient": written[n]} for n in range(10)])
        splits = [{example.group for example in part} for part in _load(tmp_path).splits().values()]
        assert sorted(group for part in splits for group in part) == groups


def test_a_label_that_is_written_twice_counts_once(tmp_path):
    _scans(tmp_path)
    lines(
        tmp_path / "manifest.csv",
        ["image,labels", *(f"scans/{n}.png,Mass|mass{'|Nodule' * (n % 2)}" for n in range(10))],
    )
    site = _load(tmp_path)
    assert {example.labels for part in site.splits().values() for example in part} <= {("mass",), ("mass", "nodule")}
