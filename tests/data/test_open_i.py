# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Open-I in both layouts, with their quirks; nothing is lost without a count, and hostile XML is refused."""

import pytest
from PIL import Image

from fedpeft import data
from fedpeft.core.errors import DataError
from fedpeft.core.metrics import MACRO_F1
from fedpeft.data.chest_x_rays import CHEST_LABELS
from fedpeft.data.settings import DataSettings

TERMS = (["normal"], ["Cardiomegaly/mild", "Opacity/lung/base"], ["Calcified Granuloma/lung"], ["Pneumothorax/right"])
FINDINGS = "The  XXXX is\r\nnormal."
NOTE = (
    "9 of 12 reports do not say which image is the frontal view; the first by name is taken. Kaggle's "
    "indiana_projections.csv beside them says it."
)


def picture(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (8, 6)).save(path)


def load(root, **values):
    cuts = {"validation_fraction": 0.2, "test_fraction": 0.2}
    return data.load(DataSettings(dataset="open_i", root=root, **{**cuts, **values}))


def examples(site):
    return {example.image_id: example for split in site.splits().values() for example in split}


def counted(site):
    return len(examples(site)), dict(site.left_out)


def terms(number):
    return TERMS[number % len(TERMS)]


@pytest.fixture
def kaggle(tmp_path):
    """Ten reports with a frontal and a lateral view, report 2 with two frontal ones, and what can go wrong."""
    head = "uid,MeSH,Problems,image,indication,comparison,findings,impression"
    reports = [
        f'{n},{";".join(terms(n))},{";".join(terms(n))},"Chest, PA and lateral",pain,,"{FINDINGS}",'
        for n in range(1, 11)
    ]
    reports += [
        "11,normal,normal,,,,,Normal chest.",
        f"12,No Indexing,No Indexing,,,,{FINDINGS.split()[0]},",
        "13,normal,normal,,,,Clear lungs.,",
        "14,normal,normal,,,,No image of this.,",
    ]
    views = [f"{n},{n}_IM-0001-{k}001.dcm.png,{v}" for n in range(1, 14) for k, v in ((1, "Lateral"), (2, "Frontal"))]
    views += ["2,2_IM-0001-3001.dcm.png,Frontal", "15,15_IM-0001-1001.dcm.png,Frontal"]
    (tmp_path / "indiana_reports.csv").write_bytes("\r\n".join([head, *reports, ""]).encode("utf-8-sig"))
    (tmp_path / "indiana_projections.csv").write_text("\n".join(["uid,filename,projection", *views]) + "\n")
    for view in views:
        if not view.startswith("13,"):
            picture(tmp_path / "images" / "images_normalized" / view.split(",")[1])
    picture(tmp_path / "images" / "images_normalized" / "99_IM-0001-1001.dcm.png")
    return tmp_path


def test_the_layout_of_kaggle_is_read_and_what_is_left_out_is_counted(kaggle):
    site = load(kaggle)
    assert counted(site) == (
        11,
        {
            "a lateral view": 13,
            "its report has no findings": 1,
            "its report is missing or not indexed": 2,
            "its image is not there": 1,
            "a report names no image": 1,
            "no report names the image": 1,
        },
    )
    assert site.metric == MACRO_F1
    assert site.labels == tuple(sorted(label.lower() for label in CHEST_LABELS))
    of = examples(site)
    assert of["CXR1_IM-0001-2001"].labels == ("cardiomegaly", "lung opacity")
    assert of["CXR2_IM-0001-3001"].labels == ("others",)
    assert of["CXR4_IM-0001-2001"].labels == ("no finding",)
    assert {example.question for example in of.values()} == {"The XXXX is normal."}


def test_the_frontal_views_of_one_report_stay_together(kaggle):
    of = examples(load(kaggle))
    assert of["CXR2_IM-0001-2001"].group == of["CXR2_IM-0001-3001"].group
    splits = [{example.group for example in split} for split in load(kaggle).splits().values()]
    assert sum(map(len, splits)) == 10
    sites = [load(kaggle, site=f"client-{n}", partition="dirichlet", parts=2, alpha=5.0) for n in (1, 2)]
    shared = [set(examples(site)) for site in sites]
    assert not shared[0] & shared[1]
    assert shared[0] | shared[1] == set(of)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("indiana_projections.csv", "Lateral", "Oblique", "projection is 'Oblique', neither Frontal nor Lateral"),
        ("indiana_projections.csv", "3_IM-0001-1001", "2_IM-0001-1001", "another row with its image; keep one"),
        ("indiana_reports.csv", "\n4,", "\n3,", "another row with its uid; keep one"),
        ("indiana_reports.csv", "findings", "Findings", "has no column 'findings'"),
        ("indiana_reports.csv", "Normal chest.", "x" * 200_000, "not valid CSV"),
    ],
)
def test_a_table_that_is_not_kaggles_is_refused(kaggle, file, old, new, message):
    text = (kaggle / file).read_text("utf-8-sig")
    assert old in text
    (kaggle / file).write_text(text.replace(old, new, 1))
    with pytest.raises(DataError, match=message) as refused:
        load(kaggle)
    assert "XXXX" not in str(refused.value)
    assert "Cardiomegaly" not in str(refused.value)


def report(number, images, findings=FINDINGS, mesh=None, captions=()):
    major = "".join(f"<major>{term}</major>" for term in mesh or terms(number))
    captions = captions or ["Xray Chest PA and Lateral"] * len(images)
    parents = "".join(
        f'<parentImage id="{name}"><figureId>F</figureId><caption>{caption}</caption></parentImage>'
        for name, caption in zip(images, captions, strict=True)
    )
    return (
        f'<?xml version="1.0" encoding="utf-8"?>\r\n<eCitation><uId id="CXR{number}"/>'
        f"<MedlineCitation><Article><Abstract>"
        f'<AbstractText Label="COMPARISON">None.</AbstractText><AbstractText Label="FINDINGS">{findings}</AbstractText>'
        f'<AbstractText Label="IMPRESSION">Normal &lt;chest&gt;.</AbstractText></Abstract></Article></MedlineCitation>'
        f"<MeSH>{major}<automatic>Edema</automatic></MeSH>{parents}</eCitation>"
    )


