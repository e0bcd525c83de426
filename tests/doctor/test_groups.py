# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Each group of checks: what passes, and the sentences where it does not."""

import inspect
import json
import os
import re
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import histories
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from fedpeft.answering.answering import largest_batch
from fedpeft.backbones.registry import TINY_ALBEF_FOLDER, TINY_FOLDER
from fedpeft.core.errors import FedpeftError
from fedpeft.core.workspace import COMPONENTS, GUARDS, resources
from fedpeft.data import Example, SiteData
from fedpeft.doctor import content as backbone
from fedpeft.doctor import content as data
from fedpeft.doctor import context as job
from fedpeft.doctor import machine, memory, open_context, policies
from fedpeft.doctor.footprint import Footprint, footprint, largest
from fedpeft.flare.policy import default_scope
from fedpeft.job.composing import compose
from fedpeft.job.settings import SiteJob
from fedpeft.job.site_policy import SitePolicy
from fedpeft.report.status import SIMULATED
from fedpeft.site.learner import Learner
from fedpeft.site.site_state import KEPT_ROUNDS

GB = 10**9


def text(findings):
    """Verdicts and sentences of several findings, or of one."""
    found = [findings] if hasattr(findings, "verdict") else list(findings)
    return " | ".join(f"{one.verdict}: {one.sentence}" for one in found)


@pytest.mark.parametrize(
    ("finding", "expected"),
    [
        (lambda: machine.python(">=3.11,<3.13", "3.11.7"), "pass: Python 3.11.7"),
        (lambda: machine.python(">=3.11,<3.13", "3.13.1"), "fail: Python is 3.13.1"),
        (lambda: machine.required(["a>=1", "b; extra == 'dev'"], {"a": "1.2"}), "pass: all 1 required"),
        (lambda: machine.required(["A_x>=2,<3"], {"a-x": "1.2"}), "fail: A_x is 1.2, <3,>=2 is needed"),
        (lambda: machine.required(["a", "c"], {"a": "1"}), "fail: c is missing"),
        (lambda: machine.required(["a>=2.6"], {"a": "2.13.0+cpu"}), "pass"),
        (lambda: machine.tested("# note\na==1.0\nb==2\n", {"a": "1.0+cpu", "b": "2"}), "pass: 2 libraries"),
        (lambda: machine.tested("a==1.0  # note\n", {"a": "1.1"}), "warn: .*a 1.1 \\(==1.0\\)"),
    ],
)
def test_python_and_libraries_must_have_the_versions_that_are_required_and_tested(finding, expected):
    assert re.match(expected, text(finding()))


@pytest.mark.parametrize(
    ("module", "group", "role", "parts"),
    [
        (policies, "check_admission", "site", ["scripts", "component", "probe", "leftovers"]),
        (policies, "check_admission", "server", ["scripts", "component", "probe", "leftovers"]),
        (policies, "check_allow_list", "site", ["listed", "streaming"]),
        pytest.param(machine, "check_versions", "site", ["python", "required", "tested"], marks=pytest.mark.slow),
        (machine, "check_clock", "site", ["validity", "validity", "synchronized"]),
        (machine, "check_disk", "server", ["writable", "sockets"]),
    ],
)
def test_a_group_has_the_findings_of_all_its_parts(module, group, role, parts, make_kit, monkeypatch):
    for part in set(parts):
        several = inspect.isgeneratorfunction(getattr(module, part))
        found = job.passed(part)
        monkeypatch.setattr(module, part, lambda *_, made=[found] if several else found: made)
    findings = getattr(module, group)(open_context(startup_kit=make_kit(role)))
    assert [one.sentence for one in findings] == parts


@pytest.mark.slow
def test_versions_of_this_environment_are_accepted(make_kit):
    assert "fail" not in text(machine.check_versions(open_context(startup_kit=make_kit("server"))))


def test_a_package_that_is_not_installed_is_reported(monkeypatch):
    monkeypatch.setattr(machine, "DISTRIBUTION", "no-such-distribution")
    assert text(machine.check_versions(open_context())).startswith("fail: no-such-distribution is not installed")


LISTED = [*COMPONENTS]


@pytest.mark.parametrize(
    ("local", "expected"),
    [
        (resources(), "pass: FLARE may load"),
        ({}, "fail: FLARE may not load fedpeft.flare"),
        ({"class_allow_list": LISTED[1:]}, f"fail: FLARE may not load {LISTED[0]}: append to class_allow_list"),
        ({"class_allow_list": ["*"]}, "warn: '*' in class_allow_list"),
        ({"class_allow_list": ["fedpeft."]}, "warn: 'fedpeft.' in class_allow_list"),
        ({"class_allow_list": ["fedpeft"]}, "warn: 'fedpeft' in class_allow_list"),
        ({"class_allow_list": LISTED, "class_list_enforcement_mode": "warn"}, "warn: class_list_enforcement_mode is"),
        ({"class_allow_list": "fedpeft."}, "fail: class_allow_list in"),
        ({"class_allow_list": [1]}, "fail: class_allow_list in"),
    ],
)
@pytest.mark.parametrize("role", ["server", "site", None])
def test_the_allow_list_must_have_the_classes_of_the_jobs(role, local, expected, make_kit, tmp_path):
    if role is None:
        (tmp_path / "local").mkdir()
        (tmp_path / "local" / "resources.json").write_text(json.dumps(local))
    context = open_context(startup_kit=make_kit(role, local=local)) if role else open_context(workspace=tmp_path)
    assert expected in text(policies.check_allow_list(context))


def test_the_job_says_which_classes_are_wanted(make_kit, make_job):
    listed = {"class_allow_list": [name for name in COMPONENTS if "Persistor" not in name]}
    context = open_context(make_job(), startup_kit=make_kit("site", local=listed))
    assert "may not load fedpeft.flare.persistor.SafetensorsPersistor:" in text(policies.check_allow_list(context))


def test_a_workspace_that_is_not_there_yet_is_no_failure(tmp_path):
    assert text(policies.check_allow_list(open_context(workspace=tmp_path / "none"))).startswith("warn")


def test_an_administrator_needs_no_allow_list(make_kit):
    assert not text(policies.check_allow_list(open_context(startup_kit=make_kit("admin", local={}))))


STREAMER = {"path": "nvflare.app_common.logging.site_log_streamer.SiteLogStreamer"}


