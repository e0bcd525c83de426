# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Settings, the registry of data sets, and what a site's data must be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from grids import each

import fedpeft.data as data
from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import build
from fedpeft.data import DataError, DataSettings, Example, SiteData
from fedpeft.data.registry import DATASETS

WRONG = [
    ("unknown set", {"dataset": "imagenet"}, r"imagenet.*phantom, .*slake, vqa_rad"),
    ("no set", {"dataset": None}, r"dataset=None.*vqa_rad"),
    ("root is a number", {"root": 3}, "root=3"),
    ("root is empty", {"root": ""}, "root=''"),
    ("site is blank", {"site": " "}, "site=' '"),
    ("unknown split", {"split": "random"}, "split.*'random'.*published, image_disjoint, paper"),
    ("split from an undefined variable", {"split": None}, "split.*None"),
    ("seed is negative", {"seed": -1}, "seed=-1"),
    ("seed is a truth value", {"seed": True}, "seed=True"),
    ("all is validation", {"validation_fraction": 1}, "validation_fraction=1.*below 1"),
    ("validation fraction is text", {"validation_fraction": "0.1"}, "validation_fraction='0.1'"),
    ("no test", {"test_fraction": 0}, "test_fraction=0.*above 0"),
    ("test fraction is no number", {"test_fraction": float("nan")}, "test_fraction=nan"),
    ("nothing to train on", {"validation_fraction": 0.5, "test_fraction": 0.5}, "below 1"),
    ("empty training set", {"train_size": 0}, "train_size=0.*1 or more"),
    (
        "sizes of a published set",
        {"dataset": "slake", "test_size": 5},
        "test_size=5 is not a setting of dataset='slake'; remove it",
    ),
    ("unknown treatment of uncertain labels", {"uncertain": "maybe"}, "uncertain.*'maybe'.*ignore, positive, negative"),
    (
        "uncertain labels of a set without them",
        {"dataset": "nih_cxr14", "uncertain": "positive"},
        "uncertain='positive' is not a setting of dataset='nih_cxr14'; remove it",
    ),
    ("unknown metric", {"metric": "f1"}, "metric.*'f1'.*accuracy, balanced_accuracy, macro_f1"),
    ("no sample", {"samples": 0}, "samples=0 must be a whole number, 1 or more, or None"),
    ("samples are a share", {"samples": 0.5}, "samples=0.5 must be a whole number"),
    *((f"train share {x}", {"train_share": x}, "train_share=.* above 0 and at most 1") for x in (0, 1.5, True, "0.5")),
    ("exclude is one text", {"exclude": "synpic1"}, "exclude='synpic1'"),
]


@pytest.mark.parametrize(("values", "sentence"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_a_wrong_setting_is_refused_with_its_name_value_and_what_is_allowed(values, sentence):
    with pytest.raises(FedpeftError, match=sentence):
        DataSettings(**values)


def test_settings_come_from_json():
    values = {
        "dataset": "vqa_rad",
        "root": "some/where",
        "site": "chest-a",
        "exclude": ["synpic1"],
        "validation_fraction": 0,
    }
    settings = build(DataSettings, values, section="data")
    assert settings.root == Path("some/where")
    assert settings.exclude == ("synpic1",)


@each("name", ["train_size", "validation_size", "test_size", "dialects", "label_skew"])
@each("dataset", data.names())
def test_a_data_set_takes_the_settings_that_it_declares(dataset, name):
    if name in DATASETS.get(dataset).takes:
        assert getattr(DataSettings(dataset=dataset, **{name: 3}), name) == 3
    else:
        with pytest.raises(DataError, match=f"{name}=3 is not a setting of dataset='{dataset}'; remove it"):
            DataSettings(dataset=dataset, **{name: 3})


def test_what_is_procedural_is_called_phantom():
    assert all(data.is_procedural(name) == name.startswith("phantom") for name in data.names())
    with pytest.raises(DataError, match="imagenet"):
        data.is_procedural("imagenet")


@pytest.mark.slow
def test_no_loader_imports_torch():
    modules = ["published_vqa", "vqa_med"]
    modules += ["omni_med_vqa", "manifest", "duplicates", "images"]
    code = "import sys\n" + "".join(f"import fedpeft.data.{name}\n" for name in modules)
    code += "print({'torch', 'transformers', 'peft', 'nvflare'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def _example(image_id: str) -> Example:
    pixels = np.zeros((2, 2, 3), np.uint8)
    return Example(image=pixels, question="q", answer="yes", closed=True, image_id=image_id)


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_site_without_training_or_test_examples_is_refused(split):
    splits = {name: (_example("a"),) for name in ("train", "validation", "test")}
    with pytest.raises(DataError, match=f"'north' has an empty {split} split"):
        SiteData("north", **{**splits, split: ()}, source="")
    with pytest.raises(DataError, match=f"'north' has an empty {split} split"):
        SiteData("north", **{**splits, split: iter(())}, source="")


def test_splits_may_be_lists_or_what_ends():
    examples = [_example("a"), _example("b")]
    site = SiteData("north", iter(examples), [], iter(examples), source="")
    assert (site.train, site.validation, site.test) == (tuple(examples), (), tuple(examples))


def test_images_can_be_left_out():
    site = SiteData("north", (_example("a"), _example("b")), (_example("c"),), (_example("b"), _example("d")), "")
    kept = site.without_images(["b"])
    assert [[e.image_id for e in part] for part in kept.splits().values()] == [["a"], ["c"], ["d"]]
    assert kept.left_out == (("its image is excluded", 2),)
    with pytest.raises(DataError, match="'north' has no image 'z'"):
        site.without_images(["a", "z"])
    with pytest.raises(DataError, match="empty test split"):
        site.without_images(["b", "d"])


def test_a_job_may_choose_the_metric_of_questions_and_labels_have_macro_f1_alone():
    sizes = {"train_size": 12, "validation_size": 4, "test_size": 8}
    assert data.load(DataSettings(site="slake", **sizes)).metric == "accuracy"
    assert data.load(DataSettings(site="slake", metric="macro_f1", **sizes)).metric == "macro_f1"
    with pytest.raises(DataError, match="metric='accuracy' is none of images with labels, as site 'open-i' has"):
        data.load(DataSettings(dataset="phantom_chest", site="open-i", metric="accuracy", **sizes))


LAYOUTS = {  # what a user is told to have, of sets whose loaders share a file
    "vqa_med_2018": "VQAMed2018Train/",
    "vqa_med_2019": "ImageClef-2019-VQA-Med-Training/",
    "vqa_med_2020": "VQA-Med-2020-Task1-VQAnswering-TrainVal-Sets/",
    "vqa_med_2021": "VQA-Med-2021-VQAnswering-Task1-New-ValidationSet.txt",
    "ham10000": "HAM10000_images_part_1/",
    "fed_isic2019": "ISIC_2019_Training_Input_preprocessed/",
    "caltech101": "101_ObjectCategories/",
    "flowers102": "jpg/image_00001.jpg",
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_data_set_shows_its_own_layout(name):
    assert DATASETS.get(name).layout.startswith(f"    {LAYOUTS[name]}")
    others = {other: DATASETS.get(other).layout for other in LAYOUTS if other != name}
    assert DATASETS.get(name).layout not in others.values()
