# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A Hugging Face `datasets` folder on disk: Parquet and Arrow, encoded images, named columns."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from layouts import picture
from PIL import Image

from fedpeft.data import DataError, DataSettings, hub_files, load
from fedpeft.data.duplicates import duplicates, fingerprints
from fedpeft.data.folder_sites import sites_in
from fedpeft.data.images import as_array
from fedpeft.data.readable import images_of
from fedpeft.site.site_batches import KeptImages

PARTS = {"train": 10, "validation": 3, "test": 5}


def _pixels(number):
    return np.random.default_rng(number).integers(0, 256, (6, 5, 3), dtype=np.uint8)


def _png(number):
    buffer = io.BytesIO()
    Image.fromarray(_pixels(number)).save(buffer, "png")
    return buffer.getvalue()


def _rows(start, count, **more):
    """Two questions about each image; the hub's copies repeat the image in each row."""
    return [
        {
            "image": {"bytes": _png(number), "path": f"{number}.png"},
            "question": f"Question {index}?",
            "answer": ("Yes", "left  Lung")[index],
            **more,
        }
        for number in range(start, start + count)
        for index in range(2)
    ]


def _parquet(file, rows, **options):
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), file, **{"row_group_size": 3, **options})


def _hub(root):
    start = 0
    for split, count in PARTS.items():
        _parquet(root / "data" / f"{split}-00000-of-00001.parquet", _rows(start, count))
        start += count


def _converted(root):
    start = 0
    for split, count in PARTS.items():
        _parquet(root / "default" / split / "0000.parquet", _rows(start, count))
        start += count


def _saved(root):
    start = 0
    for split, count in PARTS.items():
        folder = root / split
        folder.mkdir(parents=True)
        table = pa.Table.from_pylist(_rows(start, count))
        with pa.ipc.new_stream(folder / "data-00000-of-00001.arrow", table.schema) as stream:
            stream.write_table(table, max_chunksize=4)
        state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_split": split}
        (folder / "state.json").write_text(json.dumps(state))
        (folder / "cache-0123.arrow").write_bytes(b"what a map left there")
        start += count
    (root / "dataset_dict.json").write_text(json.dumps({"splits": list(PARTS)}))


def _load(root, **settings):
    return load(DataSettings(dataset="hugging_face", root=root, **settings))


def _all(data):
    return [example for part in data.splits().values() for example in part]