@pytest.mark.parametrize(
    ("local", "expected"),
    [
        ({"allow_log_streaming": False, "components": [STREAMER]}, "pass"),
        ({"allow_log_streaming": True, "components": [STREAMER]}, "warn: this site's error log goes to the server"),
        ({"components": [STREAMER]}, "warn: this site's error log goes to the server"),
        ({"components": ["text", {}]}, "warn: a job may request this site's log"),
    ],
)
def test_a_site_whose_log_a_job_may_request_is_warned(local, expected):
    assert text(policies.streaming(local, Path("resources.json"))).startswith(expected)


def scoped(privacy="off", **changes):
    """What `python -m fedpeft.flare.policy` writes, with changes to the scope."""
    made = default_scope()
    made["scopes"][0]["task_result_filters"][0]["args"]["privacy"] = privacy
    made["scopes"][0] |= changes
    return made


def misspelled(number, arguments=None):
    """The same with arguments that one of the two filters does not have."""
    made = default_scope()
    chain = ("task_data_filters", "task_result_filters")[number]
    made["scopes"][0][chain][0]["args"] = arguments or {"privaci": "off"}
    return made


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "fail: there is no"),
        (scoped(), "pass: what leaves this site is checked, neither"),
        (scoped({"clip": 1, "noise": 0}), "pass: .* clipped at 1.0, not noised"),
        (scoped({"clip": 1, "noise": 2}), "pass: .* clipped at 1.0 and noised"),
        (scoped({"clip": 0, "noise": 2}), "fail: .*privacy: clip is 0.0, it must be above 0"),
        (scoped({"noise": 2}), "fail: .*privacy lacks clip"),
        (scoped(3), "fail: .*privacy must be an object"),
        (misspelled(0), "fail: .*RememberOrder has no argument 'privaci', so that every reply is blocked"),
        (misspelled(1), "fail: .*AdapterOnly has no argument 'privaci', so that every reply is blocked"),
        (misspelled(1, ["privacy"]), "fail: .*args of fedpeft.flare.filters.AdapterOnly must be an object"),
        (scoped(task_data_filters=[]), "fail: .*lacks fedpeft.flare.filters.RememberOrder, without which every reply"),
        (scoped(task_data_filters=["text"]), "fail: .*lacks fedpeft.flare.filters.RememberOrder"),
        (
            scoped(task_result_filters=[]),
            "fail: .*lacks fedpeft.flare.filters.AdapterOnly, so nothing checks what leaves",
        ),
        (scoped(task_data_filters=None, task_result_filters={}), "fail: .*names none of fedpeft's filters"),
        ({**scoped(), "default_scope": "other"}, "fail: .*has no default scope"),
        ({"scopes": 3}, "fail: .*has no default scope"),
        ({**scoped(), "scopes": [*scoped()["scopes"], {"name": "b"}]}, "fail: .*has 2 scopes"),
        ([], "fail: .*must be a JSON object"),
    ],
)
def test_the_sites_privacy_file_must_have_the_filters(content, expected, make_kit, monkeypatch):
    monkeypatch.setattr(policies, "find_spec", lambda name: object())
    folder = make_kit("site")
    if content is not None:
        (folder / "local" / "privacy.json").write_text(json.dumps(content))
    context = open_context(startup_kit=folder)
    try:
        shown = text(policies.check_privacy(context))
    except FedpeftError as error:
        shown = f"fail: {error}"
    assert re.match(expected, shown), shown


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([], "fail: method.pia.share='agreement' takes"),
        (["method.pia.share=0.5"], "pass"),
        (["method.aggregation=fedavg", "training.scaffold=true"], "warn: training.scaffold compares"),
        (["method.name=lora", "method.aggregation=stack"], "fail: method.aggregation='stack' has sites start from"),
        (["method.aggregation=fedavg", "method.secure_sum=true"], "fail: .* clips, which an adapter under the masks"),
        (
            ["method.pia.share=0.5", "method.pia.accept=false", "method.site_settings={slake: {reduction_factor: 8}}"],
            "warn: method.site_settings may give this site other shapes",
        ),
        (
            ["method.aggregation=fedavg", "schedule.solver=exact", "schedule.budget=1"],
            "fail: .* has noise and no score_clip, .*: set score_clip and score_noise",
        ),
    ],
)
def test_a_job_whose_replies_are_blocked_where_they_are_clipped_is_named(changes, expected):
    sections = compose(Path(__file__).parents[2] / "app_configs", "fedpia_task1", changes)
    job = SiteJob.from_sections(sections, site="slake")
    clipped, plain = (
        text(policies.policy(scoped(one), Path("privacy.json"), [job])) for one in ({"clip": 1, "noise": 2}, "off")
    )
    assert re.match(expected, clipped)
    assert plain.startswith("pass")


def test_noise_in_a_secure_sum_clips_too(make_job, make_kit):
    job = make_job("method.aggregation=fedavg", "method.secure_sum=true", "training.scaffold=true")
    folder = make_kit("site")
    own = {"sum_with": ["slake", "vqa-rad", "vqa-med-2019"], "sum_noise": {"clip": 1, "noise": 2}}
    (folder / "local" / "fedpeft.json").write_text(json.dumps(own))
    shown = text(policies.check_site_file(open_context(job, startup_kit=folder)))
    assert "warn: training.scaffold compares" in shown
    assert "sum_noise of" in shown


def test_noise_needs_its_accountant(monkeypatch):
    monkeypatch.setattr(policies, "find_spec", lambda name: None)
    shown = text(policies.policy(scoped({"clip": 1, "noise": 2}), Path("privacy.json")))
    assert shown.startswith("fail: privacy.json sets noise, and the privacy accountant is missing")


@pytest.mark.parametrize(
    ("noise", "installed", "verdicts"), [(2, False, ["fail"]), (0, False, []), (2, True, [])], ids=str
)
def test_noise_in_a_secure_sum_needs_its_accountant(make_job, make_kit, monkeypatch, noise, installed, verdicts):
    monkeypatch.setattr(policies, "find_spec", lambda name: object() if installed else None)
    job = make_job("method.aggregation=fedavg", "method.secure_sum=true")
    own = {"sum_with": ["slake", "vqa-rad", "vqa-med-2019"], "sum_noise": {"clip": 1, "noise": noise}}
    folder = make_kit("site", policy=own)
    found = [
        one for one in policies.check_site_file(open_context(job, startup_kit=folder)) if "accountant" in text(one)
    ]
    assert [one.verdict for one in found] == verdicts


@pytest.mark.parametrize(
    ("begins", "ends", "expected"),
    [
        (-1, 300, "pass"),
        (-300, -1, "fail: client.crt expired on"),
        (-1, 9, "warn"),
        (2, 9, "fail: client.crt is valid from"),
    ],
)
def test_a_certificate_must_be_valid_now_and_for_some_time(begins, ends, expected, make_kit):
    context = open_context(startup_kit=make_kit("site", begins=begins, ends=ends))
    assert text(machine.check_clock(context)).startswith(expected)


