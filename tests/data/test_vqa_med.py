# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""VQA-Med 2019, 2020 and 2021 with the quirks of their files."""

from __future__ import annotations

from collections import Counter

import layouts
import pytest

from fedpeft.data import DataError, DataSettings, load

CHALLENGES = ["vqa_med_2019", "vqa_med_2020", "vqa_med_2021"]


def _load(root, dataset, **settings):
    return load(DataSettings(dataset=dataset, root=root, **settings))


def _images(part) -> set[str]:
    return {example.image_id for example in part}


def _sizes(site) -> list[int]:
    return [len(part) for part in site.splits().values()]


@pytest.mark.parametrize(
    ("dataset", "split", "sizes"),
    [
        ("vqa_med_2019", "published", [40, 12, 2]),
        ("vqa_med_2019", "paper", [52, 0, 2]),
        ("vqa_med_2020", "published", [12, 10, 10]),
        ("vqa_med_2020", "paper", [16, 0, 4]),
        ("vqa_med_2021", "published", [10, 0, 10]),
        ("vqa_med_2021", "paper", [16, 0, 4]),
    ],
)
def test_the_splits_have_the_sizes_of_the_layout_and_share_no_image(tmp_path, dataset, split, sizes):
    root = getattr(layouts, dataset)(tmp_path)
    site = _load(root, dataset, split=split, validation_fraction=0)
    assert _sizes(site) == sizes
    assert site.site == dataset.replace("_", "-")
    assert all(example.image.is_file() for part in site.splits().values() for example in part)
    assert not _images(site.train) & _images(site.test)
    assert site == _load(root, dataset, split=split, validation_fraction=0)


@pytest.mark.parametrize("dataset", CHALLENGES)
@pytest.mark.parametrize("split", ["image_disjoint", "paper"])
def test_what_is_cut_is_disjoint_by_image_and_follows_the_seed(tmp_path, dataset, split):
    root = getattr(layouts, dataset)(tmp_path)
    sites = [_load(root, dataset, split=split, seed=seed) for seed in (0, 0, 1)]
    parts = [_images(part) for part in sites[0].splits().values()]
    assert sum(map(len, parts)) == len(set().union(*parts))
    assert all(parts)
    assert sites[0] == sites[1]
    assert sites[0] != sites[2]


def test_2019_reads_crlf_categories_and_accepted_answers(tmp_path):
    site = _load(layouts.vqa_med_2019(tmp_path), "vqa_med_2019")
    kinds = Counter(example.question_type for example in site.train)
    assert kinds == {"modality": 10, "plane": 10, "organ": 10, "abnormality": 10}
    assert {example.answer for example in site.train} == {"cta - ct angiography", "axial", "lung", "yes"}
    assert {example.answer for example in site.train if example.closed} == {"yes"}
    assert (site.test[0].answer, site.test[0].alternatives) == ("ct", ("cta - ct angiography",))
    assert [example.question_type for example in site.test] == ["modality", "organ"]


def test_2019_does_with_one_kind_of_pair_file(tmp_path):
    both = _load(layouts.vqa_med_2019(tmp_path / "both"), "vqa_med_2019")
    by_category = _load(layouts.vqa_med_2019(tmp_path / "by", everything=False), "vqa_med_2019")
    everything = _load(layouts.vqa_med_2019(tmp_path / "all", by_category=False), "vqa_med_2019")
    assert both.train == by_category.train
    assert [example.question for example in both.train] == [example.question for example in everything.train]
    assert {example.question_type for example in everything.train} == {""}


@pytest.mark.parametrize("by_category", [True, False])
def test_2019_counts_pairs_without_an_answer(tmp_path, by_category):
    layouts.vqa_med_2019(tmp_path, by_category=by_category)
    pairs = next(tmp_path.rglob("All_QA_Pairs_train.txt"))
    for file, row in (
        (pairs, "synpic100|is there a mass?|"),
        (tmp_path / TEST_2019, "synpic300|plane|in what plane?|"),
    ):
        file.write_text(f"{file.read_text()}{row}\n")
    site = _load(tmp_path, "vqa_med_2019")
    assert _sizes(site) == [40, 12, 2]
    assert site.left_out == (("it lacks an image, a question or an answer", 2),)


