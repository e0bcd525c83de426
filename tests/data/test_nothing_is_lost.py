# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Every data set in its owners' layout, with the quirks of such files: samples in = samples used + samples reported."""

from __future__ import annotations

import gzip
import json
import os
import pickle
from pathlib import Path

import layouts
import numpy as np
import pytest
from layouts import as_json, ids, lines, picture, pictures
from PIL import Image
from scipy.io import savemat

from fedpeft import data
from fedpeft.data.chest_x_rays import CHEXPERT
from fedpeft.data.omni_med_vqa import CLIENTS
from fedpeft.data.partition import NOT_DRAWN
from fedpeft.data.readable import LEFT_OUT
from fedpeft.data.settings import DataSettings

CUTS = {"validation_fraction": 0.2, "test_fraction": 0.2, "unreadable": 0.5}
OWN = "FEDPEFT_DATA"


def odd_pictures(paths):
    """Images of every kind that a set may have: RGBA, CMYK, palette, gray, and one of 16 bits, which cannot be read."""
    for number, path in enumerate(paths):
        if number == 3:
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((5, 6), 40_000, np.uint16)).save(path, "PNG")
        else:
            mode = ("RGB", "CMYK", "L", "", "P", "RGBA")[number % 6] if number < 12 else "RGB"
            mode = "RGB" if path.suffix == ".jpg" and mode in ("P", "RGBA") else mode
            picture(path, mode="RGB" if path.suffix == ".png" and mode == "CMYK" else mode)


def slake(root):
    layouts.slake(root, validation="validation.json")
    odd_pictures(sorted(root.rglob("*.jpg")))
    return 19  # of them two in Chinese


def vqa_rad(root):
    rows = [layouts.rad_row(i, phrase=("freeform", "para", "frame")[n % 3]) for n, i in enumerate(ids(0, 20))]
    as_json(root / "trainset.json", [{**row, "answer": 4, "answer_type": "CLOSED "} for row in rows])
    as_json(root / "testset.json", [layouts.rad_row(i) for i in ids(10, 8)])
    odd_pictures([root / "images" / f"{i}.jpg" for i in ids(0, 20)])
    return 28


def vqa_med_2018(root):
    layouts.vqa_med_2018(root)
    return 17


def vqa_med_2019(root):
    layouts.vqa_med_2019(root)
    return 4 * 13 + 2


def vqa_med_2020(root):
    layouts.vqa_med_2020(root)
    return 12 + 10 + 10


def vqa_med_2021(root):
    layouts.vqa_med_2021(root)
    return 10 + 10


def path_vqa(root):
    for split in ("train", "val", "test"):
        names = [f"{split}_{n:04}" for n in range(8)]
        rows = [{"image": name, "question": "what is present?", "answer": "fat | necrosis "} for name in names]
        rows[0]["answer"] = ""
        odd_pictures([root / "images" / split / f"{name}.jpg" for name in names])
        table = root / "qas" / split / f"{split}_qa.pkl"
        table.parent.mkdir(parents=True)
        table.write_bytes(pickle.dumps(rows))
    return 24


def omni_med_vqa(root):
    count = 0
    for name in CLIENTS["oct"].sets:
        records = []
        for number in range(12):
            records.append(
                {
                    "question_id": f"{name}_{number}",
                    "question": "What is it?",
                    "gt_answer": CLIENTS["oct"].answers[number % 4] + ".",
                    "image_path": f"Images/{name}/{number // 2}.png",
                    "option_A": "a",
                    ("modality" if number == 1 else "modality_type"): "OCT (Optical Coherence Tomography"
                    if number != 2
                    else "MR (Mag-netic Resonance Imaging)",
                    "question_type": "Modality Recognition",
                }
            )
        odd_pictures([root / f"Images/{name}/{n}.png" for n in range(6)])
        as_json(root / "QA_information" / "Open-access" / f"{name}.json", records)
        count += len(records)
    return count


def medmnist(root):
    made = {}
    for split, count in (("train", 6), ("val", 4), ("test", 4)):
        made[f"{split}_images"] = np.zeros((count, 28, 28), np.uint8)
        made[f"{split}_labels"] = np.arange(count)[:, None] % 2
    for name in data.names():
        if name.endswith("mnist"):
            labels = {f"{split}_labels": np.eye(14, dtype=int)[made[f"{split}_labels"][:, 0]] for split in SPLITS}
            np.savez(root / f"{name}.npz", **{**made, **(labels if name == "chestmnist" else {})})
    return 14


