# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A job that goes on where another was cut off: the same rounds, the same bits."""

import json
import os
import shutil

import pytest
import torch
from harness import LAYERS, SCHEMA, Harness, assigned, introduction, reply, scheduled, scores
from nvflare.apis.fl_constant import FLContextKey
from safetensors.torch import load_file

from fedpeft.core.errors import FedpeftError
from fedpeft.core.locks import StateLock, lineage_folder, may_be_in_use, prune
from fedpeft.flare.folders import lineages_folder
from fedpeft.server import checkpoint
from fedpeft.server.run_recorder import RunRecorder

PIA = {"aggregation": "pia", "pia": {"gamma": 0.1}}
YOGI = {"aggregation": "fedavg", "server_optimizer": "yogi"}
WITH_REPLY = {"solver": "nsga2", "budget": 1, "scoring": "with_reply"}


def drawn(site, order, **changes):
    """A reply that depends on the adapter received, so that a wrong start would show."""
    generator = torch.Generator().manual_seed(order.round * 100 + len(site))
    plain = reply(site, order)
    state = {
        key: tensor * 0 + torch.randn(tensor.shape, generator=generator) + order.state.get(key, torch.zeros(()))
        for key, tensor in plain.state.items()
    }
    return reply(site, order, state=state, **changes)


def resumed(site):
    return introduction(site, finished=2)


def dies_in(number, train=drawn):
    def answer(site, order):
        if order.round == number:
            raise SystemExit("killed")
        return train(site, order)

    return answer


@pytest.mark.slow
@pytest.mark.parametrize("method", [{"aggregation": "fedavg"}, PIA, YOGI], ids=["fedavg", "pia", "yogi"])
def test_a_resumed_job_ends_like_an_uninterrupted_one(run, tmp_path, method):
    first = {key: torch.zeros(shape) for key, shape in SCHEMA.items()} if method is YOGI else {}
    begins = lambda site: introduction(site, state=first if site == "slake" else {})  # noqa: E731
    whole, manifest, history = run(begins, train=drawn, method=method, rounds=4)
    assert manifest["status"] == "completed", manifest.get("reason")
    with pytest.raises(SystemExit):
        run(begins, train=dies_in(3), method=method, rounds=4)
    again, manifest, other = run(resumed, train=drawn, method=method, rounds=4, resume_from="latest")
    assert manifest["status"] == "completed", manifest.get("reason")
    assert manifest["resumed"] == {"after_round": 2, "sites_with_other_state": {}}
    assert again.hello.finished == 2
    assert again.hello.lineage == manifest["lineage"]
    assert [entry["round"] for entry in other["rounds"]] == [1, 2, 3, 4]
    for key, tensor in whole.saved[-1].items():
        assert torch.equal(tensor, again.saved[-1][key])
    assert [e["sites"]["slake"]["overall"] for e in history["rounds"]] == [
        e["sites"]["slake"]["overall"] for e in other["rounds"]
    ]


@pytest.mark.slow
def test_sites_learn_which_jobs_made_the_rounds_that_a_job_goes_on_from(run, tmp_path):
    with pytest.raises(SystemExit):
        run(train=dies_in(5), rounds=6)
    (lineage,) = (tmp_path / "state").iterdir()
    with pytest.raises(SystemExit):  # rounds 3 and 4 of the first job no longer count
        run(resumed, dies_in(4), rounds=6, resume_from=f"{lineage.name}/round-2")
    third, _, _ = run(lambda site: introduction(site, finished=3), drawn, rounds=6, resume_from="latest")
    first, second = third.hello.sessions
    assert third.hello.sessions == {first: 2, second: 3}
    assert third.hello.session not in (first, second)


