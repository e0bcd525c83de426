# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Images with classes or labels in the layouts of their owners, with their quirks; nothing is lost without a count."""

import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from fedpeft import data
from fedpeft.core.errors import DataError
from fedpeft.core.metrics import BALANCED_ACCURACY, MACRO_F1
from fedpeft.data.medmnist import SETS
from fedpeft.data.settings import DataSettings
from fedpeft.job.composing import PACKAGED as CONFIGS
from fedpeft.job.composing import compose
from fedpeft.job.federation import site_data


def real(name):
    """Skip where the real data are not there."""
    here = Path(os.environ.get("FEDPEFT_DATA") or "absent", name).is_dir()
    return pytest.mark.skipif(not here, reason=f"FEDPEFT_DATA does not point to a folder that holds {name}")


CUTS = {"validation_fraction": 0.2, "test_fraction": 0.2}


def picture(path, mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (8, 6)).save(path)


def load(dataset, root, **values):
    return data.load(DataSettings(dataset=dataset, root=root, **{**CUTS, **values}))


def counted(site):
    """Examples, and those left out."""
    return sum(map(len, site.splits().values())), dict(site.left_out)


@pytest.fixture
def nih(tmp_path):
    header = (
        "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position,"
        "OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y]"
    )
    findings = ("Cardiomegaly|Emphysema", "No Finding", "Pleural_Thickening", "Hernia")
    rows = [f"{n:08}_{k:03}.png,{findings[n % 4]},{k},{n},50,F,PA,10,10,0.1,0.1" for n in range(20) for k in (0, 1)]
    rows.append("00000099_000.png,Mass,0,99,50,F,PA,10,10,0.1,0.1")
    (tmp_path / "Data_Entry_2017_v2020.csv").write_bytes("\r\n".join([header, *rows, ""]).encode())
    for number, row in enumerate(rows[:-1]):
        folder = tmp_path / f"images_{1 + number % 2:03}" / "images"
        picture(folder / row.split(",")[0], "RGBA" if number == 3 else "L")
    return tmp_path


def test_nih_is_split_by_patient_and_counts_what_is_not_there(nih):
    site = load("nih_cxr14", nih)
    assert counted(site) == (40, {"its image is not there": 1})
    assert site.metric == MACRO_F1
    assert len(site.labels) == 14
    labels = {example.image_id: example.labels for split in site.splits().values() for example in split}
    assert labels["00000004_000"] == ("cardiomegaly", "emphysema")
    assert labels["00000001_000"] == ()
    assert labels["00000002_001"] == ("pleural thickening",)
    groups = [{example.group for example in split} for split in site.splits().values()]
    assert sum(map(len, groups)) == 20


def test_nih_with_the_owners_lists_has_their_split(nih):
    names = [f"{n:08}_{k:03}.png" for n in range(20) for k in (0, 1)]
    (nih / "train_val_list.txt").write_text("\n".join(names[:30]) + "\n")
    (nih / "test_list.txt").write_text("\r\n".join(names[30:38]))
    site = load("nih_cxr14", nih)
    assert {e.image_id for e in site.test} == {Path(name).stem for name in names[30:38]}
    assert counted(site) == (38, {"its image is not there": 1, "it is in neither list": 2})


def test_nih_with_one_of_the_owners_lists_is_not_split_again(nih):
    (nih / "test_list.txt").write_text("00000001_000.png\n")
    with pytest.raises(DataError, match=r"holds only 'test_list.txt', of .*; put both there, or neither"):
        load("nih_cxr14", nih)