@pytest.mark.parametrize("write", [_hub, _converted, _saved])
def test_splits_answers_and_pixels(tmp_path, write):
    write(tmp_path)
    data = _load(tmp_path, site="north")
    assert [len(part) for part in data.splits().values()] == [2 * count for count in PARTS.values()]
    assert [(e.answer, e.closed) for e in data.test[:2]] == [("yes", True), ("left lung", False)]
    assert len({example.image_id for example in _all(data)}) == sum(PARTS.values())
    for number, example in enumerate(_all(data)):
        assert (as_array(example.image) == _pixels(number // 2)).all()
    assert data == _load(tmp_path, site="north")
    assert (data.site, data.left_out, data.notes) == ("north", (), ())
    assert len(fingerprints(data)) == sum(PARTS.values())
    assert as_array(pickle.loads(pickle.dumps(data.train[4].image))).shape == (6, 5, 3)


def test_an_image_in_several_rows_is_one_and_is_kept_once(tmp_path):
    _hub(tmp_path)
    data = _load(tmp_path)
    assert data.train[0].image is data.train[1].image
    kept = KeptImages(1.0)
    first = kept.open(data.train[0].image)
    (tmp_path / "data" / "train-00000-of-00001.parquet").unlink()
    assert (np.asarray(kept.open(data.train[1].image)) == np.asarray(first)).all()


def test_of_several_threads_one_reads_an_open_file(tmp_path, monkeypatch):
    alone = []

    class Watched(pq.ParquetFile):
        def read_row_group(self, *arguments, **options):
            alone.append(hub_files.ONE_READER.locked())
            return super().read_row_group(*arguments, **options)

    monkeypatch.setattr(pq, "ParquetFile", Watched)
    _parquet(tmp_path / "train-00000-of-00001.parquet", _rows(0, 12), row_group_size=2)
    site = _load(tmp_path, unreadable=0.1)
    assert len({e.image_id for e in _all(site)}) == 12
    assert len(alone) == 12
    assert all(alone)


def test_columns_are_named_in_the_settings(tmp_path):
    table = [
        {
            "pic": row["image"]["bytes"],
            "prompt": row["question"],
            "answers": [row["answer"], "maybe", row["answer"].upper()],
            "kind": "OPEN",
            "fold": ("train", "test", "hidden")[number % 3],
            "scan": f"scan-{number // 2}",
        }
        for number, row in enumerate(_rows(0, 6))
    ]
    _parquet(tmp_path / "vqa.parquet", table)
    columns = {"image": "pic", "question": "prompt", "answer": "answers"}
    more = {"answer_type": "kind", "split": "fold", "id": "scan"}
    data = _load(tmp_path, columns={**columns, **more}, validation_fraction=0)
    assert [len(part) for part in data.splits().values()] == [4, 0, 4]
    assert data.left_out == (("its split is none of train, validation and test", 4),)
    one = data.train[0]
    assert (one.answer, one.alternatives, one.closed, one.image_id) == ("yes", ("maybe",), False, "scan-0")
    with pytest.raises(DataError, match=r"no column 'image'; it has pic, prompt, .*: set data\.columns\.image\."):
        _load(tmp_path)
    with pytest.raises(DataError, match=r"no column 'ask'.*: set data\.columns\.question\."):
        _load(tmp_path, columns={**columns, "question": "ask"})


@pytest.mark.parametrize("missing", [None, "", "nan", "None"])
def test_images_without_an_id_stay_apart(tmp_path, missing):
    _parquet(tmp_path / "train.parquet", [{**row, "scan": missing} for row in _rows(0, 12)])
    data = _load(tmp_path, columns={"id": "scan"})
    assert len({example.image_id for part in data.splits().values() for example in part}) == 12


def test_the_names_of_classes_are_answers(tmp_path):
    table = pa.Table.from_pylist([{**row, "answer": number % 2} for number, row in enumerate(_rows(0, 6))])
    features = {"answer": {"names": ["no", "yes"], "_type": "ClassLabel"}, "question": {"dtype": "string"}}
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, tmp_path / "train.parquet")
    assert {example.answer for example in _all(_load(tmp_path))} == {"no", "yes"}


def test_what_is_incomplete_is_counted(tmp_path):
    rows = _rows(0, 10)
    rows[0]["answer"], rows[1]["question"], rows[2]["image"], rows[3]["answer"] = None, " ", None, ""
    _parquet(tmp_path / "data" / "train-00000-of-00002.parquet", rows[:12])
    _parquet(tmp_path / "data" / "train-00001-of-00002.parquet", rows[12:])
    data = _load(tmp_path)
    assert dict(data.left_out) == {"no image or several, no question or no answer": 4}
    assert data.notes == ("The folder has no train or no test split; all of it is split by image.",)
    assert not {e.image_id for e in data.train} & {e.image_id for e in data.test}
    _parquet(tmp_path / "data" / "unlabelled-00000-of-00001.parquet", _rows(50, 2))
    with pytest.raises(DataError, match=r"no test split, and rows of splits with other names \(unlabelled\): call"):
        _load(tmp_path)
    _parquet(tmp_path / "data" / "test-00000-of-00001.parquet", _rows(60, 2))
    data = _load(tmp_path)
    assert dict(data.left_out)["its split is none of train, validation and test"] == 4
    assert len(data.test) == 4


@pytest.mark.parametrize(
    "names",
    [
        ("data/train-00000-of-00001-0123456789abcdef", "data/test-00000-of-00001-fedcba9876543210"),
        ("vqa_train", "vqa_test"),
        ("data/my-training-file", "data/my.testing.file"),
        ("train/part-0", "test/part-0"),
        ("default/train/0000", "default/partial-test/0000"),
        ("train", "TEST.PARQUET"),
    ],
)
def test_a_published_split_stays_whatever_wrote_its_name(tmp_path, names):
    for number, name in enumerate(names):
        file = name if name.lower().endswith(".parquet") else f"{name}.parquet"
        _parquet(tmp_path / file, _rows(20 * number, 8))
    data = _load(tmp_path)
    published = [hashlib.sha256(_png(20 + number // 2)).hexdigest() for number in range(16)]
    assert [example.image_id for example in data.test] == published
    assert len(data.train) + len(data.validation) == 16
    assert data.notes == ()


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (("train-00000-of-00001", "more"), "more.parquet names no split, and other files do: name it like one"),
        (("train-or-test", "test"), "train-or-test.parquet is named like test and train; name it like one split"),
        (("train-00000-of-00002", "test"), "has 1 of 2 files train-...-of-00002: download the others"),
        (("train-00001-of-00003", "train-00001-of-00003-0a", "test"), "has 1 of 3 files train-"),
        (("train", "eval"), "eval.parquet names no split, and other files do"),
        (("train", "test.csv"), "test.csv is named like the split test, which no Parquet file here has: save it as"),
        (("train", "test.parquet.incomplete"), "is named like the split test, which no Parquet file"),
    ],
)
def test_a_name_that_is_not_understood_is_refused(tmp_path, names, sentence):
    for name in names:
        _parquet(tmp_path / (name if Path(name).suffix else f"{name}.parquet"), _rows(0, 8))
    with pytest.raises(DataError, match=sentence):
        _load(tmp_path)
    with pytest.raises(DataError, match=sentence):
        sites_in(tmp_path)


def test_a_file_beside_a_complete_set_is_none_of_its_splits(tmp_path):
    _hub(tmp_path)
    (tmp_path / "data" / "train_captions.json").write_text("[]")
    assert len(_all(_load(tmp_path))) == 2 * sum(PARTS.values())


@pytest.mark.parametrize(
    ("listed", "sentence"), [('{"splits": ["train", "more"]}', "split 'more', which is"), ("[]", "is not what")]
)
def test_a_saved_split_that_is_not_there_is_refused(tmp_path, listed, sentence):
    _saved(tmp_path)
    (tmp_path / "dataset_dict.json").write_text(listed)
    with pytest.raises(DataError, match=sentence):
        _load(tmp_path)


@pytest.mark.parametrize("listed", [False, True])
def test_a_class_without_a_known_number_is_missing(tmp_path, listed):
    feature = {"names": ["no", "yes"], "_type": "ClassLabel"}
    features = {"answer": [feature] if listed else feature}
    for split, count in (("train", 12), ("test", 6)):
        rows = [{**row, "answer": [n % 2] if listed else n % 2} for n, row in enumerate(_rows(20 * len(split), count))]
        if split == "test":
            rows[0]["answer"] = [-1] if listed else -1
        metadata = {"huggingface": json.dumps({"info": {"features": features}})}
        table = pa.Table.from_pylist(rows).replace_schema_metadata(metadata)
        pq.write_table(table, tmp_path / f"{split}.parquet")
    data = _load(tmp_path)
    assert {example.answer for example in data.test} == {"no", "yes"}
    assert dict(data.left_out) == {"no image or several, no question or no answer": 1}


def test_missing_values_are_left_out_and_what_is_published_twice_or_differently_is_noted(tmp_path):
    rows = _rows(0, 10)
    rows[0]["answer"], rows[1]["question"] = "nan", "N/A"
    rows += [rows[5], {**rows[6], "answer": "another"}]
    _parquet(tmp_path / "data" / "train-00000-of-00001.parquet", rows)
    _parquet(tmp_path / "data" / "test-00000-of-00001.parquet", [*_rows(50, 2), rows[7]])
    data = _load(tmp_path)
    assert dict(data.left_out) == {"no image or several, no question or no answer": 2}
    assert len(_all(data)) + 2 == len(rows) + len(_rows(50, 2)) + 1
    repeated, contradicted, common = data.notes
    assert repeated.startswith("2 rows repeat image, question and answer of another; they stay")
    assert contradicted.startswith("2 rows have another answer than another row")
    assert common.startswith("1 images are in more than one split")


def test_an_image_may_be_a_path_inside_the_folder(tmp_path):
    for number in range(6):
        picture(tmp_path / "scans" / f"{number}.png")
    rows = [{"image": f"scans/{number % 6}.png", "question": "q?", "answer": "a"} for number in range(12)]
    _parquet(tmp_path / "train.parquet", rows)
    data = _load(tmp_path)
    assert {example.image for example in _all(data)} == {tmp_path / "scans" / f"{n}.png" for n in range(6)}
    for path, sentence in (
        ("../x.png", "is not inside"),
        ("../" * 10**5, "more characters.* is not inside"),
        ("scans/9.png", r"9\.png, named in .*row 3, is missing"),
        ("a/" * 10**5, "more characters.*, named in .*row 3, is missing"),
        ("a\0b.png", "row 3, is missing"),
    ):
        _parquet(tmp_path / "train.parquet", [*rows[:2], {**rows[0], "image": path}])
        with pytest.raises(DataError, match=sentence):
            _load(tmp_path)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"not an image", r"train\.parquet, row 1 cannot be decoded"),
        (_png(1)[:40], r"train\.parquet, row 1 cannot be decoded"),
        ("16 bit", r"train\.parquet, row 1 has more than 8 bits"),
    ],
)
def test_an_image_in_a_table_is_refused_as_a_file_is(tmp_path, content, sentence):
    if content == "16 bit":
        buffer = io.BytesIO()
        Image.fromarray(np.full((3, 3), 40_000, np.uint16)).save(buffer, "png")
        content = buffer.getvalue()
    rows = _rows(0, 10)
    rows[0]["image"] = {"bytes": content, "path": None}
    _parquet(tmp_path / "train.parquet", rows)
    (broken,) = [e.image for e in _all(_load(tmp_path)) if str(e.image).endswith("row 1")]
    with pytest.raises(DataError, match=sentence):
        as_array(broken)