@pytest.mark.slow
def test_a_job_goes_on_without_a_site_of_its_last_round(run):
    with pytest.raises(SystemExit):
        run(train=dies_in(3), rounds=4, quorum=2)
    away = lambda site: introduction(site, finished=2, problem="out-of-memory" if site == "chest" else "")  # noqa: E731
    _, manifest, history = run(away, drawn, rounds=4, quorum=2, resume_from="latest")
    assert manifest["status"] == "completed", manifest.get("reason")
    assert ["chest" in entry["sites"] for entry in history["rounds"]] == [True, True, False, False]


@pytest.mark.slow
def test_each_site_learns_its_part_in_the_mean_also_after_a_resume(run):
    parts = {}

    def train(site, order):
        parts.setdefault(order.round, []).append(order.part)
        return drawn(site, order)

    agreement = {"aggregation": "pia", "pia": {"integration": "weight_space", "share": "agreement"}}
    with pytest.raises(SystemExit):
        run(train=dies_in(3, train), rounds=4, method=agreement)
    run(resumed, train, rounds=4, method=agreement, resume_from="latest")
    thirds = [pytest.approx(1 / 3)] * 3
    assert parts == {1: [0.0] * 3, 2: thirds, 3: thirds, 4: thirds}


@pytest.mark.slow
def test_scores_outlive_the_server(run):
    def train(site, order):
        return assigned(site, order, scores=[0.1, 0.2, 0.7])

    with pytest.raises(SystemExit):
        run(scheduled, dies_in(2, train), schedule=WITH_REPLY, rounds=3)
    scored = []

    def score(site, order):
        scored.append(site)
        return scores(site, order)

    later = lambda site: introduction(site, schema=LAYERS, budget=1, finished=1)  # noqa: E731
    _, manifest, history = run(later, train, score, schedule=WITH_REPLY, rounds=3, resume_from="latest")
    assert manifest["status"] == "completed", manifest.get("reason")
    assert scored == []
    assert history["rounds"][1]["schedule"]["scores"]["slake"] == [0.1, 0.2, 0.7]


@pytest.mark.slow
def test_a_site_without_its_state_is_named(run):
    with pytest.raises(SystemExit):
        run(train=dies_in(3), rounds=4)
    lost = lambda site: introduction(site, finished=0 if site == "chest" else 2)  # noqa: E731
    _, manifest, _ = run(lost, drawn, rounds=4, resume_from="latest")
    assert manifest["resumed"]["sites_with_other_state"] == {"chest": 0}


@pytest.mark.parametrize(
    ("changes", "plain"),
    [
        ({"resume_from": "latest", "rounds": 2}, "training.rounds is 2, it was 4"),
        ({"resume_from": "latest", "method": PIA}, "method.aggregation is 'pia', it was 'fedavg'"),
        ({"resume_from": "other-20260101-000000-abcdef"}, "there is no checkpoint of test for resume_from=other"),
        ({"resume_from": "../../etc"}, "resume_from is '../../etc', it must be 'latest', the lineage"),
    ],
)
def test_what_cannot_be_resumed_is_one_sentence(run, changes, plain):
    with pytest.raises(SystemExit):
        run(train=dies_in(3), rounds=4)
    harness, manifest, _ = run(**{"train": drawn, "rounds": 4, **changes})
    assert manifest["status"] == "failed"
    assert plain in manifest["reason"]
    assert harness.panics


ENDS = {  # no round is better than the first
    "after all rounds": {"rounds": 2},
    "early": {"rounds": 6, "patience": 1},
    "after all rounds, with patience for no more": {"rounds": 2, "patience": 1},
}


@pytest.mark.parametrize("settings", ENDS.values(), ids=ENDS)
def test_a_job_has_ended_early_only_where_rounds_were_left(run, settings):
    _, manifest, _ = run(**settings)
    assert manifest["rounds"] == 2
    assert ("ended_early" in manifest) == (settings["rounds"] > 2)


@pytest.mark.parametrize("settings", ENDS.values(), ids=ENDS)
def test_a_finished_job_has_nothing_left(run, settings):
    run(**settings)
    _, manifest, _ = run(resume_from="latest", **settings)
    assert "has its results, after round 2: nothing is left to resume" in manifest["reason"]


