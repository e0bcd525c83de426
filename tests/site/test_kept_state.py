# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A server that names the state of another job gets nothing of it, and cannot have it removed."""

import os
import shutil
import time

import pytest

from fedpeft.core.errors import LocalError
from fedpeft.core.files import set_aside
from fedpeft.core.locks import StateLock
from fedpeft.site import site_tasks
from fedpeft.site.site_tasks import GIB, claim, make_room

SETTINGS = {"method": {"adapter": "houlsby"}, "training": {"rounds": 5}, "schedule": {"budget_range": (1, 2)}}
OTHER = {**SETTINGS, "training": {"rounds": 6}}
LEAD = "lead@north.org (north)"
DAY = 24 * 3600


def aged(path, days):
    for entry in (*path.rglob("*"), path):
        os.utime(entry, (time.time() - days * DAY,) * 2)
    return path


def round_of(lineage, number, size=10):
    folder = lineage / f"round-{number:05d}"
    folder.mkdir(parents=True)
    (folder / "adapter.safetensors").write_bytes(bytes(size))
    return folder


def lineage(folder, name, *, days, size=10, settings=SETTINGS):
    claim(folder / name, settings, "job-1", submitter=LEAD)
    round_of(folder / name, 1, size)
    return aged(folder / name, days)


def test_a_resumed_job_with_the_same_settings_goes_on(tmp_path):
    claim(tmp_path / "small-1", SETTINGS, "first job", submitter=LEAD)
    round_of(tmp_path / "small-1", 1)
    claim(tmp_path / "small-1", SETTINGS, "second job", submitter=LEAD)
    claim(tmp_path / "small-1", SETTINGS, "second job", submitter=LEAD)
    assert (tmp_path / "small-1" / "job.json").read_text().count("second job") == 1


def refuse(folder, settings=SETTINGS, what="belongs to another job"):
    with pytest.raises(LocalError, match=what) as refused:
        claim(folder, settings, "attack", submitter=LEAD)
    assert refused.value.code == "state-of-another-job"


def test_a_job_with_other_settings_is_refused(tmp_path):
    claim(tmp_path / "small-1", SETTINGS, "first job", submitter=LEAD)
    refuse(tmp_path / "small-1", OTHER, "made with another training")


def test_a_job_of_another_submitter_is_refused(tmp_path):
    claim(tmp_path / "small-1", SETTINGS, "first job", submitter=LEAD)
    before = (tmp_path / "small-1" / "job.json").read_bytes()
    for submitter in ("lead@south.org (south)", "lead@north.org (south)", ""):
        with pytest.raises(LocalError, match=r"was made for 'lead@north\.org") as refused:
            claim(tmp_path / "small-1", SETTINGS, "second job", submitter=submitter)
        assert refused.value.code == "state-of-another-job"
    assert (tmp_path / "small-1" / "job.json").read_bytes() == before


def test_state_that_does_not_say_whose_it_is_belongs_to_nobody(tmp_path):
    round_of(tmp_path / "small-1", 1)
    refuse(tmp_path / "small-1")
    (tmp_path / "small-1" / "job.json").write_text("{")
    refuse(tmp_path / "small-1")


def test_an_empty_folder_is_claimed_like_a_new_one(tmp_path):
    (tmp_path / "small-1").mkdir()
    claim(tmp_path / "small-1", SETTINGS, "first job", submitter=LEAD)
    assert (tmp_path / "small-1" / "job.json").is_file()


def test_what_is_set_aside_is_complete_and_never_replaced(tmp_path):
    for fill in (1, 2):
        folder = round_of(tmp_path, 3)
        (folder / "head.safetensors").write_bytes(bytes([fill]))
        set_aside(folder)
    kept = sorted((path / "head.safetensors").read_bytes() for path in (tmp_path / "set-aside").iterdir())
    assert kept == [b"\1", b"\2"]


def room(folder, current, bytes_allowed, days=7.0, needed=0):
    make_room(folder, current, days=days, gib=bytes_allowed / GIB, needed=needed)