def test_a_folder_of_another_kind_shows_what_is_expected_and_what_is_there(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "manifest.csv").touch()
    with pytest.raises(DataError, match=r"(?s)no folder of Hugging Face.*data/train-0.*There is images/, manifest"):
        _load(tmp_path)


def test_of_several_saved_data_sets_one_has_to_be_chosen(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name / "train").mkdir(parents=True)
        (tmp_path / name / "train" / "state.json").write_text("{}")
    with pytest.raises(DataError, match="hold saved data; let root be the folder of one of them"):
        load(DataSettings(dataset="hugging_face", root=tmp_path))


def test_of_several_configurations_one_has_to_be_chosen(tmp_path):
    for language in ("en", "zh"):
        _hub(tmp_path / language)
    with pytest.raises(DataError, match=r"Both .*en.data and .*zh.data hold Parquet files; let root be"):
        _load(tmp_path)
    assert len(_all(_load(tmp_path / "en"))) == 36


def test_broken_files_are_named(tmp_path):
    _saved(tmp_path / "saved")
    (tmp_path / "saved" / "test" / "data-00000-of-00001.arrow").unlink()
    with pytest.raises(DataError, match=r"data-00000-of-00001\.arrow, named in .*state\.json, is missing"):
        _load(tmp_path / "saved")
    (tmp_path / "saved" / "test" / "state.json").write_text("[]")
    with pytest.raises(DataError, match=r"state\.json is not what save_to_disk writes"):
        _load(tmp_path / "saved")
    _hub(tmp_path / "hub")
    file = tmp_path / "hub" / "data" / "test-00000-of-00001.parquet"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"test-00000-of-00001\.parquet cannot be read"):
        _load(tmp_path / "hub")