def test_a_certificate_that_is_not_valid_yet_by_this_clock_says_to_set_the_clock(make_kit):
    certificate = open_context(startup_kit=make_kit("server")).kit.certificate
    past = datetime.now(UTC) - timedelta(days=4000)
    assert "set the clock" in text(machine.validity(certificate, past))


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_a_damaged_certificate_is_reported(content, make_kit):
    kit = open_context(startup_kit=make_kit("site")).kit
    kit.certificate.unlink() if content is None else kit.certificate.write_bytes(content)
    assert "fail" in text(machine.validity(kit.certificate, datetime.now(UTC)))


@pytest.mark.parametrize("name", ["certificate", "root"])
def test_a_certificate_that_a_kit_lacks_is_named(name, make_kit, monkeypatch):
    monkeypatch.setattr(machine, "synchronized", lambda: ())
    context = open_context(startup_kit=make_kit("site"))
    file = getattr(context.kit, name)
    file.unlink()
    shown = text(machine.check_clock(context))
    assert f"fail: {file} is not a readable certificate" in shown
    assert shown.count("fail: ") == 1


@pytest.mark.parametrize(("said", "expected"), [("yes\n", "pass"), ("no\n", "warn"), ("", ""), (None, "")])
def test_the_systems_word_on_the_clock(said, expected, monkeypatch):
    monkeypatch.setattr(machine.shutil, "which", lambda name: None if said is None else f"/bin/{name}")
    monkeypatch.setattr(machine.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=said))
    assert text(machine.synchronized()).startswith(expected)


def test_data_are_counted_and_never_shown(make_job, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    rows = ["image,question,answer,split"]
    for number, split in enumerate(["train", "train", "validation", "test"]):
        Image.new("RGB", (9, 9), (number, 0, 0)).save(folder / f"secret{number}.png")
        rows.append(f"secret{number}.png,Is it private?,private {number},{split}")
    (folder / "manifest.csv").write_text("\n".join(rows) + "\n")
    settings = json.dumps({"dataset": "manifest", "root": str(folder), "validation_fraction": 0.1})
    folder_of_job = make_job()
    file = folder_of_job / "app" / "config" / "config_fed_client.json"
    config = json.loads(file.read_text())
    config["executors"][0]["executor"]["args"]["data"] = json.loads(settings)
    file.write_text(json.dumps(config))
    shown = text(data.check_data(open_context(folder_of_job, site="slake")))
    assert shown.startswith("pass: site slake: train 2, validation 1, test 1; 2 answers, 1 test questions")
    assert "all 4 images opened" in shown
    assert "private" not in shown
    assert "secret" not in shown
    (folder / "secret2.png").write_bytes(b"no image")
    shown = text(data.check_data(open_context(folder_of_job, site="slake")))
    assert "1 of 4 images cannot be read" in shown
    assert "secret2.png cannot be decoded" in shown  # its name, at the site


def test_a_test_image_that_training_has_too_is_a_warning_with_the_remedy(make_job, tmp_path, monkeypatch):
    examples = []
    for number in range(6):
        Image.new("RGB", (9, 9), (number % 5, 0, 0)).save(tmp_path / f"{number}.png")  # the last is the first once more
        examples.append(Example(tmp_path / f"{number}.png", "?", "yes", closed=True, image_id=f"{number}.png"))
    site = SiteData("elsewhere", tuple(examples[:4]), (), tuple(examples[4:]), "made here")
    monkeypatch.setattr(data, "load_data", lambda policy, job: site)
    shown = text(data.check_data(open_context(make_job(), site="slake")))
    assert "warn: 1 of 2 test images are in a training or validation split as well" in shown
    assert "warn: data.sites.slake.exclude: [0.png]" in shown


@pytest.mark.slow
@pytest.mark.parametrize("own", [{"metrics": False}, {"min_validation_samples": 5}])
def test_a_site_that_keeps_its_figures_is_told_that_it_ends_no_job(make_job, make_kit, small_policy, own):
    folder = make_kit("site", policy={**small_policy, **own})
    shown = text(data.check_data(open_context(make_job("training.patience=2"), startup_kit=folder)))
    assert "warn: site slake: training.patience is 2, and this site's file keeps its figures here: others" in shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("method.pia.share=validation", "fail: site slake: method.pia.share is 'validation', and no sample is in"),
        ("training.keep=best", "warn: site slake: training.keep is 'best', and without a validation split no round"),
        ("training.patience=2", "warn: site slake: training.patience is 2, and without a validation split this site"),
    ],
)
def test_what_needs_a_validation_split_is_said_where_there_is_none(setting, sentence, make_job):
    assert "a validation split" not in text(data.check_data(open_context(make_job(setting), site="slake")))
    none = make_job(setting, "data.sites.slake.validation_size=0")
    said = text(data.check_data(open_context(none, site="slake")))
    assert sentence in said
    assert "set data.validation_size, or" in said
    assert "set data" not in text(data.check_data(open_context(make_job("data.validation_size=0"), site="slake")))


def test_the_setting_of_the_validation_split_is_that_of_the_sites_file_where_there_is_one(
    make_job, make_kit, monkeypatch, tmp_path
):
    for number in range(4):
        Image.new("RGB", (9, 9), (number, 0, 0)).save(tmp_path / f"{number}.png")
    examples = [Example(tmp_path / f"{n}.png", "?", "yes", closed=True, image_id=str(n)) for n in range(4)]
    site = SiteData("slake", tuple(examples[:2]), (), tuple(examples[2:]), "made here")
    monkeypatch.setattr(data, "load_data", lambda policy, job: site)
    kit = make_kit("site")
    for folder, setting in ((None, "data.validation_fraction"), (kit, f"validation_fraction in {kit}/local/")):
        context = open_context(make_job("training.keep=best"), startup_kit=folder, site=None if folder else "slake")
        context.job.site_sections["data"].clear()
        context.job.site_sections["data"] |= {"dataset": "manifest"} | ({} if folder else {"root": str(tmp_path)})
        assert f"no round is: set {setting}" in text(data.check_data(context))