SPLITS = ("train", "val", "test")


def hugging_face(root):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    odd_pictures([root / "images" / f"{n}.png" for n in range(20)])
    rows = [{"image": f"images/{n}.png", "question": "is it?", "answer": ("yes", "no")[n % 2]} for n in range(20)]
    rows[0]["answer"], rows[1]["question"], rows[5]["image"] = None, "nan", None
    rows += [rows[6], {**rows[7], "answer": "another"}]
    pq.write_table(pa.Table.from_pylist(rows), root / "train-00000-of-00001.parquet")
    pq.write_table(pa.Table.from_pylist(rows[:2]), root / "unlabelled-00000-of-00001.parquet")
    return 24


def manifest(root):
    odd_pictures([root / "scans" / f"{n}.png" for n in range(20)])
    rows = [f"scans/{n}.png;a|b, or c#d?;{('yes', 'no')[n % 2]}" for n in range(20)]
    lines(
        root / "manifest.csv",
        ["\ufeffImage;question; Answer", *rows, rows[6], "scans/7.png;a|b, or c#d?;?"],
        end="\r\n",
    )
    return 22


def class_folders(root):
    odd_pictures([root / kind / f"{n}.png" for kind in ("normal", "not_normal") for n in range(8)])
    (root / "normal" / "notes.txt").write_text("no image")
    return 17


def nih_cxr14(root):
    header = "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,View Position,OriginalImage[Width,Height]"
    names = [f"{n:08}_000.png" for n in range(20)]
    rows = [f"{name},{('Mass|Hernia', 'No Finding')[n % 2]},0,{n},50,PA,1,1" for n, name in enumerate(names)]
    lines(root / "Data_Entry_2017_v2020.csv", [header, *rows], end="\r\n")
    odd_pictures([root / f"images_{1 + n % 2:03}" / "images" / name for n, name in enumerate(names[:-1])])
    lines(root / "train_val_list.txt", names[:12])
    lines(root / "test_list.txt", names[12:18])
    return 20


def open_i(root):
    reports = [f"{n},normal,normal,,,,{'' if n == 1 else 'Clear XXXX.'}," for n in range(1, 12)]
    views = [f"{n},{n}_IM-{k}.png,{v}" for n in range(1, 13) for k, v in ((1, "Lateral"), (2, "Frontal"))]
    lines(root / "indiana_reports.csv", ["uid,MeSH,Problems,image,indication,comparison,findings,impression", *reports])
    lines(root / "indiana_projections.csv", ["uid,filename,projection", *views], end="\r\n")
    odd_pictures([root / "images" / "images_normalized" / view.split(",")[1] for view in views[:-2]])
    return 24


def mimic_cxr_jpg(root):
    tables = {"chexpert": [f"subject_id,study_id,{','.join(CHEXPERT)}"]}
    tables["metadata"] = ["dicom_id,subject_id,study_id,ViewPosition"]
    tables["split"] = ["dicom_id,study_id,subject_id,split"]
    images = []
    for n in range(16):
        subject, study = 10000000 + n, 50000000 + n
        folder = root / "files" / "p10" / f"p{subject}"
        known = ",".join(("1.0", "-1.0", "", "0.0")[(n + k) % 4] for k in range(len(CHEXPERT)))
        tables["chexpert"] += [f"{subject},{study},{known}"] * (n != 1)
        for k, view in enumerate(("PA", "LATERAL")):
            name = f"{n:08x}-{k:08x}-00000000-00000000-00000000"
            tables["metadata"].append(f"{name},{subject},{study},{view}")
            tables["split"] += [f"{name},{study},{subject},{('train', 'test', 'validate')[n % 3]}"] * (n != 2)
            images += [(k, folder / f"s{study}" / f"{name}.jpg")] * (n != 9)
        text = "FINDINGS: clear.\n" if n != 6 else "IMPRESSION: clear.\n"
        if n != 8:
            lines(folder / f"s{study}.txt", [text], end="\r\n")
    odd_pictures([image for _, image in sorted(images)])  # frontal views first
    for name, rows in tables.items():
        (root / f"mimic-cxr-2.0.0-{name}.csv.gz").write_bytes(gzip.compress("\n".join([*rows, ""]).encode()))
    return 32