@pytest.mark.parametrize("settings", ENDS.values(), ids=ENDS)
def test_a_job_that_was_killed_before_its_results_has_them_when_it_resumes(run, settings, monkeypatch, tmp_path):
    def killed(recorder):
        raise SystemExit("killed")

    with monkeypatch.context() as until:
        until.setattr(RunRecorder, "complete", killed)
        with pytest.raises(SystemExit):
            run(train=drawn, **settings)
    (tmp_path / "history.json").unlink()
    harness, manifest, history = run(resumed, drawn, resume_from="latest", **settings)
    assert manifest["status"] == "completed", manifest.get("reason")
    assert manifest["rounds"] == len(history["rounds"]) == 2
    assert manifest.get("ended_early", {}).get("after_round", 2) == 2
    assert ("ended_early" in manifest) == (settings["rounds"] > 2)
    (saved,), (last,) = harness.saved, (tmp_path / "state").glob("*/round-00002")
    assert all(torch.equal(tensor, saved[key]) for key, tensor in load_file(last / "global.safetensors").items())


def test_the_newest_round_is_that_of_the_highest_number(run, tmp_path):
    """A clock that was set back, a backup that lost its times, and a copy beside the rounds change nothing."""
    with pytest.raises(SystemExit):
        run(train=dies_in(3), rounds=4)
    (lineage,) = (tmp_path / "state").iterdir()
    shutil.copytree(lineage / "round-00002", lineage / "round-00002.bak")
    os.utime(lineage / "round-00002", (0, 0))
    _, manifest, _ = run(resumed, drawn, rounds=4, resume_from="latest")
    assert manifest["status"] == "completed", manifest.get("reason")
    assert manifest["resumed"]["after_round"] == 2


def test_a_job_whose_name_differs_in_letter_case_alone_is_another(run, tmp_path):
    with pytest.raises(SystemExit):
        run(train=dies_in(3), rounds=4)
    (lineage,) = (tmp_path / "state").iterdir()
    other = lineage.with_name(lineage.name.replace(lineage.name[-6:], "ffffff"))
    shutil.copytree(lineage, other)
    for facts in other.glob("*/checkpoint.json"):
        facts.write_text(json.dumps({**json.loads(facts.read_text()), "job": "TEST"}))
    _, manifest, _ = run(resumed, drawn, rounds=4, resume_from="latest")
    assert manifest["status"] == "completed", manifest.get("reason")
    assert manifest["lineage"] == lineage.name


def test_a_setting_that_an_earlier_version_did_not_know_had_its_default(run, tmp_path):
    with pytest.raises(SystemExit):
        run(train=dies_in(3), rounds=4)
    for facts in (tmp_path / "state").glob("*/*/checkpoint.json"):
        stored = json.loads(facts.read_text())
        del stored["settings"]["training"]["ala_rate"], stored["settings"]["method"]["robust"]["attackers"]
        facts.write_text(json.dumps(stored))
    _, manifest, _ = run(resumed, drawn, rounds=4, resume_from="latest")
    assert manifest["status"] == "completed", manifest.get("reason")


@pytest.mark.slow
def test_a_finished_job_goes_on_from_an_earlier_round(run):
    run(train=drawn, rounds=3)
    lineage = run(train=drawn, rounds=3)[1]["lineage"]
    _, manifest, _ = run(resumed, drawn, rounds=3, resume_from=f"{lineage}/round-00002")
    assert manifest["status"] == "completed", manifest.get("reason")
    assert manifest["resumed"]["after_round"] == 2


@pytest.mark.slow
def test_a_broken_checkpoint_names_its_folder_and_an_older_one_still_works(run, tmp_path):
    with pytest.raises(SystemExit):
        run(train=dies_in(3), rounds=4)
    newest = max((tmp_path / "state").glob("*/round-*"))
    (newest / "global.safetensors").write_bytes(b"half")
    _, manifest, _ = run(resumed, drawn, rounds=4, resume_from="latest")
    assert f"the checkpoint {newest} cannot be read" in manifest["reason"]
    shutil.rmtree(newest)
    _, manifest, _ = run(lambda site: introduction(site, finished=1), drawn, rounds=4, resume_from="latest")
    assert manifest["status"] == "completed", manifest.get("reason")