@pytest.mark.parametrize(
    ("section", "own"), [("data", {"dataset": "of-a-site"}), ("backbone", {"name": "of-a-site", "source": "here"})]
)
def test_a_site_is_examined_where_another_one_has_a_plugin_that_is_not_installed_here(section, own, make_job, make_kit):
    folder = make_job("federation.sites=[slake, vqa-rad]", "method.aggregation=none")
    file = folder / "app" / "config" / "config_fed_client.json"
    config = json.loads(file.read_text())
    config["executors"][0]["executor"]["args"][section]["sites"] = {"vqa-rad": own}
    file.write_text(json.dumps(config))
    context = open_context(folder, startup_kit=make_kit("site"))
    shown = text([*job.check_job(context), *backbone.check_backbone(context), *data.check_data(context)])
    assert shown.count("pass") >= 3
    assert "fail" not in shown


def test_paths_that_mean_another_folder_to_the_sites_fail(make_job, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(TINY_FOLDER, tmp_path / "tiny")
    context = open_context(make_job("backbone.source=tiny"), site="slake")
    with pytest.raises(FedpeftError, match=rf"^backbone.source is 'tiny', .*: write {tmp_path}/tiny\.$"):
        list(backbone.check_backbone(context))
    context.job.site_sections["data"].clear()
    context.job.site_sections["data"] |= {"dataset": "manifest", "root": "tiny"}
    found = text(data.check_data(context))
    assert re.fullmatch(rf"fail: site slake: data.root is 'tiny', .*: write {tmp_path}/tiny\.", found)


def test_sites_that_would_have_the_same_samples_fail(make_job, monkeypatch, tmp_path):
    monkeypatch.setenv("FEDPEFT_DATA", str(tmp_path))
    (tmp_path / "manifest.csv").write_text("image,question,answer\n")
    context = open_context(make_job())
    context.job.site_sections["data"].clear()
    context.job.site_sections["data"]["dataset"] = "manifest"
    assert "would both have all samples of" in text(data.check_data(context))


def test_questions_that_the_backbone_does_not_read_are_a_warning(make_job):
    job = make_job("backbone.name=tiny-vit")
    shown = text(data.check_data(open_context(job, site="slake")))
    assert re.search(r"warn: site slake: The data ask \d+ different questions and backbone 'tiny-vit'", shown)


def test_training_rows_that_a_federated_head_does_not_know_are_a_warning_and_not_shown(make_job):
    job = make_job("method.head=federated", "data.answers=['yes', 'no']")
    shown = text(data.check_data(open_context(job, site="slake")))
    assert re.search(r"warn: site slake: \d+ left out: their answers are not in the list", shown)
    assert "fail" not in shown


def test_of_many_images_some_are_opened_and_the_others_counted(monkeypatch, tmp_path):
    for number in range(10):
        Image.new("RGB", (9, 9)).save(tmp_path / f"{number}.png")
    examples = [Example(tmp_path / f"{n}.png", "?", "yes", closed=True, image_id=str(n)) for n in range(10)]
    site = SiteData("north", tuple(examples[:5]), (), tuple(examples[5:]), "made here")
    monkeypatch.setattr(data, "MAX_OPENED", 4)
    (tmp_path / "1.png").write_bytes(b"no image, and not opened")
    assert data._open_images(site, decoded=False) == "4 of 10 images opened, `fedpeft data` opens the others"
    monkeypatch.setattr(data, "MAX_BYTES", (tmp_path / "0.png").stat().st_size * 2)
    assert data._open_images(site, decoded=False).startswith("2 of 10")
    monkeypatch.undo()
    with pytest.raises(FedpeftError, match=r"'north': 1 of 10 images cannot be read, .*1\.png cannot be decoded"):
        data._open_images(site, decoded=False)


@pytest.mark.slow
def test_the_images_that_are_opened_are_those_of_all_sites_together(make_job, monkeypatch, tmp_path):
    for number in range(10):
        Image.new("RGB", (9, 9), (number, 0, 0)).save(tmp_path / f"{number}.png")
    examples = [Example(tmp_path / f"{n}.png", "?", "yes", closed=True, image_id=str(n)) for n in range(10)]
    site = SiteData("north", tuple(examples[:5]), (), tuple(examples[5:]), "made here")
    monkeypatch.setattr(data, "MAX_OPENED", 4)
    monkeypatch.setattr(data, "load_data", lambda policy, job: site)
    folder = make_job("federation.sites=[slake, vqa-rad]")
    for only, opened in ((None, ["2 of 10"] * 2), ("slake", ["4 of 10"])):
        shown = text(data.check_data(open_context(folder, site=only)))
        assert re.findall(r"(\d+ of \d+) images opened", shown) == opened


@pytest.mark.parametrize("variable", [None, "nowhere"])
def test_missing_data_are_reported_for_each_site(variable, make_job, monkeypatch, tmp_path):
    monkeypatch.delenv("FEDPEFT_DATA", raising=False)
    if variable:
        monkeypatch.setenv("FEDPEFT_DATA", str(tmp_path / variable))
    context = open_context(make_job())
    context.job.site_sections["data"].clear()
    context.job.site_sections["data"]["dataset"] = "slake"
    shown = text(data.check_data(context))
    assert shown.count("fail") == 5
    assert "FEDPEFT_DATA" in shown


def test_a_relative_data_folder_is_warned_of_where_flare_starts(make_job, make_kit, monkeypatch):
    monkeypatch.setenv("FEDPEFT_DATA", "data")
    job = make_job()
    assert text(data.check_data(open_context(job, startup_kit=make_kit("site")))).startswith(
        "warn: FEDPEFT_DATA is 'data'"
    )
    assert "FEDPEFT_DATA" not in text(data.check_data(open_context(job, site="slake")))


def test_a_job_must_name_the_site_and_give_server_and_sites_the_same_settings(make_job, make_kit):
    folder = make_job("federation.sites=[vqa-rad]")
    assert text(job.check_job(open_context(folder))).startswith("pass")
    context = open_context(folder, startup_kit=make_kit("site"))
    assert "site slake is not in federation.sites" in text(job.check_job(context))
    file = folder / "app" / "config" / "config_fed_client.json"
    config = json.loads(file.read_text())
    config["executors"][0]["executor"]["args"]["training"]["rounds"] = 99
    file.write_text(json.dumps(config))
    with pytest.raises(FedpeftError, match="the section training is not the same in all places of the job"):
        open_context(folder)


FIVE = "federation.sites=[slake, vqa-rad, vqa-med-2019, vqa-med-2020, vqa-med-2021]"
FOUR = "federation.sites=[slake, vqa-rad, vqa-med-2019, vqa-med-2020]"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([FIVE, "method.aggregation=fedavg"], "warn: the 5 sites .*set method.robust.average=median[.]$"),
        ([FIVE, "method.pia.share=agreement"], "warn: .*average=median and a number as method.pia.share[.]$"),
        ([FIVE, "method.pia.share=0.5", "method.robust.average=trimmed_mean"], None),
        (
            [FIVE, "method.pia.share=0.5", "method.pia.reference=largest"],
            "warn: .*average=median and method.pia.reference=fedavg[.]$",
        ),
        ([FIVE, "method.aggregation=fedavg", "method.secure_sum=true"], None),
        ([FIVE, "method.aggregation=fedavg", "federation.sums_at_relays=true"], None),
        ([FIVE, "method.name=lora", "method.aggregation=svd"], None),
        ([FOUR, "method.aggregation=fedavg"], None),
    ],
)
def test_from_five_sites_on_a_robust_average_is_recommended(make_job, overrides, expected):
    _, *others = job.check_job(open_context(make_job(*overrides)))
    found = text(others)
    assert re.match(expected, found) if expected else not found
    make_job(*overrides, *re.findall(r"method[.\w]+=\w+", found), *["method.pia.share=0.5"] * ("a number" in found))


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["training.learning_rate=1e-4"], "rate is 0.0001, and tiny-vilt declares 0.005 .* train next to nothing; set"),
        (["training.learning_rate=0.06"], "rate is 0.06, and tiny-vilt declares 0.005 .* make training diverge; set"),
        (["training.learning_rate=0.05"], None),
        (["training.learning_rate=5e-4"], None),
        (["training.learning_rate=0.5", "training.optimizer=sgd"], None),
        (["training.learning_rate=1e-4", "method.name=full", "method.aggregation=fedavg"], None),
        (["training.learning_rate=1e-4", "method.aggregation=none"], None),
    ],
)
def test_a_learning_rate_far_from_what_the_backbone_declares_is_a_warning(make_job, overrides, expected):
    _, *others = job.check_job(open_context(make_job(*overrides)))
    found = text(one for one in others if "learning_rate" in one.sentence)
    assert re.match(f"warn: training.learning_{expected}", found) if expected else not found