UNPACKING = [  # file, name of a limit, its value, sentence
    ("data.parquet", "MAX_ROWS", 7, "unpacks to 8 rows, allowed are 7"),
    ("data.parquet", "MAX_UNPACKED", 10, "unpacks to a row group of 0 MiB in one column, allowed are 0"),
    ("data.arrow", "MAX_ROWS", 7, "unpacks to 8 rows, allowed are 7"),
]


@pytest.mark.parametrize(("name", "limit", "value", "sentence"), UNPACKING)
def test_a_file_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch, name, limit, value, sentence):
    table = pa.Table.from_pylist(_rows(0, 4))
    if name.endswith(".arrow"):
        with pa.ipc.new_stream(tmp_path / name, table.schema) as stream:
            stream.write_table(table)
        (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}], "_split": "train"}))
    else:
        pq.write_table(table, tmp_path / name)
    monkeypatch.setattr(hub_files, limit, value)
    with pytest.raises(DataError, match=sentence):
        load(DataSettings(dataset="hugging_face", root=str(tmp_path)))


@pytest.mark.parametrize("read", ["rows", "image"])
def test_a_file_that_needs_more_memory_than_there_is_is_named(tmp_path, monkeypatch, read):
    _hub(tmp_path)
    first = next(iter(load(DataSettings(dataset="hugging_face", root=str(tmp_path))).train))

    def none_left(*args, **kwargs):
        raise pa.lib.ArrowMemoryError("realloc of size 1073741824 failed")

    if read == "image":
        monkeypatch.setattr(hub_files, "_images", none_left)
    else:
        monkeypatch.setattr(pq.ParquetFile, "iter_batches", none_left)
    with pytest.raises(DataError, match="unpacks to more than this process has memory for"):
        as_array(first.image) if read == "image" else load(DataSettings(dataset="hugging_face", root=str(tmp_path)))


