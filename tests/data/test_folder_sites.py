# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A folder is recognized by what lies in it, and its sites are loaded with what follows from that."""

import shutil

import layouts
import pytest

from fedpeft.core.errors import FedpeftError
from fedpeft.core.metrics import ACCURACY, BALANCED_ACCURACY
from fedpeft.data import DataError, DataSettings, load
from fedpeft.data.folder_sites import ALONE, CLIENTS, _layouts, sites_in
from fedpeft.data.folders import MAX_IMAGES, list_folder
from fedpeft.data.registry import DATASETS

NAMES = {  # what a folder needs to be recognized; a slash at the end makes a folder
    "slake": ["Slake1.0/imgs/", "Slake1.0/train.json"],
    "vqa_rad": ["trainset.json", "testset.json", "images/"],
    "vqa_med_2018": [
        f"VQAMed2018{part}/VQAMed2018{part}-{rest}"
        for part in ("Train", "Valid")
        for rest in ("QA.csv", "images/1.jpg")
    ],
    "vqa_med_2019": ["ImageClef-2019-VQA-Med-Training/Train_images/1.jpg", "VQAMed2019Test/VQAMed2019_Test_Images/"],
    "vqa_med_2020": [
        "sets/Validation/VQAnswering_2020_Val_QA_Pairs.txt",
        "test/VQAMed2020-Task1-VQAnswering-Test-Questions.txt",
    ],
    "vqa_med_2021": [
        "VQA-Med-2021-VQAnswering-Task1-New-ValidationSet.txt",
        "Task1-VQA-2021-TestSet-w-GroundTruth/Task1-VQA-2021-TestSet-Questions.txt",
    ],
    "path_vqa": ["qas/train/train_qa.pkl", "images/train/1.jpg"],
    "omni_med_vqa": ["Images/", "QA_information/"],
    "manifest": ["manifest.jsonl", "scans/normal/1.png", "scans/ill/1.png"],
    "nih_cxr14": ["Data_Entry_2017.csv", "images_001/images/1.png", "images_002/images/2.png"],
    "open_i": ["ecgen-radiology/1.xml", "CXR1_1_IM-0001-3001.png"],
    "mimic_cxr_jpg": ["mimic-cxr-2.0.0-chexpert.csv.gz", "files/p10/p10000032/s50414267/1.jpg"],
    "fed_isic2019": ["ISIC_2019_Training_Input_preprocessed/1.jpg", "train_test_split"],
    "ham10000": ["HAM10000_images_part_1/1.jpg", "HAM10000_images_part_2/2.jpg", "HAM10000_metadata.csv"],
    "caltech101": ["101_ObjectCategories/ant/1.jpg", "101_ObjectCategories/bass/1.jpg"],
    "flowers102": ["jpg/image_00001.jpg", "imagelabels.mat", "setid.mat"],
    "pathmnist": ["pathmnist_64.npz"],
    "class_folders": ["normal/1.png", "ill/1.png"],
}
NOT_CLASSES = [
    ["1.png", "2.png"],
    ["images/1.png"],
    ["train/1.png", "test/1.png"],
    ["train/normal/1.png"],
    ["a/normal/1.png", "b/normal/1.png"],
    ["normal/images/1.png", "normal/masks/1.png", "ill/images/1.png", "ill/masks/1.png"],
    ["images/1.png", "masks/1.png"],
    ["north/manifest.csv", "north/1.png", "south/manifest.jsonl", "south/1.png"],
    ["clinics/north/manifest.csv", "clinics/north/1.png", "others/south/manifest.csv", "others/south/1.png"],
    ["notes.txt"],
    [],
]


def make(root, names):
    root.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = root / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.touch()
    return root


