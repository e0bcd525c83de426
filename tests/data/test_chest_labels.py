# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The 15 labels from MeSH terms and from CheXpert's columns."""

import pytest

from fedpeft.core.errors import DataError
from fedpeft.data.chest_x_rays import CHEST_LABELS, CHEXPERT, MESH, OTHERS, labels_from_chexpert, labels_from_mesh

TERMS = [
    (["normal"], {"No Finding"}),
    (["Cardiomegaly/borderline", "Pulmonary Artery/enlarged"], {"Cardiomegaly"}),
    (["Cardiac Shadow/enlarged/mild"], {"Cardiomegaly"}),
    (["Cardiac Shadow/obscured"], {OTHERS}),
    (["Opacity/lung/base/left/round"], {"Lung Opacity", "Lung Lesion"}),
    (["Cicatrix/lung/apex", "Thickening/pleura/apex/bilateral"], {"Lung Opacity", "Pleural Other"}),
    (["Markings/bronchovascular"], {OTHERS}),
    (["Hydropneumothorax/right"], {"Pneumothorax", "Pleural Effusion"}),
    (["Calcified Granuloma/lung", "Thoracic Vertebrae/degenerative/mild"], {OTHERS}),
    (["FRACTURES,  BONE / ribs", ""], {"Fracture"}),
    (["No Indexing"], None),
    ([""], None),
    ([], None),
]


@pytest.mark.parametrize(("terms", "labels"), TERMS)
def test_terms_of_a_report_become_labels(terms, labels):
    of_report = labels_from_mesh(terms)
    assert (None if of_report is None else set(of_report)) == labels


def test_there_are_fifteen_and_each_but_others_has_terms():
    assert len(set(CHEST_LABELS)) == 15
    assert tuple(MESH) == CHEXPERT


def study(**values):
    return [values.get(label.replace(" ", "_"), "") for label in CHEXPERT]


STUDIES = [
    ({"Edema": "1.0", "Fracture": "0.0"}, "ignore", ("Edema",), ()),
    ({"Edema": "1.0", "Fracture": "-1.0"}, "ignore", ("Edema",), ("Fracture",)),
    ({"Edema": "1.0", "Fracture": "-1.0"}, "positive", ("Edema", "Fracture"), ()),
    ({"Edema": "1", "Fracture": "-1"}, "negative", ("Edema",), ()),
    ({"Fracture": "-1.0"}, "ignore", (), ("Fracture", OTHERS)),
    ({"Fracture": "-1.0"}, "negative", (OTHERS,), ()),
    ({}, "ignore", (OTHERS,), ()),
    ({"No_Finding": "1.0"}, "ignore", ("No Finding",), ()),
]


@pytest.mark.parametrize(("values", "uncertain", "labels", "unknown"), STUDIES)
def test_columns_of_a_study_become_labels(values, uncertain, labels, unknown):
    assert labels_from_chexpert(study(**values), uncertain) == (labels, unknown)


@pytest.mark.parametrize("value", ["2.0", "yes", "nan", "inf", "0.5"])
def test_a_value_that_is_not_chexperts_is_refused_without_it(value):
    with pytest.raises(DataError, match="the value of 'Edema' is none of") as refused:
        labels_from_chexpert(study(Edema=value), "ignore")
    assert value not in str(refused.value).replace("none of 1.0, 0.0, -1.0", "")
