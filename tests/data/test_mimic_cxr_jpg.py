# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""MIMIC-CXR-JPG in the owners' layout: joined tables, uncertain labels, the FINDINGS section; hostile tables."""

import gzip

import pytest
from PIL import Image

from fedpeft import data
from fedpeft.core.errors import DataError
from fedpeft.data import records
from fedpeft.data.chest_x_rays import CHEST_LABELS, CHEXPERT, findings
from fedpeft.data.settings import DataSettings

PREFIX = "mimic-cxr-2.0.0-"
REPORT = """                                 FINAL REPORT
 EXAMINATION:  CHEST (PA AND LAT)

 INDICATION:  ___F with cough, orthopnea

 FINDINGS:{}

 Heart size is ___ normal.  Lungs
 are clear.

 IMPRESSION:  No acute process.
"""
PATIENTS = 16


def image_of(patient, number):
    return f"{patient:08x}-{number:08x}-00000000-00000000-00000000"


def write(root, name, lines, packed):
    content = ("\r\n" if packed else "\n").join([*lines, ""]).encode()
    file = root / f"{PREFIX}{name}.csv{'.gz' if packed else ''}"
    file.write_bytes(gzip.compress(content) if packed else content)


def labels_of(patient):
    """Patient 3 has an uncertain label and no other, every fourth other patient cardiomegaly and an uncertain edema."""
    own = {"Cardiomegaly": "1.0", "Edema": "-1.0"} if patient % 4 == 0 else {"No Finding": "1.0", "Fracture": "0.0"}
    own = {"Pneumonia": "-1.0"} if patient == 3 else own
    return ",".join(own.get(label, "") for label in CHEXPERT)


@pytest.fixture(params=[True, False], ids=["packed", "unpacked"])
def mimic(request, tmp_path):
    return tree(tmp_path, packed=request.param)


def tree(root, packed=True):
    """Sixteen patients with a study, a frontal and a lateral view, and what can be missing."""
    chexpert = [f"subject_id,study_id,{','.join(CHEXPERT)}"]
    metadata = ["dicom_id,subject_id,study_id,PerformedProcedureStepDescription,ViewPosition,Rows"]
    split = ["dicom_id,study_id,subject_id,split"]
    for patient in range(PATIENTS):
        subject, study = 10000000 + patient, 50000000 + patient
        folder = root / "files" / "p10" / f"p{subject}" / f"s{study}"
        folder.mkdir(parents=True)
        views = ["PA" if patient % 2 else "AP", "LATERAL", *(["AP", ""] if patient == 1 else [])]
        if patient != 4:
            chexpert.append(f"{subject},{study},{labels_of(patient)}")
        for number, view in enumerate(views):
            name = image_of(patient, number)
            metadata.append(f'{name},{subject},{study},"CHEST (PA, LAT)",{view},2544')
            part = "test" if patient % 4 == 1 else "validate" if patient == 6 else "train"
            if patient != 5:
                split.append(f"{name},{study if patient != 7 else study + 1},{subject},{part}")
            if patient != 8:
                Image.new("L", (8, 6)).save(folder / f"{name}.jpg")
        if patient != 9:
            reports = root / ("mimic-cxr-reports/files" if patient == 10 else "files")
            text = REPORT.replace("FINDINGS", "NOTIFICATION") if patient == 11 else REPORT
            file = reports / "p10" / f"p{subject}" / f"s{study}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.format("" if patient % 2 else "  Portable."), newline="\r\n" if patient == 2 else "\n")
    for name, lines in (("chexpert", chexpert), ("metadata", metadata), ("split", split)):
        write(root, name, lines, packed)
    return root


def load(root, **values):
    return data.load(DataSettings(dataset="mimic_cxr_jpg", root=root, **values))


def examples(site):
    return {example.image_id: example for split in site.splits().values() for example in split}


def test_the_layout_of_the_owners_is_read_and_what_is_left_out_is_counted(mimic):
    site = load(mimic)
    of = examples(site)
    left_out = {
        "neither a PA nor an AP view": PATIENTS + 1,
        "its study has no labels": 1,
        "the owners' split does not name it": 2,
        "its image is not there": 1,
        "its report is not there": 1,
        "its report has no findings": 1,
    }
    assert dict(site.left_out) == left_out
    assert len(of) + sum(left_out.values()) == 2 * PATIENTS + 2
    assert site.labels == tuple(sorted(label.lower() for label in CHEST_LABELS))
    assert [example.image_id for example in site.validation] == [image_of(6, 0)]
    assert {example.group for example in site.test} == {f"patient 1000000{n}" for n in (1,)} | {"patient 10000013"}
    assert of[image_of(1, 0)].group == of[image_of(1, 2)].group
    assert of[image_of(1, 0)].question == "Heart size is ___ normal. Lungs are clear."
    assert of[image_of(2, 0)].question == "Portable. Heart size is ___ normal. Lungs are clear."
    assert image_of(10, 0) in of