def classes(root, *, each=10, names=("normal", "viral_pneumonia"), inside=""):
    for name in names:
        for number in range(each):
            layouts.picture(root / name / inside.format(number // 2) / f"{number}.png")
    return root


def manifest(root, *, images=20, inside="scans/"):
    rows = ["image,question,answer"]
    for number in range(images):
        layouts.picture(root / inside / f"{number}.png")
        rows.append(f"{inside}{number}.png,Is it broken?,{('yes', 'no')[number % 2]}")
    layouts.lines(root / "manifest.csv", rows)
    return root


@pytest.mark.parametrize("name", NAMES)
def test_a_layout_is_recognized_by_its_names(name, tmp_path):
    assert _layouts(list_folder(make(tmp_path, NAMES[name]))) == (name,)


def test_every_data_set_that_is_recognized_declares_its_layout():
    recognized = {name for name in DATASETS.own_names() if DATASETS.get(name).recognized}
    assert recognized >= set(NAMES)
    assert all(DATASETS.get(name).layout and DATASETS.get(name).folders for name in recognized)


@pytest.mark.parametrize("names", NOT_CLASSES, ids=" ".join)
def test_what_has_no_classes_is_not_taken_for_it(names, tmp_path):
    assert _layouts(list_folder(make(tmp_path, names))) == ()


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"class_folders"}))
def test_a_folder_above_is_not_taken_for_the_data_set(name, tmp_path):
    make(tmp_path / "one", NAMES[name])
    make(tmp_path / "other", ["notes.txt"])
    seen = list_folder(tmp_path)
    assert _layouts(seen) == ()
    assert _layouts(seen.folders["one"]) == (name,)


@pytest.mark.parametrize(
    ("name", "write"),
    [("slake", layouts.slake), ("vqa_med_2018", layouts.vqa_med_2018), ("vqa_med_2019", layouts.vqa_med_2019)],
)
def test_an_owners_layout_is_loaded_and_measured_as_declared(name, write, tmp_path):
    found = sites_in(write(tmp_path / "data"))
    assert found.section["dataset"] == name
    assert {site.metric for site in found.data} == {DATASETS.get(name).metric}
    assert found.notes[0] == ALONE


def test_a_folder_of_images_around_the_patients_of_each_class_is_passed_over(tmp_path):
    for name in ("normal", "sick"):
        classes(tmp_path / name, names=["images"], inside=f"{name[0]}{{}}", each=40)
    found = sites_in(tmp_path)
    assert list(found.of_sites) == ["client-1", "client-2"]
    assert {e.answer for site in found.data for e in site.train} == {"normal", "sick"}
    assert len({e.group for site in found.data for split in site.splits().values() for e in split}) == 40


def test_a_folder_of_images_around_the_classes_of_each_site_makes_none(tmp_path):
    for name in ("north", "south"):
        classes(tmp_path / name / "images", each=20)
    assert list(sites_in(tmp_path).of_sites) == ["north", "south"]


def test_class_folders_are_shared_out_to_clients(tmp_path):
    classes(tmp_path, each=40)
    (tmp_path / "readme.txt").touch()
    found = sites_in(tmp_path)
    assert list(found.of_sites) == [f"client-{number}" for number in range(1, CLIENTS + 1)]
    assert found.section["root"] == str(tmp_path)
    assert {site.metric for site in found.data} == {BALANCED_ACCURACY}
    images = [{e.image_id for split in site.splits().values() for e in split} for site in found.data]
    assert sum(map(len, images)) == len(set().union(*images)) == 80
    assert dict(found.data[0].left_out) == {"it is in no class folder": 1, "it is another client's": 60}
    assert {e.answer for site in found.data for e in site.train} == {"normal", "viral pneumonia"}


def test_files_in_class_folders_that_are_not_read_are_counted_with_their_endings(tmp_path):
    classes(tmp_path, each=10)
    make(tmp_path / "normal", ["a.avif", "b.avif", "c.DCM", "scan", "d.jpg.bak"])
    (site,) = sites_in(tmp_path).data
    assert dict(site.left_out) == {"its ending is that of no image that is read (.avif, .dcm, .bak, no ending)": 5}