def test_nih_lists_that_overlap_and_a_table_that_repeats_are_refused(nih):
    (nih / "train_val_list.txt").write_bytes(b"\xef\xbb\xbf00000000_000.png\n00000001_000.png\n")
    (nih / "test_list.txt").write_text("00000001_000.png\n")
    with pytest.raises(DataError, match=r"both name '00000001_000\.png'"):
        load("nih_cxr14", nih)
    (nih / "test_list.txt").write_text("00000002_000.png\n")
    assert [e.image_id for e in load("nih_cxr14", nih, validation_fraction=0).train] == ["00000000_000", "00000001_000"]
    table = nih / "Data_Entry_2017_v2020.csv"
    lines = table.read_text().splitlines()
    table.write_text("\n".join([*lines, lines[1]]))
    with pytest.raises(DataError, match=r"names the image '00000000_000\.png' twice"):
        load("nih_cxr14", nih)


def test_nih_is_shared_out_to_clients(nih):
    sites = [load("nih_cxr14", nih, site=f"client-{n}", partition="dirichlet", parts=2, alpha=5.0) for n in (1, 2)]
    patients = [{e.group for split in site.splits().values() for e in split} for site in sites]
    assert len(patients[0] | patients[1]) == 20
    assert not patients[0] & patients[1]


def test_an_unknown_finding_is_refused_without_it(nih):
    table = nih / "Data_Entry_2017_v2020.csv"
    table.write_text(table.read_text().replace("Hernia", "Fracture"))
    with pytest.raises(DataError, match=r"line \d+: a finding is none of the owners' 14") as refused:
        load("nih_cxr14", nih)
    assert "Fracture" not in str(refused.value)


@pytest.fixture
def isic(tmp_path):
    rows = ["image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK,target,center,fold,fold2"]
    for n in range(48):
        one_hot = ",".join("1.0" if k == n % 8 else "0.0" for k in range(9))
        fold = "test" if n % 6 == 0 else "train"
        rows.append(f"ISIC_{n:07},{one_hot},{n % 8},{n // 8},{fold},{fold}_{n // 8}")
        if n != 5:
            picture(tmp_path / "ISIC_2019_Training_Input_preprocessed" / f"ISIC_{n:07}.jpg")
    (tmp_path / "train_test_split").write_text("\n".join(rows) + "\n")
    return tmp_path


def test_fed_isic_has_a_site_for_each_center(isic):
    sites = [load("fed_isic2019", isic, site=name) for name in ("bcn", "vidir-molemax", "vienna-dias")]
    others = {"it is another client's": 40}
    missing = {"its image is not there": 1}
    assert [counted(site) for site in sites] == [(7, others | missing), (8, others), (8, others)]
    assert sites[1].metric == BALANCED_ACCURACY
    assert sites[1].test[0].answer in data.registry.DATASETS.get("fed_isic2019").answers()
    assert counted(load("fed_isic2019", isic)) == (47, {"its image is not there": 1})
    with pytest.raises(
        DataError, match="site='harvard' is not a center of Fed-ISIC2019; choose one of fed-isic2019, bcn"
    ):
        load("fed_isic2019", isic, site="harvard")


def test_fed_isic_keeps_a_lesion_together_where_the_table_says_which_it_is(isic):
    lines = ["image,age_approx,anatom_site_general,lesion_id,sex"]
    lines += [f"ISIC_{n:07},40,torso,L{n // 4},male" for n in range(40)] + ["ISIC_0000041,40,torso,,male"]
    (isic / "ISIC_2019_Training_Metadata.csv").write_text("\n".join(lines) + "\n")
    site = load("fed_isic2019", isic, split="image_disjoint")
    lesions = [{e.unit for e in split} for split in site.splits().values()]
    assert sum(map(len, lesions)) == len(set().union(*lesions))
    assert any(e.group == "lesion L3" for split in site.splits().values() for e in split)
    alone = "8 of 47 images have no lesion in the owners' table, and are divided as different lesions."
    assert site.notes == (alone,)
    part = load("fed_isic2019", isic, partition="iid", parts=2, site="client-1")
    assert part.notes[-1].endswith("in the owners' table, and are divided as different lesions.")