def test_2019_reads_a_test_question_without_a_category(tmp_path):
    layouts.vqa_med_2019(tmp_path)
    layouts.lines(tmp_path / TEST_2019, ["synpic300||in what plane?|axial"])
    (example,) = _load(tmp_path, "vqa_med_2019").test
    assert (example.answer, example.question_type) == ("axial", "")


def test_2020_as_in_the_papers_needs_no_training_set(tmp_path):
    layouts.vqa_med_2020(tmp_path, train=False)
    assert _sizes(_load(tmp_path, "vqa_med_2020", split="paper")) == [14, 2, 4]
    with pytest.raises(DataError, match=r"file 'VQAnswering_2020_Train_QA_pairs\.txt' is missing under"):
        _load(tmp_path, "vqa_med_2020")


@pytest.mark.parametrize("dataset", ["vqa_med_2020", "vqa_med_2021"])
def test_reference_answers_find_their_questions_and_keep_all_alternatives(tmp_path, dataset):
    test = _load(getattr(layouts, dataset)(tmp_path), dataset).test
    assert test[0].answer == "avascular necrosis"
    assert test[0].alternatives == ("avn of the hip",)
    assert (test[1].answer, test[1].closed, test[1].alternatives) == ("no", True, ())
    assert [example.answer for example in test[2:4]] == ["finding 2", "finding 3"]
    assert [example.image_id for example in test] == sorted(example.image_id for example in test)


def test_2021_finds_its_images_with_or_without_a_folder_around_them(tmp_path):
    flat, nested = (layouts.vqa_med_2021(tmp_path / str(nested), nested=nested) for nested in (False, True))
    assert _load(flat, "vqa_med_2021").test == _load(nested, "vqa_med_2021").test


def test_an_archive_unpacked_into_a_folder_of_its_own_name_is_found(tmp_path):
    layouts.vqa_med_2020(tmp_path / "a")
    images = next((tmp_path / "a").rglob("Task1-2020-VQAnswering-Test-Images"))
    images.rename(images.with_name("inner"))
    images.mkdir()
    images.with_name("inner").rename(images / images.name)
    (tmp_path / "a" / "__MACOSX" / images.name).mkdir(parents=True)
    assert len(_load(tmp_path / "a", "vqa_med_2020").test) == 10


TEST_2019 = "VQAMed2019Test/VQAMed2019_Test_Questions_w_Ref_Answers.txt"
TEST_2021 = "Task1-VQA-2021-TestSet-w-GroundTruth/Task1-VQA-2021-TestSet-"