@pytest.mark.parametrize(
    "names",
    [("training", "evaluation"), ("train_set", "test_set"), ("train", "test", "extra"), ("my-train", "val2", "dev")],
)
def test_folders_that_are_named_like_splits_are_neither_sites_nor_classes(names, tmp_path):
    for name in names:
        classes(tmp_path / name)
    with pytest.raises(DataError, match=r"named like splits, .*, which are no sites: give one site"):
        sites_in(tmp_path)
    with pytest.raises(DataError, match="folders of splits and others beside them"):
        load(DataSettings(dataset="class_folders", root=tmp_path, site="north"))


def test_class_folders_with_a_split_keep_it(tmp_path):
    for split, count in (("Training", 10), ("val", 4), ("Testing", 6)):
        classes(tmp_path / split, each=count)
    site = load(DataSettings(dataset="class_folders", root=tmp_path, site="north"))
    assert [len(part) for part in site.splits().values()] == [20, 8, 12]
    assert all(example.image_id.startswith("Testing/") for example in site.test)


def test_folders_that_differ_by_case_or_a_blank_alone_are_said(tmp_path):
    classes(tmp_path)
    (tmp_path / "normal").rename(tmp_path / "Viral Pneumonia")
    (note,) = load(DataSettings(dataset="class_folders", root=tmp_path, site="north")).notes
    assert note.startswith("The names of 2 folders of classes differ from another one's by letter case, _ or blanks")


def test_folders_in_class_folders_are_patients(tmp_path):
    classes(tmp_path, each=20, inside="patient-{}")
    for folder in (tmp_path / "viral_pneumonia").iterdir():  # no patient is in two classes
        folder.rename(folder.with_name(f"other-{folder.name}"))
    (site,) = sites_in(tmp_path).data
    groups = [{example.group for example in part} for part in site.splits().values()]
    assert sum(map(len, groups)) == len(set().union(*groups)) == 20
    (note,) = site.notes
    assert note.startswith("The folders in those of the classes count as 20 patients, 0 of them in two classes or more")


def test_series_in_a_patients_folder_stay_with_the_patient(tmp_path):
    for name in ("normal", "ill"):
        for patient in range(12):
            for series in ("axial", "coronal"):
                layouts.picture(tmp_path / name / f"{name}-{patient}" / series / "1.png")
    site = load(DataSettings(dataset="class_folders", root=tmp_path))
    groups = [{example.group for example in part} for part in site.splits().values()]
    assert sum(map(len, groups)) == len(set().union(*groups)) == 24
    assert sum(map(len, site.splits().values())) == 48


@pytest.mark.parametrize("above", ["images/", "{year}/", "images/{year}/"])
def test_folders_around_those_of_patients_are_no_patients(above, tmp_path):
    for name in ("normal", "ill"):
        for patient in range(12):
            inside = f"{above.format(year=2018 + patient % 2)}{name}-{patient}"
            for number in range(2):
                layouts.picture(tmp_path / name / inside / f"{number}.png")
    site = load(DataSettings(dataset="class_folders", root=tmp_path))
    assert len({example.group for part in site.splits().values() for example in part}) == 24


def test_many_series_of_patients_in_several_classes_are_no_years(tmp_path):
    for name in ("normal", "ill"):
        for patient in range(4):
            for series in range(9):
                layouts.picture(tmp_path / name / f"p{patient}" / f"series-{series}" / "1.png")
    site = load(DataSettings(dataset="class_folders", root=tmp_path))
    assert {example.group for part in site.splits().values() for example in part} == {"p0", "p1", "p2", "p3"}