def fed_isic2019(root):
    rows = ["image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK,target,center,fold,fold2"]
    names = [f"ISIC_{n:07}" for n in range(24)]
    for n, name in enumerate(names):
        one_hot = ",".join("1.0" if k == n % 8 else "0.0" for k in range(9))
        fold = "test" if n % 4 == 0 else "train"
        rows.append(f"{name},{one_hot},{n % 8},{n // 8},{fold},{fold}_{n // 8}")
    lines(root / "train_test_split", rows)
    odd_pictures([root / "ISIC_2019_Training_Input_preprocessed" / f"{name}.jpg" for name in names[:-1]])
    return 24


def ham10000(root):
    kinds = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
    rows = [f"HAM_{n // 2:07},ISIC_{n:07},{kinds[n // 2 % 7]},histo,50.0,male,back" for n in range(28)]
    lines(root / "HAM10000_metadata", ["lesion_id,image_id,dx,dx_type,age,sex,localization", *rows])
    odd_pictures([root / f"HAM10000_images_part_{1 + n // 14}" / f"ISIC_{n:07}.jpg" for n in range(28)])
    picture(root / "HAM10000_images_part_1" / "ISIC_9999999.jpg")
    return 29


def caltech101(root):
    kinds = ("accordion", "Faces_easy", "BACKGROUND_Google")
    odd_pictures([root / "101_ObjectCategories" / kind / f"image_{n:04}.jpg" for kind in kinds for n in range(1, 9)])
    return 24


def flowers102(root):
    odd_pictures([root / "jpg" / f"image_{n:05}.jpg" for n in range(1, 13)])
    savemat(root / "imagelabels.mat", {"labels": np.array([[77] * 6 + [102] * 6])})
    savemat(root / "setid.mat", {"trnid": [[6, 7, 1, 12]], "valid": [[2, 8]], "tstid": [[3, 4, 5, 9, 10, 11]]})
    return 12


WRITTEN = {
    **{
        write.__name__: write
        for write in (slake, vqa_rad, vqa_med_2018, vqa_med_2019, vqa_med_2020, vqa_med_2021, path_vqa, omni_med_vqa)
    },
    **{write.__name__: write for write in (hugging_face, manifest, class_folders, nih_cxr14, open_i, mimic_cxr_jpg)},
    **{write.__name__: write for write in (fed_isic2019, ham10000, caltech101, flowers102)},
    "ultra_med_vqa": manifest,
    **{name: medmnist for name in data.names() if name.endswith("mnist")},
}
SITES = {"omni_med_vqa": "oct"}
WITH_PICTURES = set(WRITTEN) - {name for name in WRITTEN if name.endswith("mnist") or name.startswith("vqa_med")}


READ = [name for name in data.registry.DATASETS.own_names() if not data.is_procedural(name)]


def counted(site) -> int:
    return sum(map(len, site.splits().values())) + sum(count for _, count in site.left_out)


CLIENTS_OF = [
    ("fed_isic2019", "bcn", {}),
    ("omni_med_vqa", "oct", {}),
    ("nih_cxr14", "client-2", {"partition": "dirichlet", "parts": 2}),
    ("class_folders", "client-1", {"partition": "iid", "parts": 2}),
]


@pytest.mark.parametrize(("name", "client", "shared"), CLIENTS_OF)
def test_a_client_counts_what_is_at_the_others(tmp_path, name, client, shared):
    samples = WRITTEN[name](tmp_path)
    site = data.load(DataSettings(dataset=name, root=tmp_path, site=client, **CUTS, **shared))
    assert counted(site) == samples
    assert sum(map(len, site.splits().values())) < samples


SHARED = {"partition": "iid", "parts": 2, "split": "image_disjoint", "validation_fraction": 0}


@pytest.mark.parametrize("name", WRITTEN)
def test_of_every_data_set_a_part_can_be_used_and_the_rest_is_reported(tmp_path, name):
    samples = WRITTEN[name](tmp_path)
    client = {"site": SITES.get(name)}
    whole = data.load(DataSettings(dataset=name, root=tmp_path, **CUTS, **client))
    most = sum(map(len, whole.splits().values())) - 1
    site = data.load(DataSettings(dataset=name, root=tmp_path, samples=most, **CUTS, **client))
    assert 0 < sum(map(len, site.splits().values())) <= most
    assert counted(site) == samples
    assert NOT_DRAWN in dict(site.left_out)