def test_a_text_that_a_dictionary_repeats_is_kept_once_and_read_in_smaller_batches(tmp_path, monkeypatch):
    question = "x" * 60_000
    _parquet(tmp_path / "data.parquet", [{**row, "question": question} for row in _rows(0, 20)], row_group_size=40)
    sizes = []
    whole = pq.ParquetFile.iter_batches

    def counted(self, size, **options):
        sizes.append(size)
        return whole(self, size, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    monkeypatch.setattr(hub_files, "_MAX_IN_BATCH", 200_000)
    site = load(DataSettings(dataset="hugging_face", root=str(tmp_path)))
    assert len({id(example.question) for example in (*site.train, *site.test)}) == 1
    assert sizes == [3]


def _arrow_folder(root, table, *, new=pa.ipc.new_stream, **options):
    root.mkdir(exist_ok=True)
    with new(root / "data.arrow", table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    (root / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}], "_split": "train"}))
    return DataSettings(dataset="hugging_face", root=str(root))


def test_a_struct_with_a_field_of_such_a_name_repeats_nothing():
    kinds = [pa.struct([("review", pa.string()), ("dictionary", pa.string())]), pa.list_(pa.binary())]
    assert not any(hub_files._REPEATS.search(str(kind)) for kind in kinds)
    repeating = [
        pa.dictionary(pa.int8(), pa.string()),
        pa.list_(pa.dictionary(pa.int8(), pa.string())),
        pa.string_view(),
    ]
    repeating += [
        pa.run_end_encoded(pa.int32(), pa.string()),
        pa.list_view(pa.string()),
        pa.struct([("a", pa.binary_view())]),
    ]
    repeating += [pa.dense_union([pa.field("a", pa.string())])]
    assert all(hub_files._REPEATS.search(str(kind)) for kind in repeating)


def test_a_column_that_nobody_reads_may_be_damaged(tmp_path):
    table = pa.Table.from_pylist(_rows(0, 4))
    damaged = pa.Array.from_buffers(
        pa.string(), 8, [None, pa.py_buffer(np.arange(9, dtype=np.int32)), pa.py_buffer(b"\xff" * 8)]
    )
    assert len(load(_arrow_folder(tmp_path, table.append_column("notes", damaged))).train)