@pytest.mark.slow
@pytest.mark.parametrize(("inside", "opened"), [("", 30), ("series", 100)])
def test_of_more_folders_than_are_opened_every_class_and_site_has_some(inside, opened, tmp_path, monkeypatch):
    monkeypatch.setattr("fedpeft.data.folders.MAX_SEEN", opened)
    for site in ("north", "south"):
        for name in ("normal", "ill"):
            for patient in range(20):
                layouts.picture(tmp_path / site / name / f"{site}-{name}-{patient}" / inside / "1.png")
    seen = sites_in(tmp_path)
    assert [site.site for site in seen.data] == ["north", "south"]
    assert all({example.answer for example in site.train} == {"normal", "ill"} for site in seen.data)


@pytest.mark.parametrize("split", ["published", "image_disjoint"])
def test_patients_in_two_splits_are_named_where_the_splits_stay(tmp_path, split):
    for part, count in (("train", 20), ("test", 20)):
        classes(tmp_path / part, each=count, inside="patient-{}")
    site = load(DataSettings(dataset="class_folders", root=tmp_path, site="north", split=split))
    in_two = {example.group for example in site.train} & {example.group for example in site.test}
    stay = split == "published"
    assert bool(in_two) == stay == any(" patients are in more than one split" in note for note in site.notes)
    assert any("the images of each stay together" in note for note in site.notes) != stay


@pytest.mark.slow
@pytest.mark.parametrize("above", ["", "train/"])
def test_a_patient_in_two_classes_is_one_patient_where_the_folders_are_chosen_to_be_classes(above, tmp_path):
    classes(tmp_path / above, each=40, inside="p{}")
    taken = sites_in(tmp_path / above)
    assert "the folders in it (p0, p1, p10, p11, p12, ...) are its classes; if they are patients" in taken.notes[0]
    (site,) = sites_in(tmp_path, {"dataset": "class_folders"}).data
    groups = [{example.group for example in part} for part in site.splits().values()]
    assert sum(map(len, groups)) == len(set().union(*groups)) == 20
    assert {example.answer for example in site.train} == {"normal", "viral pneumonia"}
    assert "20 patients, 20 of them in two classes" in site.notes[0]


def test_a_site_without_a_folder_gets_no_other_sites_images(tmp_path, monkeypatch):
    classes(tmp_path / "north")
    monkeypatch.setenv("FEDPEFT_DATA", str(tmp_path))
    assert load(DataSettings(dataset="class_folders", site="north")).train
    with pytest.raises(DataError, match="holds no folder for 'class_folders'"):
        load(DataSettings(dataset="class_folders", site="nort"))


def test_sub_folders_with_the_same_classes_are_sites(tmp_path):
    for name in ("north", "south clinic", "server", "st. mary v1.0"):
        classes(tmp_path / name)
    make(tmp_path / "notes", ["a.txt"])
    found = sites_in(tmp_path)
    assert list(found.of_sites) == ["north", "server-site", "south-clinic", "st-mary-v1-0"]
    assert found.section["sites"]["south-clinic"] == {"root": str(tmp_path / "south clinic")}
    assert "Not read, in no known layout: notes/." in found.notes


@pytest.mark.parametrize("name", ["local", "startup", "simulator_server"])
def test_a_site_named_as_a_folder_of_every_workspace_gets_another_name(tmp_path, name):
    for folder in ("north", name):
        classes(tmp_path / folder)
    assert set(sites_in(tmp_path).of_sites) == {"north", f"{name}-site"}


def test_a_site_with_one_of_the_others_classes_is_a_site_of_one_class(tmp_path):
    for name in ("north", "south", "west"):
        classes(tmp_path / name)
    for part in ("south/normal", "west"):
        shutil.rmtree(tmp_path / part)
    make(tmp_path / "west", ["attic/1.png"])
    found = sites_in(tmp_path)
    assert list(found.of_sites) == ["north", "south"]
    assert {example.answer for example in found.data[1].train} == {"viral pneumonia"}
    assert "Not read, in no known layout: west/." in found.notes