def test_a_round_that_another_job_removes_meanwhile_is_no_error(tmp_path, monkeypatch):
    lineage(tmp_path, "a", days=9, size=10)
    lineage(tmp_path, "b", days=9, size=10)
    walk = os.walk

    def removing(*arguments):
        for place, folders, names in walk(*arguments):
            if place.endswith("b/round-00001"):
                shutil.rmtree(place)
            yield place, folders, names

    monkeypatch.setattr(site_tasks.os, "walk", removing)
    room(tmp_path, "current", days=7, bytes_allowed=10_000)
    assert not (tmp_path / "b" / "round-00001").exists()
    assert site_tasks._last_use(tmp_path / "gone") == float("inf")


def test_nothing_is_removed_while_there_is_room(tmp_path):
    old = lineage(tmp_path, "small-1", days=100)
    room(tmp_path, "small-2", 10_000)
    assert old.is_dir()


def test_the_oldest_goes_first_and_only_as_much_as_needed(tmp_path):
    oldest, old = (lineage(tmp_path, f"small-{days}", days=days, size=5000) for days in (30, 20))
    young = lineage(tmp_path, "small-1", days=1, size=5000)
    room(tmp_path, "small-2", 11_000)
    assert [folder.is_dir() for folder in (oldest, old, young)] == [False, True, True]


def test_what_was_set_aside_goes_before_any_state(tmp_path):
    old = lineage(tmp_path, "small-1", days=30, size=5000)
    set_aside(round_of(old, 2, 5000))
    aged(old, 30)
    room(tmp_path, "small-2", 7000)
    assert (old / "round-00001").is_dir()
    assert not list((old / "set-aside").iterdir())


def test_jobs_that_a_server_makes_up_fill_the_room_and_remove_nothing(tmp_path):
    victim = lineage(tmp_path, "small-20260101-000000-aaaaaa", days=2, size=5000)
    for number in range(3):
        lineage(tmp_path, f"small-20260102-00000{number}-bbbbbb", days=0, size=5000)
    with pytest.raises(LocalError, match="kept_gib") as refused:
        room(tmp_path, "small-20260102-000009-bbbbbb", 20_000)
    assert refused.value.code == "state-full"
    assert (victim / "round-00001").is_dir()


def test_going_back_to_the_start_again_and_again_removes_nothing(tmp_path):
    victim = lineage(tmp_path, "small-1", days=2, size=5000)
    set_aside(victim / "round-00001")
    for _ in range(3):
        set_aside(round_of(victim, 1, 5000))
    with pytest.raises(LocalError, match="kept_gib"):
        room(tmp_path, "small-1", 10_000)
    assert len(list((victim / "set-aside").iterdir())) == 4


def test_the_state_in_use_is_never_removed(tmp_path):
    own = lineage(tmp_path, "small-1", days=100, size=5000)
    with pytest.raises(LocalError, match="kept_gib"):
        room(tmp_path, "small-1", 1000)
    assert own.is_dir()
    shutil.rmtree(own)
    room(tmp_path, "small-1", 1000)


def test_other_files_of_a_site_stay(tmp_path):
    (tmp_path / "book.jsonl").write_bytes(bytes(5000))
    aged(tmp_path / "book.jsonl", 100)
    with pytest.raises(LocalError, match="kept_gib"):
        room(tmp_path, "small-1", 1000)
    assert (tmp_path / "book.jsonl").is_file()


def test_what_is_about_to_be_written_needs_room_too(tmp_path):
    young = lineage(tmp_path, "small-1", days=1, size=5000)
    room(tmp_path, "small-2", 10_000, needed=4000)
    with pytest.raises(LocalError, match="kept_gib"):
        room(tmp_path, "small-2", 10_000, needed=6000)
    aged(young, 30)
    room(tmp_path, "small-2", 10_000, needed=6000)
    assert not young.exists()


def test_what_a_job_works_in_stays_however_old_it_is(tmp_path):
    used, lock = lineage(tmp_path, "small-1", days=30, size=5000), StateLock()
    lock.take(used, "job-1", patience=0)
    aged(used, 30)
    with pytest.raises(LocalError, match="kept_gib"):
        room(tmp_path, "small-2", 1000)
    assert used.is_dir()
    lock.release()
    room(tmp_path, "small-2", 1000)