@pytest.mark.parametrize("new", [pa.ipc.new_stream, pa.ipc.new_file])
@pytest.mark.parametrize("column", ["plain", "dictionary"])
def test_compressed_arrow_is_refused_before_it_is_unpacked(tmp_path, new, column):
    table = pa.Table.from_pylist(_rows(0, 4))
    if column == "dictionary":
        texts = table.column("question").dictionary_encode()
        table = table.set_column(table.column_names.index("question"), "question", texts)
    sound = load(_arrow_folder(tmp_path, table, new=new))
    assert sum(map(len, sound.splits().values())) == 8
    before = pa.total_allocated_bytes()
    with pytest.raises(DataError, match=r"data\.arrow is a compressed Arrow file, which is not read: save it"):
        load(_arrow_folder(tmp_path / "packed", table, new=new, compression="zstd"))
    assert pa.total_allocated_bytes() == before


def test_an_arrow_dictionary_is_read_in_smaller_batches(tmp_path, monkeypatch):
    table = pa.Table.from_pylist([{**row, "question": "x" * 60_000} for row in _rows(0, 20)])
    texts = table.column("question").dictionary_encode()
    table = table.set_column(table.column_names.index("question"), "question", texts)
    monkeypatch.setattr(hub_files, "_MAX_IN_BATCH", 200_000)
    largest = hub_files._largest_repeating(table, ["question", "image"])
    assert 60_000 <= largest < 70_000
    assert hub_files._largest_repeating(table, ["image"]) == 0
    assert {len(example.question) for example in load(_arrow_folder(tmp_path, table)).train} == {60_000}


def test_offsets_outside_of_an_arrow_file_are_no_text(tmp_path):
    wrong = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(np.array([0, 2**30, 9], np.int32)), pa.py_buffer(b"q" * 9)]
    )
    table = pa.Table.from_pylist(_rows(0, 1))
    table = table.set_column(table.column_names.index("question"), "question", wrong)
    with pytest.raises(DataError, match=r"data\.arrow cannot be read; copy or download it again"):
        load(_arrow_folder(tmp_path, table))


def test_classes_of_a_deeply_nested_description_are_none(tmp_path):
    table = pa.Table.from_pylist(_rows(0, 4)).replace_schema_metadata({b"huggingface": b"[" * 200_000})
    assert len(load(_arrow_folder(tmp_path, table)).train)


def test_a_text_longer_than_a_short_book_is_refused(tmp_path):
    _parquet(tmp_path / "data.parquet", [{**row, "question": "x" * 70_000} for row in _rows(0, 4)])
    with pytest.raises(DataError, match="row 1: a text of 70,000 characters, allowed are 65,536"):
        load(DataSettings(dataset="hugging_face", root=str(tmp_path)))


def test_without_pyarrow_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    _hub(tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DataError, match=r"need pyarrow, .* pip install 'flare-fedpeft\[parquet\]'"):
        _load(tmp_path)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"columns": {"question": ""}}, "must give names of columns"),
        ({"columns": ["question"]}, "must give names of columns"),
        ({"columns": {"caption": "text"}}, "columns names 'caption', which is none of image, question"),
        ({"dataset": "slake", "columns": {"question": "q"}}, "is not a setting of dataset='slake'"),
        ({"split": "paper", "root": "."}, "split='paper' has no meaning"),
    ],
)
def test_wrong_settings_are_refused(settings, sentence):
    with pytest.raises(DataError, match=sentence):
        load(DataSettings(**{"dataset": "hugging_face", **settings}))