def test_the_classes_of_sites_with_splits_are_those_in_the_splits(tmp_path):
    for name in ("north", "south", "west"):
        for split in ("train", "test"):
            classes(tmp_path / name / split)
    for split in ("train", "test"):
        shutil.rmtree(tmp_path / "south" / split / "normal")
        shutil.rmtree(tmp_path / "west" / split)
        make(tmp_path / "west", [f"{split}/attic/1.png"])
    found = sites_in(tmp_path)
    assert list(found.of_sites) == ["north", "south"]
    assert "Not read, in no known layout: west/." in found.notes


def test_folders_of_splits_are_no_classes_however_they_are_spelled(tmp_path):
    for site in ("north", "south"):
        for split in ("Train", "TEST"):
            classes(tmp_path / site / split)
    assert not any("are its classes" in note for note in sites_in(tmp_path).notes)


@pytest.mark.parametrize("inside", ["scans/", ""])
def test_sub_folders_with_manifests_are_sites_and_may_lie_beside_other_kinds(inside, tmp_path):
    for name in ("north", "south"):
        manifest(tmp_path / name, inside=inside)
    found = sites_in(tmp_path)
    assert found.section["dataset"] == "manifest"
    assert [site.metric for site in found.data] == [ACCURACY] * 2
    classes(tmp_path / "west")
    mixed = sites_in(tmp_path)
    assert "dataset" not in mixed.common
    assert "Each folder is a site, and the folders in it (normal, viral_pneumonia) are its classes" in mixed.notes[0]
    assert mixed.of_sites["west"]["dataset"] == "class_folders"
    assert [site.metric for site in mixed.data] == [ACCURACY, ACCURACY, BALANCED_ACCURACY]


def test_a_folder_alone_in_a_folder_is_what_is_meant(tmp_path):
    manifest(tmp_path / "archive" / "unpacked")
    found = sites_in(tmp_path)
    assert found.common["root"] == str(tmp_path / "archive" / "unpacked")
    assert list(found.of_sites) == ["unpacked"]


def test_a_split_that_shares_images_is_made_again(tmp_path):
    rows = ["image,question,answer,split"]
    for number in range(20):
        layouts.picture(tmp_path / f"{number}.png")
        rows += [f"{number}.png,Is it broken?,yes,train", f"{number}.png,Is it old?,no,{('train', 'test')[number % 2]}"]
    layouts.lines(tmp_path / "manifest.csv", rows)
    found = sites_in(tmp_path)
    assert found.section["split"] == "image_disjoint"
    assert any("images or patients are in two splits" in note for note in found.notes)
    (site,) = found.data
    assert not {e.image_id for e in site.train} & {e.image_id for e in site.test}
    (kept,) = sites_in(tmp_path, {"split": "published"}).data
    assert {e.image_id for e in kept.train} & {e.image_id for e in kept.test}


@pytest.mark.parametrize("pair", [("train", "validation"), ("validation", "test"), ("train", "test")])
def test_an_image_in_any_two_splits_has_all_split_again(pair, tmp_path):
    rows = ["image,question,answer,split", f"20.png,Is it?,yes,{pair[0]}", f"20.png,Where?,left,{pair[1]}"]
    for number in range(21):
        layouts.picture(tmp_path / f"{number}.png")
    rows += [f"{number}.png,Is it?,yes,{('train', 'validation', 'test')[number % 3]}" for number in range(20)]
    layouts.lines(tmp_path / "manifest.csv", rows)
    assert sites_in(tmp_path).section["split"] == "image_disjoint"


def test_folders_of_splits_are_no_sites(tmp_path):
    for name in ("train", "test"):
        manifest(tmp_path / name)
    with pytest.raises(DataError, match="folders named like splits, test, train, which are no sites"):
        sites_in(tmp_path)


@pytest.mark.parametrize("value", ["x", 0, -1, None, [1], 10**9])
def test_a_wrong_number_of_parts_is_refused(value, tmp_path):
    with pytest.raises(FedpeftError, match="parts"):
        sites_in(classes(tmp_path), {"parts": value})