def test_fed_isic_says_where_lesions_are_not_kept_apart(isic):
    published, divided = load("fed_isic2019", isic), load("fed_isic2019", isic, split="image_disjoint")
    assert published.notes == (
        "Which lesions are in more than one split is not known, because ISIC_2019_Training_Metadata.csv is missing: "
        "put the owners' table there.",
    )
    assert divided.notes == (
        "47 of 47 images have no known lesion, because ISIC_2019_Training_Metadata.csv is missing, and are divided as "
        "different lesions: put the owners' table there.",
    )
    rows = [f"ISIC_{n:07},L{n // 4}" for n in range(48)]
    (isic / "ISIC_2019_Training_Metadata.csv").write_text("\n".join(["image,lesion_id", *rows]) + "\n")
    site = load("fed_isic2019", isic)
    groups = Counter(group for part in site.splits().values() for group in {example.group for example in part})
    common = sum(splits > 1 for splits in groups.values())
    assert site.notes == (
        f"{common} lesions are in more than one split, which flatters the figures; data.split=image_disjoint splits "
        f"again.",
    )
    assert common
    assert load("fed_isic2019", isic, split="image_disjoint").notes == ()


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [(10, "8", "target is '8', it must be from 0 to 7"), (11, "6", "center is '6'"), (12, "val", "fold is 'val'")],
)
def test_a_value_that_is_not_flambys_is_refused(isic, column, value, message):
    table = isic / "train_test_split"
    lines = table.read_text().splitlines()
    fields = lines[3].split(",")
    fields[column] = value
    table.write_text("\n".join([*lines[:3], ",".join(fields), *lines[4:]]))
    with pytest.raises(DataError, match=message):
        load("fed_isic2019", isic, **({"site": "bcn"} if column == 11 else {}))


@pytest.fixture
def ham(tmp_path):
    kinds = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
    lines = ["lesion_id,image_id,dx,dx_type,age,sex,localization,dataset"]
    for n in range(28):
        lines.append(f"HAM_{n // 2:07},ISIC_{n:07},{kinds[n // 2 % 7]},histo,50.0,male,back,vidir_modern")
        picture(tmp_path / f"HAM10000_images_part_{1 + n // 14}" / f"ISIC_{n:07}.jpg")
    picture(tmp_path / "HAM10000_images_part_1" / "ISIC_9999999.jpg")
    (tmp_path / "HAM10000_metadata").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_ham10000_is_split_by_lesion(ham):
    site = load("ham10000", ham)
    assert counted(site) == (28, {"the table does not name the image": 1})
    lesions = [{e.group for e in split} for split in site.splits().values()]
    assert sum(map(len, lesions)) == 14
    assert site.metric == BALANCED_ACCURACY
    table = (ham / "HAM10000_metadata").rename(ham / "HAM10000_metadata.csv")
    assert load("ham10000", ham) == site
    cells = [line.split(",") for line in table.read_text().splitlines()]
    table.unlink()
    quoted = "\n".join("\t".join(f'"{cell}"' for cell in row) for row in cells)
    for name in ("HAM10000_metadata.tab", "HAM10000_metadata"):  # as Dataverse serves it
        table = ham / name
        table.write_text(quoted)
        assert load("ham10000", ham) == site
        table.unlink()


def test_ham10000_names_a_missing_image_and_an_unknown_class(ham):
    table = ham / "HAM10000_metadata"
    table.write_text(table.read_text().replace(",vasc,", ",scar,", 1))
    with pytest.raises(DataError, match="dx is 'scar', it must be one of akiec, bcc"):
        load("ham10000", ham)
    shutil.rmtree(ham / "HAM10000_images_part_2")
    table.write_text(table.read_text().replace(",scar,", ",vasc,", 1))
    with pytest.raises(DataError, match=r"ISIC_0000014.jpg, named in .*, line 16, is missing"):
        load("ham10000", ham)