def test_of_several_ids_of_one_image_the_first_counts_so_that_it_is_in_one_split(tmp_path):
    table = [{**row, "image": row["image"]["bytes"], "row": f"r{n}"} for n, row in enumerate(_rows(0, 6))]
    _parquet(tmp_path / "vqa.parquet", table)
    site = _load(tmp_path, columns={"id": "row"})
    assert {example.image_id for example in _all(site)} == {f"r{2 * n}" for n in range(6)}
    assert any(note.startswith("12 ids name images that other ids name too") for note in site.notes)


def test_images_of_one_id_are_told_apart_by_their_bytes(tmp_path):
    """Ids that begin anew in each split name one image of each."""
    start = 0
    for split, count in PARTS.items():
        table = [{**row, "image": row["image"]["bytes"], "id": n // 2} for n, row in enumerate(_rows(start, count))]
        _parquet(tmp_path / f"{split}.parquet", table)
        start += count
    site = _load(tmp_path, columns={"id": "id"})
    assert [len(part) for part in site.splits().values()] == [2 * count for count in PARTS.values()]
    for number, example in enumerate(_all(site)):
        assert (as_array(example.image) == _pixels(number // 2)).all()
    digests = [hashlib.sha256(_png(number)).hexdigest() for number in range(sum(PARTS.values()))]
    own = [example.image_id for example in _all(site)][::2]
    assert own == [*digests[:5], *map(str, range(5, 10)), *digests[10:]]  # 5 to 9 are in train alone
    assert len(images_of(site)) == len({place.content for place in fingerprints(site)}) == sum(PARTS.values())
    assert duplicates(fingerprints(site)) == ()
    (note,) = site.notes
    assert note.startswith("5 ids name several images each, which are told apart by their bytes")


def test_images_of_one_id_stay_together_where_all_is_split_anew(tmp_path):
    """They may be one picture, saved twice in other bytes."""
    table = [{**row, "image": row["image"]["bytes"], "id": n // 4} for n, row in enumerate(_rows(0, 24))]
    _parquet(tmp_path / "vqa.parquet", table)
    site = _load(tmp_path, columns={"id": "id"})
    splits = [{example.group for example in part} for part in site.splits().values()]
    assert sum(map(len, splits)) == len(set().union(*splits)) == 12
    assert len({example.image_id for example in _all(site)}) == 24


def test_copies_of_a_file_under_one_id_are_one_image(tmp_path):
    for number in range(8):
        (tmp_path / f"{number}.png").write_bytes(_png(number // 2))
    table = [{**row, "image": f"{n}.png", "id": n // 2} for n, row in enumerate(_rows(0, 4))]
    _parquet(tmp_path / "vqa.parquet", table)
    site = _load(tmp_path, columns={"id": "id"})
    assert sorted(example.image_id for example in _all(site)) == ["0", "0", "1", "1", "2", "2", "3", "3"]
    splits = [{example.image_id for example in part} for part in site.splits().values()]
    assert sum(map(len, splits)) == len(set().union(*splits))
    assert not any("name several images" in note for note in site.notes)


def test_ids_of_a_column_are_names_of_the_sites_own(tmp_path):
    table = [{**row, "image": row["image"]["bytes"], "scan": str(n // 2)} for n, row in enumerate(_rows(0, 6))]
    _parquet(tmp_path / "vqa.parquet", table)
    assert not _load(tmp_path).own_ids
    assert _load(tmp_path, columns={"id": "scan"}).own_ids


def test_both_halves_of_a_split_training_set_are_what_their_folders_say(tmp_path):
    """`train_test_split` calls both halves train, and `load_from_disk` goes by the folders."""
    _saved(tmp_path)
    for split, named in (("validation", "test"), ("test", "train")):
        file = tmp_path / split / "state.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "_split": named}))
    assert [len(part) for part in _load(tmp_path).splits().values()] == [2 * count for count in PARTS.values()]
    (tmp_path / "train").rename(tmp_path / "hospital-a")  # one of several sites that were saved together, by itself
    alone = _load(tmp_path / "hospital-a", validation_fraction=0.2, test_fraction=0.2)
    assert sum(len(part) for part in alone.splits().values()) == 2 * PARTS["train"]