def test_a_damaged_checkpoint_of_the_newest_lineage_is_not_passed_over_for_an_older_one(run, tmp_path):
    for _ in range(2):
        with pytest.raises(SystemExit):
            run(train=dies_in(3), rounds=4)
    newest = max((tmp_path / "state").glob("*/round-00002"), key=lambda path: path.stat().st_mtime_ns)
    (newest / "checkpoint.json").write_text("half")
    _, manifest, _ = run(resumed, drawn, rounds=4, resume_from="latest")
    assert f"the checkpoint {newest} cannot be read" in manifest["reason"]


def test_a_resumed_job_that_fails_before_its_first_round_has_the_rounds_before_in_its_manifest(run):
    with pytest.raises(SystemExit):
        run(train=dies_in(3), rounds=4)
    _, manifest, history = run(lambda site: None, rounds=4, resume_from="latest")
    assert "the handshake ended with too few" in manifest["reason"]
    assert manifest["resumed"] == {"after_round": 2, "sites_with_other_state": {}}
    assert manifest["rounds"] == 2
    assert manifest["lineage"].startswith("test-")
    assert [one["round"] for one in history["rounds"]] == [1, 2]


def test_only_the_newest_rounds_and_lineages_are_kept(run, tmp_path):
    run(rounds=5)
    assert sorted(path.name for path in (tmp_path / "state").glob("*/round-*")) == [f"round-0000{n}" for n in (3, 4, 5)]
    for day in range(1, 6):
        (tmp_path / "old" / f"a-2026010{day}-000000-abcdef").mkdir(parents=True)
    (tmp_path / "old" / "a-b-20260101-000000-abcdef").mkdir()
    for folder in (tmp_path / "old").glob("*-2026010[!3]-*"):  # the third was used a moment ago
        os.utime(folder, (0, 0))
    prune(tmp_path / "old", "a-20260109-000000-abcdef")
    kept = sorted(path.name for path in (tmp_path / "old").glob("*"))
    assert kept == [*(f"a-2026010{day}-000000-abcdef" for day in (3, 4, 5)), "a-b-20260101-000000-abcdef"]


def test_jobs_of_other_names_do_not_fill_the_servers_disk(tmp_path):
    for number in range(120):  # the first letter of the names runs against their time
        folder = (
            tmp_path / f"{chr(122 - number % 26)}{number}-2026{number // 28 + 1:02d}{number % 28 + 1:02d}-000000-abcdef"
        )
        folder.mkdir()
        os.utime(folder, (0, 0))
    prune(tmp_path, "new-20261201-000000-abcdef")
    kept = sorted(path.name.split("-")[1] for path in tmp_path.iterdir())
    assert (len(kept), kept[0]) == (99, "20260122")


@pytest.mark.slow
def test_going_back_sets_the_rounds_after_it_aside(run, tmp_path):
    run(rounds=5)
    (lineage,) = (tmp_path / "state").iterdir()
    with pytest.raises(SystemExit):
        run(lambda s: introduction(s, finished=3), dies_in(5), rounds=5, resume_from=f"{lineage.name}/round-3")
    assert sorted(path.name for path in lineage.glob("round-*")) == ["round-00003", "round-00004"]
    aside = sorted(path.name.rpartition("round-")[2] for path in (lineage / "set-aside").iterdir())
    assert aside == ["00004", "00005"]