@pytest.mark.parametrize(
    ("changed", "warned"),
    [
        ([], True),
        (["training.rounds=2"], True),
        (["training.learning_rate=0.01"], False),
        (["training.rounds=4"], False),
    ],
)
def test_a_site_that_the_last_run_left_below_its_constant_answer_is_a_warning(make_job, changed, warned, tmp_path):
    made = histories.record(("north", "south"), rounds=3)
    made |= {"job": "small", "settings": {"training": {"learning_rate": 0.005, "rounds": 3}}}
    made["rounds"][2]["sites"]["south"]["below_constant"] = 1.0
    workspace = tmp_path / "run"
    folder = histories.write(workspace / SIMULATED, made).parent
    settings = ["training.rounds=3", "training.learning_rate=0.005", *changed]
    context = open_context(make_job(*settings), workspace=workspace)
    assert "run in" not in text(job.check_job(context)), "it has not ended"
    (folder / "manifest.json").write_text("{}")
    found = text(one for one in job.check_job(context) if "run in" in one.sentence)
    expected = f"warn: the run in {workspace}: south: no better than a constant answer for 3 rounds: set another"
    assert found.startswith(expected) if warned else not found
    (folder / "history.json").write_text("[")
    assert "is not valid JSON" in text(job.check_job(context))


def test_a_job_that_nobody_would_admit_is_not_examined(make_job):
    folder = make_job()
    (folder / "app" / "custom").mkdir()
    with pytest.raises(FedpeftError, match="custom does not belong to a job of fedpeft: remove it"):
        open_context(folder)


@pytest.mark.parametrize("role", ["server", "site"])
def test_a_kit_checks_jobs_before_flare_reads_them(role, make_kit):
    kit = open_context(startup_kit=make_kit(role)).kit
    assert text(policies.component({"components": [GUARDS[role]]}, kit)).startswith("pass")
    assert "append an entry in components" in text(policies.component({}, kit))
    other = {**GUARDS[role], "path": "nvflare.private.fed.utils.app_deployer.AppDeployer"}
    assert "replace 'nvflare.private" in text(policies.component({"components": ["text", other]}, kit))


@pytest.mark.slow
def test_the_check_of_jobs_fits_the_installed_flare():
    assert text(policies.probe()).startswith("pass")


@pytest.mark.parametrize("role", ["server", "site", "admin"])
def test_a_script_of_an_older_kit_that_imports_where_it_is_called_is_named(role, make_kit):
    context = open_context(startup_kit=make_kit(role))
    script = context.kit.folder / "startup" / "sub_start.sh"
    script.write_text("#!/usr/bin/env bash\nexport PYTHONSAFEPATH=1\npython3 -u -m nvflare\n")
    assert not text(policies.scripts(context.kit))
    script.write_text("#!/usr/bin/env bash\npython3 -u -m nvflare\n")
    assert re.search(
        r"warn: .*sub_start\.sh has Python import from .*: insert `export PYTHONSAFEPATH=1` as its second line",
        text(next(policies.check_admission(context))),
    )


def test_leftovers_of_earlier_jobs_are_named(make_kit):
    context = open_context(startup_kit=make_kit("site"))
    config = context.kit.folder / "0b2e" / "app_slake" / "config"
    config.mkdir(parents=True)
    for name in ("config_fed_client.json", "config_fed_server.json", ".__nvfl_sig.json"):
        (config / name).write_text("{}")
    assert not text(policies.leftovers(context.kit))
    (config / "resources.conf").write_text("a: 1")
    assert "resources.conf is left from an earlier job" in text(policies.leftovers(context.kit))


@pytest.mark.parametrize(
    ("remove", "expected"),
    [
        ((), "pass"),
        (("config.json",), "fail: .*lacks config.json"),
        (("model.safetensors", "tokenizer.json", "vocab.txt"), "fail: .*lacks model.safetensors, tokenizer.json"),
    ],
)
def test_a_backbone_must_have_its_files_in_its_folder(remove, expected, tmp_path, tiny_source):
    for file in Path(tiny_source).iterdir():
        if file.name not in remove:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    assert re.match(expected, text(backbone.folder(tmp_path)))