@pytest.mark.parametrize("chosen", [{"partition": "natural"}, {"parts": 1}, {"partition": "dirichlet", "parts": 1}])
def test_one_site_may_be_chosen(chosen, tmp_path):
    found = sites_in(classes(tmp_path, each=40), chosen)
    (site,) = found.data
    assert sum(map(len, site.splits().values())) == 80
    assert found.notes == (ALONE,)


@pytest.mark.parametrize(
    "setting", ["seed", "validation_fraction", "test_fraction", "alpha", "exclude", "root", "site"]
)
def test_a_setting_of_the_wrong_kind_is_refused(setting, tmp_path):
    with pytest.raises(FedpeftError, match=setting):
        sites_in(classes(tmp_path), {setting: {"a": 1}})


def test_too_few_images_for_a_validation_split_go_without(tmp_path):
    manifest(tmp_path, images=2)
    found = sites_in(tmp_path)
    assert found.section["validation_fraction"] == 0
    assert [len(part) for part in found.data[0].splits().values()] == [1, 0, 1]


def test_a_small_site_and_one_with_shared_images_leave_the_others_their_splits(tmp_path):
    manifest(tmp_path / "north", images=20)
    alone = sites_in(tmp_path).data[0].splits()
    for site, pairs in (("few", [("1", "train"), ("2", "train"), ("3", "test")]), ("two", [("1", "train")] * 2)):
        rows = [f"{name}.png,Is it?,yes,{split},{'p' if site == 'few' else ''}" for name, split in pairs]
        if site == "two":
            rows = [
                f"{n}.png,Is {word}?,yes,{split},"
                for n in range(9)
                for word, split in (("it", "train"), ("he", "test"))
            ]
        for number in range(9):
            layouts.picture(tmp_path / site / f"{number}.png")
        rows = [row.replace(",test,p", ",test,q") for row in rows]
        layouts.lines(tmp_path / site / "manifest.csv", ["image,question,answer,split,patient", *rows])
    found = sites_in(tmp_path)
    data = dict(zip(found.of_sites, found.data, strict=True))
    assert found.of_sites == {
        "few": {"root": str(tmp_path / "few"), "validation_fraction": 0},
        "north": {"root": str(tmp_path / "north")},
        "two": {"root": str(tmp_path / "two"), "split": "image_disjoint"},
    }
    assert data["north"].splits() == alone
    assert [len(part) for part in data["few"].splits().values()] == [2, 0, 1]
    assert "Too few images for a validation split, so that there is none: few." in found.notes
    assert "9 images or patients are in two splits: everything is split again by image at two." in found.notes


def test_a_folder_of_classes_with_two_patients_has_no_validation_split(tmp_path):
    for place in ("benign/p1", "malignant/p2"):
        for number in range(3):
            layouts.picture(tmp_path / place / f"{number}.png")
    found = sites_in(tmp_path)
    assert [len(part) for part in found.data[0].splits().values()] == [3, 0, 3]
    assert any(note.startswith("Too few images for a validation split") for note in found.notes)


def test_a_site_that_cannot_be_split_at_all_is_named(tmp_path):
    manifest(tmp_path / "north", images=20)
    manifest(tmp_path / "few", images=1)
    with pytest.raises(DataError, match="Site 'few': 1 images are too few for parts"):
        sites_in(tmp_path)


def test_chosen_settings_hold_for_all_sites(tmp_path):
    found = sites_in(classes(tmp_path, each=20), {"partition": "dirichlet", "alpha": 100.0, "parts": 2, "seed": 3})
    assert {key: found.section[key] for key in ("partition", "parts", "seed")} == {
        "partition": "dirichlet",
        "parts": 2,
        "seed": 3,
    }


