# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The site policy: safe by default, checked when read, and what in it is wrong stays at the site."""

import json
import re
from dataclasses import asdict

import pytest

from fedpeft import data, methods
from fedpeft.core.errors import LocalError
from fedpeft.job import site_policy
from fedpeft.job.site_policy import SitePolicy, read_policy


def written(folder, values):
    file = folder / "fedpeft.json"
    file.write_text(values if isinstance(values, str) else json.dumps(values))
    return file


def test_what_is_printed_is_the_file_with_the_defaults(tmp_path, capsys):
    assert site_policy.main() == 0
    assert read_policy(written(tmp_path, capsys.readouterr().out)) == SitePolicy()


def test_an_empty_file_means_the_defaults(tmp_path):
    assert read_policy(written(tmp_path, {})) == SitePolicy()


def test_the_data_sets_that_come_with_fedpeft_are_allowed_by_default_but_those_that_any_folder_would_do_for():
    assert set(data.names()) - set(SitePolicy().datasets) == {"class_folders"}


def test_lists_and_numbers_come_back_as_declared(tmp_path):
    policy = SitePolicy(
        roots={"vqa_rad": "/srv/rad"}, exclude=("synpic1",), answers={"slake": ("Yes", "no")}, kept_days=3
    )
    assert read_policy(written(tmp_path, asdict(policy))) == policy


def test_one_image_is_never_enough_by_default():
    policy = SitePolicy()
    assert policy.min_train_images >= 20
    assert min(policy.min_train_samples, policy.min_score_samples, policy.min_test_samples) >= 8
    assert not policy.head
    assert set(policy.methods) == set(methods.names()) - {"full"}
    assert policy.sources == ()


WRONG = [
    ("{", "cannot be read as JSON"),
    ("[" * 100_000, "cannot be read as JSON"),
    ([], "must be an object of settings"),
    ({"min_answer": 3}, "did you mean 'min_answers'"),
    ({"min_answers": 0}, "min_answers is 0"),
    ({"min_answers": None}, "min_answers is None: give it a value in"),
    ({"min_answers": "two"}, "it must be a whole number: correct"),
    ({"max_rounds": 0}, "max_rounds is 0"),
    ({"max_weight_decay": -1}, "max_weight_decay is -1"),
    ({"kept_gib": float("nan")}, "kept_gib is nan"),
    ({"memory_gib": -1}, "memory_gib is -1"),
    ({"roots": {"vqa_rad": "data"}}, "roots.vqa_rad is 'data', it must be the whole path"),
    ({"exclude": [7]}, "exclude is"),
    ({"answers": ["yes"]}, "answers"),
    ({"answers": {"vqa_rad": "yes"}}, "answers must be a list of texts"),
    ({"answers": {"vqa_rad": ["yes", "YES "]}}, "2 entries, 1 of them different"),
    ({"window": {"center": 40}}, "window={'center': 40} must be"),
    ({"unreadable": 1.5}, "unreadable=1.5 must be a number from 0"),
    ({"sum_with": "north"}, "sum_with"),
    ({"sum_with": ["north", "south"]}, "sum_with is ['north', 'south'], it must name all sites"),
    ({"sum_with": ["north", "south", "north"]}, "it must name all sites of the sum, at least 3"),
    ({"sum_noise": {"clip": 1, "noise": 1}}, "sum_noise is set without sum_with"),
    ({"sum_with": ["a", "b", "c"], "sum_noise": {"noise": 1}}, "sum_noise lacks clip"),
    ({"splits": ["own"]}, "splits is 'own', allowed are"),
    ({"methods": [3]}, "methods is"),
    ({"datasets": [7]}, "datasets is"),
    ({"max_trained_parameters": -1}, "max_trained_parameters is -1"),
    ({"validation_fraction": 0.5, "test_fraction": 0.5}, "leave nothing to train on"),
]


@pytest.mark.parametrize(("values", "expected"), WRONG, ids=[row[1] for row in WRONG])
def test_a_file_that_is_wrong_is_named_at_the_site(tmp_path, values, expected):
    with pytest.raises(LocalError, match="(?s)fedpeft.json.*" + re.escape(expected)) as refused:
        read_policy(written(tmp_path, values))
    assert (refused.value.code, refused.value.setting) == ("site-file-unusable", "")


def test_a_name_that_stands_twice_is_refused(tmp_path):
    file = tmp_path / "fedpeft.json"
    file.write_text('{"metrics": false, "max_rounds": 7, "metrics": true}')
    with pytest.raises(LocalError, match="'metrics' stands twice") as refused:
        read_policy(file)
    assert refused.value.code == "site-file-unusable"


def test_a_missing_file_has_a_code_of_its_own(tmp_path):
    with pytest.raises(LocalError, match="takes part in no job: python -m") as refused:
        read_policy(tmp_path / "fedpeft.json")
    assert refused.value.code == "site-file-missing"


def test_a_limit_may_have_its_former_name_but_not_both(tmp_path):
    policy = read_policy(written(tmp_path, {"most_rounds": 7, "least_answers": 3}))
    assert (policy.max_rounds, policy.min_answers) == (7, 3)
    with pytest.raises(LocalError, match="most_rounds, the former name of max_rounds"):
        read_policy(written(tmp_path, {"most_rounds": 7, "max_rounds": 8}))