def test_backbone_whose_weights_are_a_pickle(tmp_path, tiny_source):
    for file in Path(tiny_source).iterdir():
        name = "pytorch_model.bin" if file.name == "model.safetensors" else file.name
        (tmp_path / name).write_bytes(file.read_bytes())
    assert re.match("fail: .*a pickle, pytorch_model.bin, .*use_safetensors=True", text(backbone.folder(tmp_path)))


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ({}, "pass: .*: vit_base_patch16_224, "),
        ({"attn_implementation": "someone/kernel"}, "fail: .*names 'someone/kernel' as attn_implementation"),
        ({"hidden_size": 10**9}, "fail: .*hidden_size = 1000000000, at most"),
    ],
)
def test_backbone_without_tokenizer_in_the_layout_of_timm(entries, expected, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "vit_base_patch16_224", **entries}))
    (tmp_path / "model.safetensors").touch()
    assert re.match(expected, text(backbone.folder(tmp_path, backbone.FILES[:-1])))


def test_backbone_with_a_damaged_configuration(tmp_path, tiny_source):
    for file in Path(tiny_source).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text("[]")
    assert "names no model_type" in text(backbone.folder(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["method.matched_layers=12"], "pass: .*, vqa-rad 12 layers of vilt, 96 wide"),
        ([], r"fail: .*: set method.matched_layers to the layers of the deepest"),
        (["method.matched_layers=6"], "fail: .*: set method.matched_layers to the layers of the deepest"),
        (["method.matched_layers=24"], "fail: .*: set method.matched_layers to the layers of the deepest"),
        (
            ["backbone.sites.vqa-rad.name=tiny-vit"],
            "fail: .*12 layers of vit, .*: name backbones of one family and one",
        ),
        (["method.aggregation=none"], r"pass: [^|]* \| pass: [^|]*MB\.$"),
    ],
)
def test_backbones_of_several_sites(overrides, expected, make_job, tmp_path):
    shallow = tmp_path / "shallow"
    shutil.copytree(TINY_FOLDER, shallow)
    config = json.loads((shallow / "config.json").read_text())
    (shallow / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 6}))
    sources = f"backbone.sites={{slake: {{source: {shallow}}}, vqa-rad: {{source: {TINY_FOLDER}}}}}"
    context = open_context(make_job("federation.sites=[slake, vqa-rad]", sources, *overrides))
    assert re.search(expected, text(backbone.check_backbone(context)))
    assert largest(context) == "vqa-rad"


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        "backbone.sites={vqa-rad: {image_size: 96}}",
        "backbone.sites={slake: {text_length: 10}}",
        "method.site_settings={vqa-rad: {reduction_factor: 2}}",
    ],
)
def test_the_site_that_needs_most_is_measured(settings, make_job):
    context = open_context(make_job("federation.sites=[slake, vqa-rad]", "method.pia.accept=false", settings))
    assert largest(context) == "vqa-rad"


@pytest.mark.parametrize(
    ("name", "offline", "expected"),
    [
        ("owner/none", True, "fail: owner/none is not in the hub's cache"),
        ("owner/none", False, "warn: owner/none is not in the hub's cache"),
        ("no name at all", True, "fail: backbone.source is 'no name at all'"),
    ],
)
def test_backbone_of_the_hub(name, offline, expected, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    assert text(backbone.files("vilt", name, download=True)).startswith(expected)


SMALL = Footprint(process=GB, weights=GB, step=2 * GB, state=GB, device="cpu", method="measured")


@pytest.mark.parametrize(
    ("free", "count", "expected"),
    [
        (17 * GB, 5, "pass: main memory: a site needs about 3.3 GB"),
        (10 * GB, 5, "warn: .*too little for 5 sites at once: simulate with -t 3"),
        (2 * GB, 1, "fail: .*lower training.features_mib, images_mib or training.batch_size"),
    ],
)
def test_a_site_needs_the_main_memory_of_its_footprint(free, count, expected):
    assert re.match(expected, text(memory.main_memory(SMALL, free, count, on_gpu=False)))


def test_a_site_that_trains_on_a_gpu_needs_its_footprint_there():
    assert text(memory.gpu(SMALL, 3 * GB, 1, name="H200")).startswith("fail: memory of H200: a site needs about 3.5 GB")
    shown = text(memory.main_memory(SMALL, 2 * GB, 1, on_gpu=True))
    assert shown.startswith("pass: main memory: a site needs about 1.3 GB")


def test_the_batch_to_lower_is_the_one_that_a_step_computes_at_once():
    one = replace(SMALL, lower="training.micro_batch")
    for found in (
        memory.gpu(one, GB, 1, name="H200"),
        memory.main_memory(one, GB, 1, on_gpu=False),
        memory.within_limit(one, 1, on_gpu=False),
    ):
        assert re.match("fail: .*lower .*training.micro_batch", text(found))
        assert "batch_size" not in text(found)


def test_features_and_images_that_a_site_will_keep_are_not_free(make_job, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 10 * GB)
    (_, found) = memory.check_memory(open_context(make_job("training.images_mib=20000"), site="slake"))
    assert found.verdict == "fail"
    needed, free = (float(number) for number in re.findall(r"([\d.]+) GB", found.sentence)[:2])
    assert needed > 20_000 * 2**20 / GB
    assert free < 15
    assert found.sentence.endswith("lower training.features_mib, images_mib or training.batch_size, or free memory.")


@pytest.mark.parametrize(("gib", "expected"), [(2, "fail: memory_gib of the site policy is 2"), (4, "pass")])
def test_the_limit_of_the_site_policy_counts(gib, expected):
    one = memory.Footprint(process=2 * 2**30, weights=0, step=2**30, state=0, device="cpu", method="measured")
    assert text([memory.within_limit(one, gib, on_gpu=False)]).startswith(expected)
    assert text([memory.within_limit(replace(one, step=0), gib, on_gpu=True)]).startswith("pass")


def test_the_memory_limit_of_a_container_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "CONTAINER", tmp_path)
    (tmp_path / "memory.max").write_text("3000\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert memory.available() == 2000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available() > 2000


@pytest.mark.slow
def test_the_footprint_of_a_job_grows_with_its_batch(make_job):
    small = open_context(make_job("training.batch_size=4")).footprint
    large = open_context(make_job("training.batch_size=64")).footprint
    assert small.step < large.step
    assert 0 < small.state == large.state
    assert "from batches of 1 and 2 to 4" in small.method


@pytest.mark.parametrize(
    ("settings", "at_once"),
    [([], 1), (["training.micro_batch=5"], 0), (["training.reuse_passes=true", "method.name=feddat_houlsby"], 2)],
    ids=["whole batches", "in parts", "kept passes"],
)
@pytest.mark.parametrize("least", [1, 4, 20])
def test_the_footprint_is_of_the_largest_batch_that_the_site_policy_makes(make_job, settings, at_once, least):
    batch = ["method.aggregation=fedavg", "training.batch_size=8"]
    own = open_context(make_job(*batch, *settings)).at("slake")
    largest = max(largest_batch(count, 8, least) for count in range(8, 100))
    found = footprint(own, policy=SitePolicy(min_batch_size=least))
    assert found.method == f"extrapolated from batches of 1 and 2 to {at_once * largest or 5}"


@pytest.mark.parametrize(
    ("settings", "at_once", "lower"),
    [([], 4, "training.batch_size"), (["training.micro_batch=2"], 2, "training.micro_batch")],
)
def test_a_batch_that_does_not_fit_is_one_sentence(make_job, monkeypatch, settings, at_once, lower):
    def full(step, model):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("fedpeft.importance.memory_budget._saved_bytes", full)
    with pytest.raises(FedpeftError, match=rf"^a batch of {at_once} does not fit on cpu: lower {lower}\.$"):
        open_context(make_job("training.batch_size=4", *settings)).footprint  # noqa: B018


@pytest.mark.slow
def test_the_footprint_counts_what_never_leaves_the_site(make_job):
    plain, dual = (
        open_context(make_job("method.aggregation=fedavg", f"method.name={name}")).footprint
        for name in ("houlsby", "feddat_houlsby")
    )
    adapter = (dual.weights - plain.weights) // 2  # a0 and the frozen a2
    assert dual.state - plain.state == adapter * 4 * KEPT_ROUNDS  # a0 with its moments, a2 alone
    assert dual.step > plain.step + 3 * adapter


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ["method.aggregation=fedavg"],
        ["method.aggregation=fedavg", "training.personalization=ditto"],
        ["method.aggregation=fedavg", "training.personalization=fedala"],
        ["method.aggregation=fedavg", "training.scaffold=true"],
        ["method.pia.share=agreement"],
    ],
)
def test_the_footprint_is_what_a_site_keeps_on_its_disk(make_job, sections, tmp_path, monkeypatch, settings):
    learner = Learner.from_sections(sections(*settings, "training.rounds=6"), site="slake", folder=tmp_path)
    monkeypatch.setattr("fedpeft.doctor.footprint.STAND_INS", list(learner.vocabulary.answers))
    state = learner.first_state()
    for round in range(1, KEPT_ROUNDS + 2):
        update = learner.train_round(round, state)
        state = {key: tensor + 1e-3 for key, tensor in update.state.items()}
    kept = sum(tensor.nbytes for file in tmp_path.rglob("*.safetensors") for tensor in load_file(file).values())
    assert open_context(make_job(*settings)).footprint.state == pytest.approx(kept, rel=0.05)