def test_caltech_drops_the_background(tmp_path):
    root = tmp_path / "caltech101" / "101_ObjectCategories"
    for name in ("accordion", "Faces_easy", "BACKGROUND_Google"):
        for number in range(1, 6):
            picture(root / name / f"image_{number:04}.jpg")
    site = load("caltech101", tmp_path)
    assert counted(site) == (10, {"the folder BACKGROUND_Google is no class": 5})
    answers = data.registry.DATASETS.get("caltech101").answers()
    assert len(answers) == 101
    assert {e.answer for e in site.train} <= set(answers)
    (root / "accordion" / "._image_0001.jpg").write_bytes(b"macOS")
    assert counted(load("caltech101", tmp_path))[0] == 10
    picture(root / "unicorn" / "image_0001.jpg")
    with pytest.raises(DataError, match="holds the folder 'unicorn', which is no class of Caltech101"):
        load("caltech101", tmp_path)


def test_flowers_have_the_owners_split(tmp_path):
    for number in range(1, 13):
        picture(tmp_path / "flowers-102" / "jpg" / f"image_{number:05}.jpg")
    savemat(tmp_path / "imagelabels.mat", {"labels": np.array([[77] * 6 + [102] * 6])})
    split = {"trnid": [[6, 7, 1, 12]], "valid": [[2, 8]], "tstid": [[3, 4, 5, 9, 10, 11]]}
    savemat(tmp_path / "setid.mat", split)
    site = load("flowers102", tmp_path)
    assert [e.image_id for e in site.train] == ["image_00006", "image_00007", "image_00001", "image_00012"]
    assert [e.answer for e in site.train] == ["77", "102", "77", "102"]
    assert (len(site.validation), len(site.test)) == (2, 6)
    savemat(tmp_path / "setid.mat", {**split, "tstid": [[13]]})
    with pytest.raises(DataError, match=r"names image 13, imagelabels\.mat has 12"):
        load("flowers102", tmp_path)
    whole = (tmp_path / "imagelabels.mat").read_bytes()
    (tmp_path / "imagelabels.mat").write_bytes(whole[:130])
    with pytest.raises(DataError, match="has no entry 'labels' with whole numbers"):
        load("flowers102", tmp_path)
    (tmp_path / "imagelabels.mat").write_bytes(b"not a file of MATLAB")
    with pytest.raises(DataError, match="has no entry 'labels' with whole numbers; download it again"):
        load("flowers102", tmp_path)


def caltech_folder(root):
    for name in ("accordion", "Faces_easy"):
        for number in range(1, 61):
            picture(root / "101_ObjectCategories" / name / f"image_{number:04}.jpg")


def flowers_folder(root):
    for number in range(1, 121):
        picture(root / "jpg" / f"image_{number:05}.jpg")
    savemat(root / "imagelabels.mat", {"labels": np.array([[1] * 60 + [102] * 60])})
    savemat(root / "setid.mat", {"trnid": [range(1, 16)], "valid": [range(16, 31)], "tstid": [range(31, 121)]})


@pytest.mark.parametrize(
    ("job", "write", "train"),
    [("paper/vit_caltech101", caltech_folder, 0.5), ("paper/vit_flowers102", flowers_folder, 0.25)],
)
def test_the_papers_jobs_train_on_the_papers_share(job, write, train, tmp_path):
    write(tmp_path)
    sections = compose(CONFIGS, job)
    sites = [
        data.load(DataSettings(**site_data(sections["data"], site), root=tmp_path))
        for site in sections["federation"]["sites"]
    ]
    splits = {name: [e.image_id for site in sites for e in getattr(site, name)] for name in ("train", "test")}
    assert {name: len(images) for name, images in splits.items()} == {"train": 120 * train, "test": 120 * (1 - train)}
    assert len({*splits["train"], *splits["test"]}) == 120
    assert not any(site.validation for site in sites)