@pytest.mark.parametrize(
    ("uncertain", "of_0", "of_3"),
    [
        ("ignore", (("cardiomegaly",), ("edema",)), ((), ("others", "pneumonia"))),
        ("positive", (("cardiomegaly", "edema"), ()), (("pneumonia",), ())),
        ("negative", (("cardiomegaly",), ()), (("others",), ())),
    ],
)
def test_uncertain_labels_follow_the_setting(tmp_path, uncertain, of_0, of_3):
    of = examples(load(tree(tmp_path), uncertain=uncertain))
    for patient, expected in ((0, of_0), (3, of_3)):
        assert (of[image_of(patient, 0)].labels, of[image_of(patient, 0)].unknown_labels) == expected


def test_patients_are_shared_out_to_clients(tmp_path):
    root = tree(tmp_path)
    settings = {
        "split": "image_disjoint",
        "partition": "iid",
        "parts": 2,
        "validation_fraction": 0.3,
        "test_fraction": 0.3,
    }
    sites = [load(root, site=f"client-{n}", **settings) for n in (1, 2)]
    parts = [set(examples(site)) for site in sites]
    assert not parts[0] & parts[1]
    assert parts[0] | parts[1] == set(examples(load(root)))
    assert sum(dict(site.left_out).get("its report has no findings", 0) for site in sites) == 1


SECTIONS = [
    ("FINDINGS:  Clear.\n\nIMPRESSION: Normal.", "Clear."),
    (" FINDINGS: \n Clear.\n The heart: normal.\n NOTIFICATION:  Called.", "Clear. The heart: normal."),
    ("FINDINGS: Old.\nIMPRESSION: A.\nFINDINGS: New.\nIMPRESSION: B.", "New."),
    ("FINDINGS: Old.\nFINDINGS:\n", "Old."),
    ("FINDINGS AND IMPRESSION:\nClear.", "Clear."),
    ("INDICATION: Findings: none.\nIMPRESSION: Normal.", ""),
    ("TECHNICAL FINDINGS: Rotated.", ""),
    ("", ""),
]


@pytest.mark.parametrize(("report", "text"), SECTIONS)
def test_the_findings_end_at_the_next_header(report, text):
    assert findings(report) == text
    assert findings(report.replace("\n", "\r\n")) == text


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("metadata", "dicom_id", "id", "has no column 'dicom_id'"),
        ("metadata", image_of(2, 0), "../../secret", "row 8: dicom_id is no name of an image"),
        ("metadata", image_of(2, 0), image_of(1, 0), "row 8: there is another row with its image; keep one"),
        ("metadata", "10000002", "p10000002", "or subject_id or study_id no number"),
        ("split", ",train", ",training", "split is none of train, validate, test"),
        ("chexpert", "-1.0", "maybe", "row 2: the value of 'Edema' is none of 1.0, 0.0, -1.0 and empty"),
        ("chexpert", "10000001,50000001", "10000000,50000000", "row 3: there is another row with its study; keep one"),
        ("chexpert", "10000001,", "10000001,1,", "row 3: it has fewer or more fields than the header"),
    ],
)
def test_a_table_that_is_not_the_owners_is_refused_without_its_values(tmp_path, name, old, new, message):
    file = tree(tmp_path, packed=False) / f"{PREFIX}{name}.csv"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(DataError, match=message) as refused:
        load(tmp_path)
    for secret in ("maybe", "secret", "10000002", "training"):
        assert secret not in str(refused.value)


def test_a_table_that_is_missing_or_damaged_is_refused(tmp_path):
    file = tree(tmp_path) / f"{PREFIX}split.csv.gz"
    whole = file.read_bytes()
    for content in (whole[:-20], b"no gzip", whole[:40] + b"\0" * 20 + whole[60:]):
        file.write_bytes(content)
        with pytest.raises(DataError, match=r"split\.csv\.gz (cannot be unpacked|is not UTF-8|is not valid CSV)"):
            load(tmp_path)
    file.unlink()
    with pytest.raises(DataError, match=r"holds neither 'mimic-cxr-2\.0\.0-split\.csv\.gz' nor"):
        load(tmp_path)


@pytest.mark.parametrize(
    "content", [b"a,b\n" + b"0" * 2**24, b"a,b\n" + b"1,2\n" * 2**12, b'a,b\n1,"' + b"x\n" * 2**12], ids=len
)
def test_a_bomb_is_not_unpacked(tmp_path, monkeypatch, content):
    monkeypatch.setattr(records, "MAX_BYTES", 2**12)
    (tmp_path / "bomb.csv.gz").write_bytes(gzip.compress(content))
    with pytest.raises(DataError, match="or a line of more than 64 KiB; download it again"):
        list(records.column_rows(tmp_path / "bomb.csv.gz", ("a", "b")))


def test_a_report_that_is_too_large_or_no_text_is_refused(tmp_path):
    file = tree(tmp_path) / "files" / "p10" / "p10000000" / "s50000000.txt"
    for content, message in ((b"FINDINGS: " + b"x" * 2**18, "more than 256 KiB"), (b"FINDINGS: \xff", "is not UTF-8")):
        file.write_bytes(content)
        with pytest.raises(DataError, match=message):
            load(tmp_path)