def test_settings_of_one_site_leave_the_others_as_they_are(tmp_path):
    for site in ("north", "south"):
        manifest(tmp_path / site, images=10)
    plain = sites_in(tmp_path)
    own = {"exclude": ["scans/0.png"], "validation_fraction": 0}
    found = sites_in(tmp_path, {"sites": {"south": own}})
    (_, before), (north, south) = plain.data, found.data
    assert north.splits() == plain.data[0].splits()
    assert (sum(map(len, before.splits().values())), sum(map(len, south.splits().values()))) == (10, 9)
    assert (len(before.validation) > 0, len(south.validation)) == (True, 0)
    assert found.of_sites["south"] == plain.of_sites["south"] | own


def test_a_validation_split_that_one_site_is_given_is_not_taken_away(tmp_path):
    for site, images in (("north", 20), ("few", 2)):
        manifest(tmp_path / site, images=images)
    assert sites_in(tmp_path).of_sites["few"]["validation_fraction"] == 0
    with pytest.raises(DataError, match="images are too few for parts"):
        sites_in(tmp_path, {"sites": {"few": {"validation_fraction": 0.2}}})


def test_settings_of_a_site_that_is_not_there_are_refused_by_its_name(tmp_path):
    for site in ("north", "south"):
        manifest(tmp_path / site)
    with pytest.raises(DataError, match=r"data.sites names 'nort', which .* does not hold: did you mean 'north'"):
        sites_in(tmp_path, {"sites": {"nort": {"validation_fraction": 0}}})


def test_a_data_set_may_be_chosen_and_is_then_not_looked_for(tmp_path):
    with pytest.raises(DataError, match=r"(?s)neither 'manifest\.csv' nor .*Expected:.*There is ill/ \(0\.png"):
        sites_in(classes(tmp_path, names=("ill", "well")), {"dataset": "manifest"})
    with pytest.raises(DataError, match="dataset='nothing' is not a known data set"):
        sites_in(tmp_path, {"dataset": "nothing"})


def test_what_is_wrong_in_recognized_data_is_said(tmp_path):
    manifest(tmp_path / "north")
    manifest(tmp_path / "south")
    (tmp_path / "south" / "scans" / "3.png").unlink()
    with pytest.raises(DataError, match=r"south/scans/3\.png, named in .*, is missing"):
        sites_in(tmp_path)


def test_an_unknown_layout_is_answered_with_the_expected_ones_and_what_is_there(tmp_path):
    make(tmp_path, [f"scan-{number}.dcm" for number in range(30)] + [f"more/{number}.txt" for number in range(9)])
    with pytest.raises(DataError) as refused:
        sites_in(tmp_path)
    message = str(refused.value)
    for expected in ("manifest.csv     image,question,answer", "<class>/*.png", "data/train-00000", "VQA-RAD"):
        assert expected in message
    assert message.endswith(
        "more/ (0.txt, 1.txt, 2.txt, ...), scan-0.dcm, scan-1.dcm, scan-10.dcm, scan-11.dcm, "
        "scan-12.dcm, scan-13.dcm, scan-14.dcm, ...."
    )


def test_a_data_set_in_another_layout_is_answered_with_its_own(tmp_path):
    make(tmp_path, ["questions.json", "pictures/1.jpg"])
    with pytest.raises(DataError, match=r"(?s)unpack VQA-RAD there\. Expected:\n    VQA_RAD Dataset.*There is pict"):
        load(DataSettings(dataset="vqa_rad", root=tmp_path))


def test_of_many_images_the_first_are_looked_at_and_hidden_files_not_at_all(tmp_path):
    make(tmp_path, [f"a/{number:03}.png" for number in range(100)] + [".git/config", "__MACOSX/a", "a/list.txt"])
    seen = list_folder(tmp_path)
    assert seen.images == tuple(f"/a/{number:03}.png" for number in range(MAX_IMAGES))
    assert seen.names == ("/a/", "/a/list.txt")
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(DataError, match="is not a folder; correct the path"):
        list_folder(tmp_path / "a")