@pytest.fixture
def submit(run, monkeypatch):
    """Function: run a job of the submitter of this name."""

    def start(name, *args, **kwargs):
        meta = {"submitter_name": f"{name}@hospital.org", "submitter_org": name}
        monkeypatch.setattr(Harness, "context_props", {FLContextKey.JOB_META: meta})
        return run(*args, **kwargs)

    return start


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_another_submitter_gets_and_changes_nothing_of_a_job(submit, tmp_path):
    with pytest.raises(SystemExit):
        submit("north", train=dies_in(3), rounds=4)
    (lineage,) = (tmp_path / "state").iterdir()
    before = contents(lineage)
    for name, reason in (
        ("latest", "there is no checkpoint of test for resume_from=latest"),
        (lineage.name, "belongs to another submitter than south@hospital.org (south)"),
        (f"{lineage.name}/round-1", "belongs to another submitter than south@hospital.org (south)"),
    ):
        harness, manifest, _ = submit("south", resumed, drawn, rounds=4, resume_from=name)
        assert reason in manifest["reason"]
        assert harness.saved == []
    assert contents(lineage) == before
    _, manifest, _ = submit("north", resumed, drawn, rounds=4, resume_from="latest")
    assert manifest["status"] == "completed", manifest.get("reason")
    assert manifest["lineage"] == lineage.name


def test_jobs_of_another_submitter_prune_nothing(tmp_path):
    mine = checkpoint.new_lineage("test", "north")
    (tmp_path / mine).mkdir()
    for _ in range(5):
        other = checkpoint.new_lineage("test", "south")
        (tmp_path / other).mkdir()
    for folder in tmp_path.iterdir():
        os.utime(folder, (0, 0))
    prune(tmp_path, other)
    assert (tmp_path / mine).is_dir()
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.slow
def test_a_lineage_that_another_job_uses_is_refused(run, tmp_path, monkeypatch):
    monkeypatch.setattr(StateLock.take, "__kwdefaults__", {"patience": 0})
    with pytest.raises(SystemExit):
        run(train=dies_in(3), rounds=4)
    (lineage,) = (tmp_path / "state").iterdir()
    running = StateLock()
    running.take(lineage, "job-1")
    _, manifest, _ = run(resumed, drawn, rounds=4, resume_from="latest")
    assert "is used by job job-1" in manifest["reason"]
    running.release()
    _, manifest, _ = run(resumed, drawn, rounds=4, resume_from="latest")
    assert manifest["status"] == "completed", manifest.get("reason")


def test_a_job_holds_its_lineage_while_it_runs(run, tmp_path):
    def train(site, order):
        held.append(any(may_be_in_use(lineage) for lineage in (tmp_path / "state").glob("*")))
        return drawn(site, order)

    held = []
    run(train=train, rounds=2)
    assert held == [False] * 3 + [True] * 3
    assert not any(may_be_in_use(lineage) for lineage in (tmp_path / "state").iterdir())


def test_a_broken_checkpoint_of_another_job_does_not_matter(run, tmp_path):
    with pytest.raises(SystemExit):
        run(train=dies_in(3), rounds=4)
    other = tmp_path / "state" / "other-20990101-000000-abcdef" / "round-00009"
    other.mkdir(parents=True)
    (other / "checkpoint.json").write_text("half")
    _, manifest, _ = run(resumed, drawn, rounds=4, resume_from="latest")
    assert manifest["status"] == "completed", manifest.get("reason")


@pytest.mark.parametrize("name", ["../up", "", "/etc", "UPPER", "a/b"])
def test_a_lineage_cannot_lead_elsewhere(tmp_path, name):
    with pytest.raises(FedpeftError, match="not a plain name"):
        lineage_folder(tmp_path, name)


@pytest.mark.parametrize("job", ["paper/fedpia_task1", "Ä b", "", "x" * 200])
def test_a_new_lineage_is_a_plain_name(job, monkeypatch, tmp_path):
    monkeypatch.setenv("FEDPEFT_STATE", str(tmp_path))

    class Context:
        def get_identity_name(self):
            return "server"

    assert (
        lineage_folder(lineages_folder(Context()), checkpoint.new_lineage(job, "lead@hospital.org (hospital)")).parent
        == tmp_path / "server"
    )