def arrays(kind, count=12, size=28, colors=True, **changes):
    rng = np.random.default_rng(0)
    shape = (count, size, size, 3) if colors else (count, size, size)
    made = {}
    for split in ("train", "val", "test"):
        made[f"{split}_images"] = rng.integers(0, 256, shape, dtype=np.uint8)
        one = (np.arange(count) % len(kind.classes))[:, None]
        many = rng.integers(0, 2, (count, len(kind.classes)))
        made[f"{split}_labels"] = (many if kind.labelled else one).astype(np.uint8)
    return {**made, **changes}


@pytest.mark.parametrize("kind", SETS, ids=lambda kind: kind.name)
def test_medmnist_in_the_owners_files(tmp_path, kind):
    np.savez(tmp_path / f"{kind.name}.npz", **arrays(kind, size=28, colors=False))
    np.savez(tmp_path / f"{kind.name}_64.npz", **arrays(kind, size=64))
    site = load(kind.name, tmp_path)
    assert counted(site) == (36, {})
    assert {e.image.shape for e in site.train} == {(64, 64, 3)}
    assert site.metric == (MACRO_F1 if kind.labelled else BALANCED_ACCURACY)
    assert set(data.registry.DATASETS.get(kind.name).answers()) == set(kind.classes)
    (tmp_path / f"{kind.name}_64.npz").unlink()
    gray = load(kind.name, tmp_path)
    assert {e.image.shape for e in gray.train} == {(28, 28, 3)}


def test_a_part_of_medmnist_does_not_hold_the_whole(tmp_path):
    np.savez(tmp_path / "octmnist.npz", **arrays(SETS[3]))
    site = load("octmnist", tmp_path, site="client-2", partition="iid", parts=2)
    assert all(e.image.base is None for e in site.train)


@pytest.mark.parametrize(
    "changes",
    [
        {"train_labels": np.full((12, 1), 4, np.uint8)},
        {"train_labels": np.zeros((11, 1), np.uint8)},
        {"val_images": np.zeros((12, 28, 28), np.float32)},
        {"test_images": np.zeros((12, 28), np.uint8)},
    ],
)
def test_arrays_of_another_form_are_refused(tmp_path, changes):
    np.savez(tmp_path / "octmnist.npz", **arrays(SETS[3], **changes))
    with pytest.raises(DataError, match=r"not \(n, H, W\) or \(n, H, W, 3\) in uint8"):
        load("octmnist", tmp_path)


def test_a_file_that_is_no_medmnist_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"holds no octmnist.npz, nor one with _64, _128 or _224"):
        load("octmnist", tmp_path)
    (tmp_path / "octmnist.npz").write_bytes(b"PK\x03\x04 not a zip")
    with pytest.raises(DataError, match="cannot be read as MedMNIST's arrays of train; download it again"):
        load("octmnist", tmp_path)
    np.savez(tmp_path / "octmnist.npz", train_images=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match="cannot be read as MedMNIST's arrays of train"):
        load("octmnist", tmp_path)


def test_the_papers_split_has_no_meaning_here(nih):
    with pytest.raises(DataError, match="split='paper' has no meaning for nih_cxr14"):
        load("nih_cxr14", nih, split="paper")


@pytest.mark.slow
@real("nih_cxr14_64px")
@pytest.mark.real_data
def test_the_real_sample_of_nih():
    site = data.load(DataSettings(dataset="nih_cxr14", validation_fraction=0.1))
    assert counted(site) == (1000, {})
    assert len({e.group for split in site.splits().values() for e in split}) == 264


@pytest.mark.slow
@real("fed_isic2019")
@pytest.mark.real_data
def test_the_real_centers_of_fed_isic():
    centers = ("vidir-molemax", "vidir-modern", "rosendahl", "vienna-dias")
    sites = [data.load(DataSettings(dataset="fed_isic2019", site=name)) for name in centers]
    assert [counted(site)[0] for site in sites] == [700, 700, 700, 439]