@pytest.mark.slow
def test_the_footprint_is_of_the_head_that_is_trained(make_job):
    small, large = (
        open_context(
            make_job("method.head=federated", f"data.answers={[f'answer {n}' for n in range(count)]}")
        ).footprint
        for count in (2, 102)
    )
    width = 16  # of the small backbone
    assert large.weights - small.weights == 100 * (width + 1) * 4


def test_the_footprint_refuses_what_the_learner_would(make_job):
    context = open_context(make_job("training.features_mib=1"))
    with pytest.raises(FedpeftError, match="this method trains in the first layer"):
        context.footprint  # noqa: B018


RANKING = (f"backbone.source={TINY_ALBEF_FOLDER}", "backbone.name=tiny-albef-decoder", "training.answering=ranking")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ([], ""),
        (["data.metric=macro_f1"], "^these data are measured by macro_f1, and .* only by accuracy"),
        (["data.metric=balanced_accuracy"], "^these data are measured by balanced_accuracy, and .* only by accuracy"),
        (
            ["data.sites.vqa-rad.metric=macro_f1"],
            "^site vqa-rad: these data are measured by macro_f1, and .* only by accuracy",
        ),
        (["data.sites.vqa-rad.dataset=phantom_chest"], "^site vqa-rad: these images have labels, and this backbone"),
        (["training.class_weights=balanced"], "^class_weights is 'balanced', and Ranking tells no classes apart"),
    ],
)
def test_data_that_a_site_cannot_answer_or_measure_are_refused(make_job, overrides, sentence):
    context = open_context(make_job(*RANKING, *overrides))
    assert "fail" not in text(data.check_data(context))
    if not sentence:
        assert context.footprint.step > 0
        return
    with pytest.raises(FedpeftError, match=sentence):
        context.footprint  # noqa: B018


@pytest.mark.slow
def test_a_metric_of_the_job_is_known_before_the_data_are(make_job):
    with pytest.raises(FedpeftError, match="these data are measured by macro_f1"):
        open_context(make_job(*RANKING, "data.metric=macro_f1")).footprint  # noqa: B018
    assert open_context(make_job("data.metric=macro_f1", "training.class_weights=balanced")).footprint.step > 0


def test_a_device_that_is_not_there_is_reported(make_job):
    context = open_context(make_job("training.device=cuda:99"))
    with pytest.raises(ValueError, match=r"training\.device is 'cuda:99'"):
        context.footprint  # noqa: B018


def test_a_folder_that_is_full_or_cannot_be_written_to_is_reported(tmp_path, monkeypatch):
    assert text(machine.writable(tmp_path / "not" / "there", GB)).startswith("pass")
    assert "free some space" in text(machine.writable(tmp_path, 10**18))
    (tmp_path / "file").touch()
    assert "cannot be written to (Not a directory)" in text(machine.writable(tmp_path / "file", 0))

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setenv("FEDPEFT_STATE", str(tmp_path / "file" / "kept"))
    found = list(machine.check_disk(open_context(workspace=tmp_path)))
    assert [one.verdict for one in found[:2]] == ["fail", "pass"]
    assert found[0].sentence.startswith(f"{tmp_path}/file/kept cannot be written to (Not a directory)")
    monkeypatch.setattr(machine.tempfile, "TemporaryFile", refuse)
    assert text(machine.writable(tmp_path, 0)).startswith("fail: ")
    assert "cannot be written to (Permission denied)" in text(machine.writable(tmp_path, 0))


def test_a_simulation_needs_its_workspace_and_what_lies_beside_it(monkeypatch, tmp_path):
    monkeypatch.delenv("FEDPEFT_STATE", raising=False)
    context = open_context(workspace=tmp_path / "w")
    assert [one.verdict for one in machine.check_disk(context)] == ["pass"] * 3
    for name in ("w", "w_runs", "w_state"):
        (tmp_path / name).touch()
        found = [one.sentence for one in machine.check_disk(context) if one.verdict == "fail"]
        assert len(found) == 1
        assert found[0].startswith(f"{tmp_path / name} cannot be written to (Not a directory)")
        (tmp_path / name).unlink()
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real_runs").touch()  # beside what the link leads to
    monkeypatch.chdir(tmp_path / "real")
    for named in (tmp_path / "link", Path(".")):
        found = [one.sentence for one in machine.check_disk(open_context(workspace=named)) if one.verdict == "fail"]
        assert [one.split(" ")[0] for one in found] == [str(tmp_path / "real_runs")]