@pytest.mark.parametrize("name", WRITTEN)
def test_of_every_data_set_a_share_of_training_can_be_used_and_the_rest_is_reported(tmp_path, name):
    samples = WRITTEN[name](tmp_path)
    client = {"site": SITES.get(name)}
    whole = data.load(DataSettings(dataset=name, root=tmp_path, **CUTS, **client))
    site = data.load(DataSettings(dataset=name, root=tmp_path, train_share=0.5, **CUTS, **client))
    assert set(site.train) < set(whole.train) or len({example.unit for example in whole.train}) == 1
    assert (site.validation, site.test) == (whole.validation, whole.test)
    assert counted(site) == samples


def test_sites_share_the_samples_that_are_used_and_those_of_mimic_have_findings(tmp_path):
    samples, shared = mimic_cxr_jpg(tmp_path), {**CUTS, **SHARED}
    both = [
        data.load(DataSettings(dataset="mimic_cxr_jpg", root=tmp_path, samples=10, site=site, **shared))
        for site in ("client-1", "client-2")
    ]
    unreadable = sum(dict(site.left_out).get(LEFT_OUT, 0) for site in both)
    assert sum(len(split) for site in both for split in site.splits().values()) + unreadable == 10
    assert {dict(site.left_out)[NOT_DRAWN] for site in both} == {11 - 10}
    assert all(counted(site) == samples for site in both)


@pytest.mark.parametrize("name", READ)
def test_samples_in_the_files_are_used_or_reported(tmp_path, name):
    if name not in WRITTEN:
        pytest.skip(f"no function in WRITTEN makes a folder of {name} and counts its samples: add one")
    samples = WRITTEN[name](tmp_path)
    site = data.load(DataSettings(dataset=name, root=tmp_path, site=SITES.get(name), **CUTS))
    assert counted(site) == samples
    assert all(count > 0 for _, count in site.left_out)
    assert (LEFT_OUT in dict(site.left_out)) == (name in WITH_PICTURES), "the image of 16 bits"


@pytest.mark.parametrize("name", sorted(WITH_PICTURES - {"hugging_face"}))
def test_an_image_of_16_bits_is_refused_before_training_and_named(tmp_path, name):
    WRITTEN[name](tmp_path)
    with pytest.raises(data.DataError, match=r"of \d+ images cannot be read, .* has more than 8 bits per channel"):
        data.load(DataSettings(dataset=name, root=tmp_path, site=SITES.get(name), **{**CUTS, "unreadable": 0}))


def test_double_packed_folders_and_capital_letters_lose_nothing(tmp_path):
    inner = tmp_path / "VQA-Med-2020"
    samples = vqa_med_2020(inner)
    file = next(inner.rglob("VQAnswering_2020_Val_QA_Pairs.txt"))
    file.rename(file.with_name("VQAnswering_2020_Val_QA_pairs.txt"))
    for name in ("VQAnswering_2020_Train_images", "VQAnswering_2020_Val_images"):
        folder = next(inner.rglob(name))
        folder.rename(folder.with_name("unpacked"))
        folder.mkdir()
        folder.with_name("unpacked").rename(folder / name)
    pictures(inner / "__MACOSX", ids(400, 2))
    assert counted(data.load(DataSettings(dataset="vqa_med_2020", root=tmp_path, **CUTS))) == samples


def _real(name, *, file, samples):
    folder = Path(os.environ.get(OWN) or "absent", name)
    there = pytest.mark.skipif(not folder.is_dir(), reason=f"{OWN} does not point to a folder that holds {name}")
    return pytest.param(folder, file, samples, marks=[there, pytest.mark.real_data], id=name)


REAL = [
    _real("vqa_rad", file="trainset.json", samples=lambda file: len(_json(file)) + len(_json(_test_set(file)))),
    _real("fed_isic2019", file="train_test_split", samples=lambda file: len(file.read_text().splitlines()) - 1),
    _real(
        "nih_cxr14_64px",
        file="Data_Entry_2017_v2020.csv",
        samples=lambda file: len(file.read_text().splitlines()) - 1,
    ),
]


def _json(file):
    return json.loads(file.read_text(encoding="utf-8"))


def _test_set(file):
    return next(file.parents[1].rglob("testset.json"))


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "file", "samples"), REAL)
def test_of_the_real_files_nothing_is_lost(folder, file, samples):
    name = folder.name.removesuffix("_64px")
    site = data.load(DataSettings(dataset=name, root=folder, validation_fraction=0.1))
    assert counted(site) == samples(next(folder.rglob(file)))