@pytest.mark.parametrize(
    ("dataset", "file", "rows", "sentence"),
    [
        (
            "vqa_med_2021",
            TEST_2021 + "ReferenceAnswers.txt",
            ["synpic800|no"],
            r"synpic801 is in only one of .*Questions",
        ),
        ("vqa_med_2021", TEST_2021 + "Questions.txt", ["synpic800|a?"] * 2, r"Questions\.txt, line 2: .*second time"),
        (
            "vqa_med_2021",
            TEST_2021 + "Questions.txt",
            ["synpic800"],
            r"Questions\.txt, line 1: 1 fields, expected id\|question",
        ),
        ("vqa_med_2021", TEST_2021 + "Questions.txt", ["", " "], r"Questions\.txt holds no record"),
        (
            "vqa_med_2019",
            TEST_2019,
            ["synpic999|plane|in what plane?|axial"],
            r"VQAMed2019_Test_Images.synpic999\.jpg, named in .*line 1, is missing; restore",
        ),
        (
            "vqa_med_2019",
            TEST_2019,
            ["synpic300|plane|in what plane?|axial|coronal"],
            r"line 1: 5 fields, expected id\|category\|question\|answer",
        ),
        (
            "vqa_med_2019",
            TEST_2019,
            ["synpic300|plane|in what plane?|#"],
            r"an empty test split; .* 1 left out: it lacks an image, a question or an answer",
        ),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_its_line(tmp_path, dataset, file, rows, sentence):
    getattr(layouts, dataset)(tmp_path)
    layouts.lines(tmp_path / file, rows)
    with pytest.raises(DataError, match=sentence):
        _load(tmp_path, dataset)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"synpic800|why?\nsynpic801|\xe9?\n", r"is not UTF-8 \(byte 25, in line 2\); save it as UTF-8"),
        ("synpic800|why?\n".encode("utf-16"), r"is not UTF-8 \(it seems to be UTF-16\); save it as UTF-8"),
        (b"synpic800|why?\nsynpic801|\0?\n", "holds a zero byte in line 2, which no text does; save it as UTF-8"),
    ],
    ids=["Latin-1", "UTF-16", "zero"],
)
def test_a_file_that_is_not_utf_8_is_named(content, sentence, tmp_path):
    layouts.vqa_med_2021(tmp_path)
    (tmp_path / (TEST_2021 + "Questions.txt")).write_bytes(content)
    with pytest.raises(DataError, match=rf"Questions\.txt {sentence}"):
        _load(tmp_path, "vqa_med_2021")


def test_2018_reads_tabs_and_leaves_the_papers_split_to_others(tmp_path):
    site = _load(layouts.vqa_med_2018(tmp_path), "vqa_med_2018")
    assert _sizes(site) == [10, 3, 4]
    assert (site.train[0].answer, site.train[0].closed, site.train[1].closed) == ("yes", True, False)
    assert site.train[1].answer == "lesion at tail | of pancreas"
    assert (site.site, site.left_out) == ("vqa-med-2018", ())
    with pytest.raises(DataError, match="split='paper' has no meaning for VQA-Med 2018"):
        _load(tmp_path, "vqa_med_2018", split="paper")


def test_2018_counts_test_questions_without_an_answer(tmp_path):
    layouts.vqa_med_2018(tmp_path, answered=False)
    with pytest.raises(DataError, match=r"VQAMed2018Test-QA\.csv has no answers; put .*'VQAMed2018Test-QA-Eval\.csv'"):
        _load(tmp_path, "vqa_med_2018")
    site = _load(tmp_path, "vqa_med_2018", split="image_disjoint")
    assert sum(_sizes(site)) == 13
    assert site.left_out == (("the question has no published answer", 4),)


def test_2018_names_a_line_with_too_few_fields(tmp_path):
    file = layouts.vqa_med_2018(tmp_path) / "VQAMed2018Train" / "VQAMed2018Train-QA.csv"
    file.write_text("1|synpic1|what?|that\n")
    with pytest.raises(DataError, match=r"line 1: 1 fields, expected number and a tab, id and a tab, question"):
        _load(tmp_path, "vqa_med_2018")


@pytest.mark.parametrize(
    ("printed", "accepted"),
    [
        ("Noncontrast (MRI)", ["noncontrast (mri)", "noncontrast mri", "noncontrast"]),
        ("(ill) lung", ["(ill) lung", "ill lung", "lung"]),
        ("CT#CTA - CT  angiography", ["ct", "cta - ct angiography"]),
        ("ct (a)#ct#()", ["ct (a)", "ct a", "ct"]),
    ],
)
def test_what_stands_in_brackets_may_be_left_out_of_an_answer_of_2019(tmp_path, printed, accepted):
    root = layouts.vqa_med_2019(tmp_path)
    file = root / "VQAMed2019Test" / "VQAMed2019_Test_Questions_w_Ref_Answers.txt"
    file.write_text(f"synpic300|modality|what kind of image is this?|{printed}\n")
    (example,) = _load(root, "vqa_med_2019").test
    assert [example.answer, *example.alternatives] == accepted