def test_a_workspace_that_the_simulator_refuses_fails(make_job, tmp_path):
    context = open_context(make_job(), workspace=tmp_path / "job" / "w")
    assert "fail: one of the job" in text(machine.check_disk(context))
    context = open_context(make_job(), workspace=tmp_path / "job w")
    assert "fail: the workspace" in text(machine.check_disk(context))


@pytest.mark.parametrize(
    ("kit", "overrides", "places", "expected"),
    [
        (
            False,
            (),
            ("/tmp", "/var/tmp"),
            "pass: the path of .* is too long for sockets, /tmp/fedpeft-.* is not",
        ),
        (False, (), (), "fail: sockets in .* would have too long a path: set TMPDIR to a folder of at most"),
        (True, ("training.workers=2",), (), "fail: training.workers is 2: sockets in .*: set TMPDIR"),
        (True, (), (), ""),
    ],
)
def test_a_temporary_folder_whose_path_is_too_long_for_sockets_is_reported(
    kit, overrides, places, expected, make_job, make_kit, monkeypatch
):
    context = open_context(make_job(*overrides), startup_kit=make_kit("site") if kit else None)
    monkeypatch.setattr("fedpeft.core.processes.tempfile.gettempdir", lambda: "/tmp/" + "x" * 110)
    monkeypatch.setattr("fedpeft.core.processes.SHORT_PLACES", places)
    assert re.match(expected or "$", text(machine.sockets(context)))


def test_a_servers_store_in_a_temporary_folder_is_warned_of(make_kit, monkeypatch, tmp_path):
    manager = {"id": "job_manager", "args": {"uri_root": str(tmp_path / "store")}}
    context = open_context(startup_kit=make_kit("server", local={"components": [manager, {"id": "other"}, 3]}))
    assert "which is temporary" in text(machine.check_disk(context))
    monkeypatch.setattr(machine.tempfile, "gettempdir", lambda: "/somewhere/else")
    assert "which is temporary" not in text(machine.check_disk(context))


def test_the_site_policy_is_read_and_what_it_changes_is_said(make_kit):
    shown = text(policies.check_site_file(open_context(startup_kit=make_kit("site", policy={"max_rounds": 3}))))
    assert re.fullmatch("pass: .*fedpeft.json can be used; not default: max_rounds.", shown)
    assert not list(policies.check_site_file(open_context()))


@pytest.mark.parametrize("policy", [None, {"max_rounds": 0}, {"max_roundz": 3}])
def test_a_site_without_a_usable_file_of_its_own_is_reported(make_kit, policy):
    context = open_context(startup_kit=make_kit("site", **({} if policy else {"local": None})))
    if policy is None:
        context.policy_file.unlink()
    else:
        context.policy_file.write_text(json.dumps(policy))
    with pytest.raises(FedpeftError, match=r"fedpeft\.json"):
        list(policies.check_site_file(context))


def test_all_settings_that_the_site_would_refuse_are_reported(make_kit, make_job):
    folder = make_job("data.exclude=[scan]", "schedule.solver=own", "schedule.score_samples=1")
    findings = list(policies.check_site_file(open_context(folder, startup_kit=make_kit("site"))))
    refused = [finding.sentence.split()[0] for finding in findings if finding.verdict == "fail"]
    assert refused == ["data.exclude", "schedule.score_samples"]


def test_a_job_that_trains_too_much_is_reported_before_its_adapter_is_made(make_kit, make_job, small_policy):
    kit = make_kit("site", policy={**small_policy, "max_trained_parameters": 100})
    with pytest.raises(FedpeftError, match=r"^method.settings asks for .* max_trained_parameters is 100"):
        list(memory.check_memory(open_context(make_job(), startup_kit=kit)))


def test_a_pattern_of_a_job_is_not_matched_by_the_doctor(make_kit, make_job, small_policy):
    folder = make_job("method.settings.houlsby.target_modules=.*output")
    context = open_context(folder, startup_kit=make_kit("site", policy=small_policy))
    assert "fail: method.settings has target_modules='.*output'" in text(policies.check_site_file(context))
    with pytest.raises(FedpeftError, match="which no job may set at a site"):
        list(memory.check_memory(context))


def test_a_job_that_asks_for_nothing_special_passes(make_kit, make_job):
    assert "the site policy allows all settings" in text(
        policies.check_site_file(open_context(make_job(), startup_kit=make_kit("site")))
    )


def test_data_are_loaded_as_the_site_would(make_kit, make_job, small_policy):
    policy = {**small_policy, "min_train_images": 1000}
    context = open_context(make_job(), startup_kit=make_kit("site", policy=policy))
    assert "fail: site slake: min_train_images is 1000, these data have" in text(data.check_data(context))


@pytest.mark.parametrize("components", [None, 5, "text", [None], [{"id": "job_manager", "args": 5}]])
def test_components_of_another_form_are_none(components, make_kit):
    kit = open_context(startup_kit=make_kit("site")).kit
    resources = {"components": components}
    assert "nothing checks a job" in policies.component(resources, kit).sentence
    assert machine.stores(resources) == []
    assert text(policies.streaming(resources, Path("resources.json")))


def test_a_strangers_kit_holds_nobody_up(make_kit, tmp_path):
    folder = make_kit("site")
    kit = open_context(startup_kit=folder).kit
    os.mkfifo(folder / "startup" / "start.sh")
    assert "start.sh cannot be read" in text(policies.scripts(kit))
    (folder / "startup" / "start.sh").unlink()
    (folder / "startup" / "start.sh").write_bytes(b"\xff")
    assert "start.sh cannot be read" in text(policies.scripts(kit))
    kit.root.unlink()
    os.mkfifo(kit.root)
    assert "is not a readable certificate" in machine.validity(kit.root, datetime.now(UTC)).sentence
    assert "do not load" in text(machine.reachable(kit))
    (folder / "run").mkdir()
    (folder / "run" / "app_root").symlink_to(tmp_path)
    assert "app_root is a link" in text(policies.leftovers(kit))
    assert "cannot be written to" in machine.writable(Path("/" + "x" * 5000), 1).sentence