@pytest.fixture
def nlm(tmp_path):
    folder = tmp_path / "NLMCXR_reports" / "ecgen-radiology"
    folder.mkdir(parents=True)
    names = {n: [f"CXR{n}_IM-000{n}-{k}001" for k in (1, 2)] for n in range(1, 9)}
    names[1] = ["CXR1_1_IM-0001-4001", "CXR1_1_IM-0001-3001"]
    for number, images in names.items():
        (folder / f"{number}.xml").write_text(report(number, images))
    (folder / "9.xml").write_text(report(9, ["CXR9_IM-0009-1001", "CXR9_IM-0009-2001"], captions=["Lateral", "AP"]))
    (folder / "10.xml").write_text(report(10, ["CXR10_IM-0010-1001"], findings=""))
    (folder / "11.xml").write_text(report(11, []))
    captions = ["Lateral", "lat chest"]
    (folder / "12.xml").write_text(report(12, ["CXR12_IM-0012-1001", "CXR12_IM-0012-2001"], captions=captions))
    for name in [
        *(one for images in names.values() for one in images),
        "CXR9_IM-0009-1001",
        "CXR9_IM-0009-2001",
        "CXR10_IM-0010-1001",
    ]:
        picture(tmp_path / "NLMCXR_png" / f"{name}.png")
    return tmp_path


def test_the_publishers_layout(nlm):
    site = load(nlm)
    assert counted(site) == (
        9,
        {
            "not known to be a frontal view": 8,
            "a lateral view": 3,
            "its report has no findings": 1,
            "a report names no image": 1,
        },
    )
    assert site.notes == (NOTE,)
    of = examples(site)
    assert {"CXR1_IM-0001-3001", "CXR2_IM-0002-1001", "CXR9_IM-0009-2001"} <= set(of)
    assert of["CXR1_IM-0001-3001"].labels == ("cardiomegaly", "lung opacity")
    assert of["CXR1_IM-0001-3001"].question == "The XXXX is normal."


def test_kaggles_projections_beside_the_publishers_reports_say_the_view(nlm):
    rows = ["uid,filename,projection", "1,1_IM-0001-4001.dcm.png,Frontal", "1,1_IM-0001-3001.dcm.png,Lateral"]
    rows += [f"{n},{n}_IM-000{n}-1001.dcm.png,Frontal" for n in range(2, 10)]
    (nlm / "indiana_projections.csv").write_text("\n".join(rows))
    site = load(nlm)
    assert site.notes == ()
    assert {"CXR1_IM-0001-4001", "CXR9_IM-0009-1001"} <= set(examples(site))
    assert counted(site)[0] == 9


BOMB = "".join(f'<!ENTITY x{n} "{f"&x{n - 1};" * 10}">' for n in range(1, 10))
HOSTILE = {
    "billion laughs": f'<?xml version="1.0"?><!DOCTYPE e [<!ENTITY x0 "ha">{BOMB}]><eCitation>&x9;</eCitation>',
    "external entity": '<!DOCTYPE e [<!ENTITY x SYSTEM "file:///etc/passwd">]><eCitation>&x;</eCitation>',
    "external subset": '<!DOCTYPE e SYSTEM "http://localhost:1/e.dtd"><eCitation/>',
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_report_with_a_document_type_is_refused(nlm, text):
    (nlm / "NLMCXR_reports" / "ecgen-radiology" / "3.xml").write_text(text)
    with pytest.raises(DataError, match=r"3\.xml has a document type, which the owners' files do not have"):
        load(nlm)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<a>" * 60 + "</a>" * 60, "nested deeper than 50 elements"),
        ("<eCitation>&undeclared;</eCitation>", "line 1: it is not valid XML"),
        ("<eCitation>", "not valid XML"),
        ("", "not valid XML"),
        ('<?xml version="1.0" encoding="none-such"?><eCitation/>', "not valid XML"),
        ("<eCitation>" + "x" * 2**20 + "</eCitation>", "more than 1024 KiB"),
    ],
)
def test_a_report_that_is_no_sound_xml_is_refused(nlm, text, message):
    (nlm / "NLMCXR_reports" / "ecgen-radiology" / "3.xml").write_text(text)
    with pytest.raises(DataError, match=message):
        load(nlm)


def test_the_reports_of_both_layouts_are_refused(nlm, kaggle):
    with pytest.raises(DataError, match=r"holds both 'indiana_reports\.csv' and 'ecgen-radiology'; keep"):
        load(nlm)


def test_an_image_under_both_its_names_is_refused(nlm):
    picture(nlm / "again" / "2_IM-0002-1001.dcm.png")
    with pytest.raises(DataError, match=r"Both .* are there; keep one of them"):
        load(nlm)


def test_a_folder_without_reports_is_refused(tmp_path):
    picture(tmp_path / "CXR1_1_IM-0001-3001.png")
    with pytest.raises(DataError, match=r"holds neither 'indiana_reports\.csv' nor the folder 'ecgen-radiology'"):
        load(tmp_path)


def test_an_image_of_two_reports_is_refused(nlm):
    file = nlm / "NLMCXR_reports" / "ecgen-radiology" / "3.xml"
    file.write_text(report(3, ["CXR2_IM-0002-1001"]))
    with pytest.raises(DataError, match=r"Two reports in .* name one image"):
        load(nlm)
