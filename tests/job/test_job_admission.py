# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Which jobs are admitted, from a folder, a lead's archive or a server's; and that nothing but a refusal comes out."""

import io
import json
import os
import shutil
import stat
import struct
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nvflare.fuel.utils.class_utils import ModuleScanner
from nvflare.fuel.utils.component_builder import ComponentBuilder
from nvflare.fuel.utils.components_utils import create_classes_table_static

from fedpeft.core.errors import FedpeftError
from fedpeft.job.admission import BOOKKEEPING, FILES, admit_app, admit_configuration, admit_folder, admit_submission
from fedpeft.job.composing import EXECUTOR, job_files, write_job
from fedpeft.job.strict_files import MAX_BYTES, REASONS, AdmissionError, parse_json

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from hostile_jobs import VARIABLE, Target, app_archive, attacks, job_archive  # noqa: E402

SECRET = "hospital-database-password"
META, SERVER, CLIENT = FILES


@pytest.fixture(scope="module")
def files(sections):
    """The three files of a small job as text."""
    return job_files("small", sections())


@pytest.fixture
def job(files, tmp_path):
    """The small job's folder."""
    for name, text in files.items():
        (tmp_path / "small" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "small" / name).write_text(text)
    return tmp_path / "small"


def packed(files, *, folder="small", extra=(), kind=zipfile.ZIP_DEFLATED):
    """An archive of a job; `extra` are further (entry, content) pairs."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", kind) as archive:
        for name, text in files.items():
            archive.writestr(f"{folder}/{name}", text)
        for entry, content in extra:
            archive.writestr(entry, content)
    return written.getvalue()


def refused(check):
    """The refusal of a check."""
    with pytest.raises(AdmissionError) as caught:
        check()
    assert caught.value.reason in REASONS
    return caught.value


@pytest.mark.parametrize("folder", sorted(p.parent for p in (ROOT / "jobs").rglob("meta.json")), ids=lambda p: p.name)
def test_committed_jobs_are_admitted_from_folder_and_archive(folder):
    meta = admit_folder(folder).meta
    assert admit_submission(job_archive(folder), folder.name).meta == meta
    admit_app(app_archive(folder), "app", {**meta, **dict.fromkeys(BOOKKEEPING, "added by the server")})


def test_a_signed_job_is_admitted(job):
    for folder in (job, job / "app", job / "app" / "config"):
        for name in (".__nvfl_sig.json", ".__nvfl_submitter.crt"):
            (folder / name).write_text("{}")
    assert admit_folder(job)
    assert admit_submission(job_archive(job), "small")


@pytest.mark.parametrize("attack", attacks(), ids=lambda attack: attack.name)
def test_each_attack_is_refused_everywhere_and_says_nothing_to_others(attack, job, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, SECRET)
    secret = tmp_path / "secret.env"
    secret.write_text(f'adapter = "{SECRET}"')
    meta = admit_folder(job).meta
    attack.change(job, Target(file=secret, url="http://127.0.0.1:9/none"))
    found = []
    if (job / "meta.json").exists():
        found.append(refused(lambda: admit_folder(job)))
        stored = json.loads((job / "meta.json").read_text())
        if attack.at_site and attack.name not in ("HOCON in meta", "YAML in meta"):
            found.append(refused(lambda: admit_app(app_archive(job), "app", stored)))
    else:
        with pytest.raises(FedpeftError):
            admit_folder(job)
    found.append(refused(lambda: admit_submission(job_archive(job), "small")))
    for refusal in found:
        assert SECRET not in str(refusal)
        assert refusal.public == AdmissionError("", reason=refusal.reason, setting=refusal.setting).public
        assert not any(text in refusal.public for text in (VARIABLE, "127.0.0.1", str(tmp_path)))
    assert meta


def changed(files, name, edit):
    content = json.loads(files[name])
    edit(content)
    return {**files, name: json.dumps(content)}


NESTED = {"path": "nvflare.app_common.np.np_trainer.NPTrainer", "args": {}}


def arguments(config):
    """Of the executor or the controller."""
    (entry,) = config["executors"] if "executors" in config else config["workflows"]
    return entry.get("executor", entry)["args"]


@pytest.mark.parametrize(
    ("name", "edit", "reason"),
    [
        (CLIENT, lambda c: c.update(handlers=[]), "shape"),
        (CLIENT, lambda c: c.update(executors=[]), "shape"),
        (CLIENT, lambda c: c.update(executors=[3]), "shape"),
        (CLIENT, lambda c: c.update(format_version=True), "shape"),
        (CLIENT, lambda c: c.update(get_task_timeout="60"), "setting"),
        (CLIENT, lambda c: c.update(get_task_timeout=0), "setting"),
        (CLIENT, lambda c: c.update(get_task_timeout=1e9), "setting"),
        (SERVER, lambda c: c.update(submit_task_result_timeout=True), "setting"),
        (SERVER, lambda c: c["server"].update(task_request_interval=1e-9), "setting"),
        (SERVER, lambda c: c["server"].update(task_request_interval=1e6), "setting"),
        (SERVER, lambda c: arguments(c)["federation"].update(round_timeout=10**18), "setting"),
        (SERVER, lambda c: arguments(c)["federation"].update(resume_from="../.."), "setting"),
        (SERVER, lambda c: arguments(c)["federation"]["sites"].append("slake"), "setting"),
        (SERVER, lambda c: arguments(c)["federation"]["sites"].append("elsewhere"), "setting"),
        (SERVER, lambda c: arguments(c)["federation"].update(quorum=99), "setting"),
        (SERVER, lambda c: arguments(c).update(job="own\nother"), "shape"),
        (SERVER, lambda c: arguments(c).update(job="j" * 201), "shape"),
        (SERVER, lambda c: arguments(c).update(job=" "), "shape"),
        (SERVER, lambda c: arguments(c).pop("federation"), "setting"),
        (SERVER, lambda c: arguments(c)["training"].update(rounds=10**9), "setting"),
        (CLIENT, lambda c: arguments(c)["training"].update(learning_rate=0.5), "setting"),
        (CLIENT, lambda c: arguments(c)["data"].update(train_size=-1), "setting"),
        (CLIENT, lambda c: arguments(c)["data"].update(unheard_of=1), "setting"),
        (CLIENT, lambda c: arguments(c)["data"].update(sites={"slake": {"seed": "x"}}), "setting"),
        (CLIENT, lambda c: arguments(c)["data"].update(sites=[]), "setting"),
        (CLIENT, lambda c: arguments(c)["backbone"].update(text_length=0), "setting"),
        (CLIENT, lambda c: arguments(c)["backbone"].update(sites={"slake": {"name": None}}), "setting"),
        (CLIENT, lambda c: arguments(c).pop("backbone"), "setting"),
        (CLIENT, lambda c: arguments(c)["data"].update(sites={"slake": NESTED}), "shape"),
        (
            CLIENT,
            lambda c: arguments(c)["data"].update(sites={"slake": {"window": [[{"class_path": "a"}]]}}),
            "shape",
        ),
        (CLIENT, lambda c: arguments(c)["data"].update(sites={"slake": {"columns": {"name": "FedAvg"}}}), "shape"),
        (SERVER, lambda c: arguments(c)["method"].update(settings={"houlsby": {"x": NESTED}}), "shape"),
        (SERVER, lambda c: arguments(c)["schedule"].update(score_settings={"deep": [NESTED]}), "shape"),
        (SERVER, lambda c: c["components"][1]["args"]["method"].update(probe_samples=9), "setting"),
        (CLIENT, lambda c: c["executors"][0].update(tasks=["*"]), "shape"),
        (CLIENT, lambda c: c["executors"].append(c["executors"][0]), "shape"),
        (CLIENT, lambda c: c["executors"][0]["executor"].update(path="subprocess.Popen"), "class"),
        (CLIENT, lambda c: c["executors"][0]["executor"].update(path="fedpeft.cli.main"), "class"),
        (CLIENT, lambda c: c["executors"][0]["executor"].update(path=["a"]), "shape"),
        (CLIENT, lambda c: c["executors"][0]["executor"].update(disabled=False), "shape"),
        (CLIENT, lambda c: c["executors"][0]["executor"].update(args=[]), "shape"),
        (CLIENT, lambda c: arguments(c).update(class_attributes={}), "shape"),
        (CLIENT, lambda c: arguments(c).update(data=3), "shape"),
        (CLIENT, lambda c: arguments(c)["data"].update(path="nvflare.x.Y", args={}), "shape"),
        (CLIENT, lambda c: arguments(c)["data"].update(dataset="}x}"), "variable"),
        (CLIENT, lambda c: arguments(c)["data"].update(dataset="a\x1b[2Jb"), "text"),
        (CLIENT, lambda c: arguments(c)["data"].update(dataset="x" * 5000), "text"),
        (CLIENT, lambda c: arguments(c)["data"].update({"a\nb": 1}), "text"),
        (CLIENT, lambda c: c["components"].append({"id": "a", "path": SERVER, "args": {}}), "class"),
        (
            CLIENT,
            lambda c: c["components"].append(
                {"id": "log", "path": "nvflare.app_common.logging.job_log_streamer.JobLogStreamer", "args": {}}
            ),
            "class",
        ),
        (SERVER, lambda c: c["server"].update(heart_beat_timeout=1), "shape"),
        (SERVER, lambda c: c["workflows"][0].update(path="nvflare.app_common.workflows.fedavg.FedAvg"), "class"),
        (SERVER, lambda c: c["workflows"][0]["args"].update(job={}), "shape"),
        (SERVER, lambda c: c.update(task_result_filters=[{"tasks": ["train"], "filters": []}]), "shape"),
        (META, lambda c: c.update(launcher_spec={}), "meta"),
        (META, lambda c: c.update(job_id="0"), "meta"),
        (META, lambda c: c.update(scope="other"), "meta"),
        (META, lambda c: c.update(stats_pool_config={}), "meta"),
        (META, lambda c: c.update(byoc=True), "meta"),
        (META, lambda c: c.update(name=3), "meta"),
        (META, lambda c: c.update(name="own\nother"), "meta"),
        (META, lambda c: c.update(min_clients=99), "meta"),
        (META, lambda c: c.update(min_clients="1"), "meta"),
        (META, lambda c: c.update(deploy_map={"app": ["@ALL"]}), "meta"),
        (META, lambda c: c.update(deploy_map={"app": ["slake", "vqa-rad"]}), "meta"),
        (META, lambda c: c.update(deploy_map={"app": ["server", "slake", "slake"]}), "meta"),
        (META, lambda c: c.update(deploy_map={"app": ["server", {"sites": ["slake"]}]}), "meta"),
        (META, lambda c: c.update(deploy_map={"app": ["server", "../slake"]}), "meta"),
        (META, lambda c: c.update(deploy_map={"app": ["server", "vqa.rad"]}), "meta"),
        (META, lambda c: c.update(deploy_map={"app": ["server", "slake"], "b": ["vqa-rad"]}), "meta"),
        (META, lambda c: c.update(resource_spec={"slake": {"docker": {"image": "x"}}}), "meta"),
        (META, lambda c: c.update(resource_spec={"slake": {"num_of_gpus": -1}}), "meta"),
        (META, lambda c: c.update(resource_spec={"slake": {"mem_per_gpu_in_GiB": 40}}), "meta"),
        (META, lambda c: c.pop("deploy_map"), "meta"),
    ],
)
def test_what_no_job_has_is_refused(files, name, edit, reason):
    assert refused(lambda: admit_submission(packed(changed(files, name, edit)), "small")).reason == reason


@pytest.mark.parametrize(
    ("section", "own", "where"),
    [
        ("data", {"dataset": "of-a-site", "seed": 1}, ""),
        ("data", {"dataset": "of-a-site", "own": 1}, "data.own"),
        ("data", {"dataset": "of-a-site", "seed": "1"}, "data.seed"),
        ("data", {"sites": {"slake": {"dataset": "of-a-site", "own": 1}}}, "data.own"),
        ("backbone", {"name": "of-a-site", "text_length": 12}, ""),
        ("backbone", {"name": "of-a-site", "own": 1}, "backbone.own"),
        ("backbone", {"sites": {"slake": {"name": "of-a-site", "text_length": 4.5}}}, "backbone.text_length"),
    ],
)
def test_of_a_plugin_that_sites_may_have_the_settings_are_checked_alone(files, section, own, where):
    plugged = packed(changed(files, CLIENT, lambda c: arguments(c)[section].update(own)))
    if where:
        refusal = refused(lambda: admit_submission(plugged, "small"))
        assert (refusal.reason, refusal.setting) == ("setting", where)
    else:
        admit_submission(plugged, "small")


def test_what_others_are_told_names_the_setting_and_not_its_value(files):
    edited = changed(files, SERVER, lambda c: arguments(c)["federation"].update(round_timeout=10**18))
    refusal = refused(lambda: admit_submission(packed(edited), "small"))
    assert "federation.round_timeout" in refusal.public
    assert "it must be at most 10,000,000" in str(refusal)
    assert str(10**18) not in refusal.public


class Scanner(ComponentBuilder):
    """FLARE's own, with its table of classes."""

    def get_module_scanner(self):
        return ModuleScanner(["nvflare"], ["apis", "app_common", "widgets"])


KEYS = st.sampled_from(["path", "class_path", "name", "config_type", "args", "sites", "slake"])
TEXTS = st.sampled_from(["component", "dict", "FedAvg", "NPTrainer", "houlsby", "nvflare.a.B", "", "plain"])
VALUES = st.recursive(TEXTS, lambda one: st.lists(one, max_size=2) | st.dictionaries(KEYS, one, max_size=3))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(value=VALUES, place=st.sampled_from(["data", "backbone", "method", "training", "schedule"]))
def test_nothing_is_admitted_that_flares_scanner_takes_for_a_component(value, place):
    client = {"executors": [{"tasks": ["hello", "score", "train"], "executor": {"path": EXECUTOR, "args": {}}}]}
    client |= {"format_version": 2, "task_data_filters": [], "task_result_filters": [], "components": []}
    arguments(client)[place] = {"inner": value}
    if outcome(lambda: admit_configuration("client", client, "file.json")) == ADMITTED:
        assert not list(components(value))


def components(value):
    """What FLARE's scanner would find in a value."""
    if isinstance(value, dict) and Scanner().is_authorizable_component_config(value):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from components(inner)


def test_flares_scanner_finds_what_this_test_means():
    assert list(components([{"path": "nvflare.a.B"}, {"name": "FedAvg"}, {"sites": {"class_path": "a.B"}}]))
    assert all(name[0].isupper() for name in create_classes_table_static())


def test_gpus_may_be_asked_for(files):
    spec = {"slake": {"num_of_gpus": 1, "mem_per_gpu_in_GiB": 40}}
    assert admit_submission(packed(changed(files, META, lambda c: c.update(resource_spec=spec))), "small")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1, "a": 2}', "json"),
        ('{"a": {"b": 1, "b": 1}}', "json"),
        ('{"a": NaN}', "json"),
        ('{"a": -Infinity}', "json"),
        ('{"a": 1e999}', "json"),
        ('{"a": ' + "1" * 30 + "}", "json"),
        ('{"a": ' + "1" * 9000 + "}", "json"),
        ("[]", "json"),
        ("3", "json"),
        ("", "json"),
        ("\ufeff{}", "json"),
        ('{"a": 1} // comment', "json"),
        (b'{"a": "\xff"}', "json"),
        ('{"a": "\\ud800"}', "text"),
        ('{"a": ' * 30 + "1" + "}" * 30, "limit"),
        ('{"a": ' * 90_000 + "1" + "}" * 90_000, "limit"),
        ('{"a": "' + "x" * MAX_BYTES + '"}', "limit"),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_json_that_is_not_strict_is_refused(text, reason):
    data = text if isinstance(text, bytes) else text.encode()
    assert refused(lambda: parse_json(data, "file.json")).reason == reason


def link(name):
    entry = zipfile.ZipInfo(name)
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return entry


@pytest.mark.parametrize(
    "entry",
    [
        "small/app/config/config_fed_client.conf",
        "small/app/config/config_fed_client.json.default",
        "small/app/config/more/config_fed_client.yml",
        "small/app/custom/own.py",
        "small/app/custom/",
        "small/meta.yaml",
        "other/meta.json",
        "../meta.json",
        "/etc/passwd",
        "small/../meta.json",
        "small\\meta.json",
        "small/META.JSON",
    ],
)
def test_an_archive_with_anything_else_is_refused(files, entry):
    assert refused(lambda: admit_submission(packed(files, extra=[(entry, "")]), "small")).reason == "file"


def bomb(files):
    return packed({**files, META: " " * (MAX_BYTES + 1) + files[META]})


def lying(files):
    """A bomb that declares a small size, in the archive's directory and before the data."""
    data = bytearray(bomb(files))
    size = struct.pack("<I", len(files[META]) + MAX_BYTES + 1)
    return bytes(data).replace(size, struct.pack("<I", 100))


def encrypted(files):
    data = bytearray(packed(files))
    for mark, at in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        data[data.index(mark) + at] |= 1
    return bytes(data)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    "archive",
    [
        bomb,
        lying,
        encrypted,
        lambda files: packed(files, kind=zipfile.ZIP_LZMA),
        lambda files: packed({META: files[META]}),
        lambda files: packed(files, extra=[(link("small/.__nvfl_sig.json"), "/etc/passwd")]),
        lambda files: packed(files, extra=[("small/.__nvfl_sig.json", " " * (MAX_BYTES + 1))]),
        lambda files: packed(files, extra=[("small/meta.json\0.txt", "{}")]),
        lambda files: packed(files, extra=[(f"small/{n}", "") for n in range(40)]),
        lambda files: packed(files) + b"\0" * (5 << 20),
        lambda files: packed(files)[:-30],
        lambda files: b"",
        lambda files: b"PK\x05\x06" + b"\0" * 18,
        lambda files: "not bytes",
    ],
)
def test_an_archive_that_is_not_plain_is_refused(files, archive):
    refused(lambda: admit_submission(archive(files), "small"))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_entry_that_is_there_twice_is_refused(files):
    twice = packed(files, extra=[("small/meta.json", "{}")])
    assert refused(lambda: admit_submission(twice, "small")).reason == "archive"


@pytest.mark.parametrize("folder", ["", "..", ".hidden", "a/b", "{$HOME}", "a\nb", "a\\b", None, 3])
def test_the_folder_has_a_plain_name(files, folder):
    assert refused(lambda: admit_submission(packed(files, folder=str(folder)), folder)).reason == "archive"


def stray(job):
    (job / "notes.txt").write_text("")


def linked(job):
    (job / CLIENT).rename(job.parent / "elsewhere.json")
    (job / CLIENT).symlink_to(job.parent / "elsewhere.json")


def pipe(job):
    (job / CLIENT).unlink()
    os.mkfifo(job / CLIENT)


def huge(job):
    (job / CLIENT).write_text(" " * (MAX_BYTES + 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (stray, "notes.txt does not belong to a job of fedpeft: remove it."),
        (linked, "config_fed_client.json does not belong"),
        (pipe, "config_fed_client.json does not belong"),
        (huge, "config_fed_client.json is too large"),
        (lambda job: (job / SERVER).unlink(), "lacks app/config/config_fed_server.json: write the job again"),
        (lambda job: shutil.rmtree(job / "app"), "app is missing"),
        (lambda job: (job / META).unlink(), "is not a FLARE job folder"),
    ],
)
def test_a_folder_is_checked_as_strictly(job, change, message):
    change(job)
    with pytest.raises(FedpeftError, match=message):
        admit_folder(job)


def test_the_simulators_own_classes_may_run_there_and_nowhere_else(files, job):
    text = changed(
        files, CLIENT, lambda c: c["executors"][0]["executor"].update(path="faulty_executor.FaultyExecutor")
    )[CLIENT]
    (job / CLIENT).write_text(text)
    assert admit_folder(job, classes=["faulty_executor."])
    assert admit_folder(job, classes=["faulty_executor.FaultyExecutor"])
    for classes in ((), ("faulty_executor",), ("faulty_executor.Fault",)):
        assert refused(lambda classes=classes: admit_folder(job, classes=classes)).reason == "class"


@pytest.mark.parametrize(
    ("app", "meta"),
    [("other", {}), ("app", None), ("app", []), ("app", {3: 4}), ("app", {"launcher_spec": {}}), (None, {})],
)
def test_what_a_server_says_beside_the_archive_is_checked(job, app, meta):
    good = json.loads((job / META).read_text())
    refused(lambda: admit_app(app_archive(job), app, {**good, **meta} if isinstance(meta, dict) else meta))


ADMITTED = "admitted"
DEPLOYED = {"deploy_map": {"app": ["server", "slake"]}}


def outcome(check):
    """The code of a refusal; any other exception is a failure."""
    try:
        check()
    except AdmissionError as error:
        return error.reason
    return ADMITTED


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_garbage_gives_a_refusal_and_nothing_else(data):
    assert outcome(lambda: admit_submission(data, "small")) in REASONS
    assert outcome(lambda: admit_app(data, "app", {"name": "a", "min_clients": 1, **DEPLOYED})) in REASONS
    assert outcome(lambda: parse_json(data, "file.json")) in (*REASONS, ADMITTED)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_value_in_any_place_gives_a_refusal_or_a_job(data):
    committed = ROOT / "jobs" / "fedpia_task1"
    contents = {name: json.loads((committed / name).read_text()) for name in FILES}
    place = contents[data.draw(st.sampled_from(FILES))]
    while True:
        names = list(place) if isinstance(place, dict) else list(range(len(place)))
        name = data.draw(st.sampled_from(names))
        if not isinstance(place[name], (dict, list)) or not place[name] or data.draw(st.booleans()):
            break
        place = place[name]
    place[name] = data.draw(JSON)
    archive = packed({name: json.dumps(content) for name, content in contents.items()})
    assert outcome(lambda: admit_submission(archive, "small")) in (*REASONS, ADMITTED)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(place=st.integers(0, 5000), byte=st.integers(0, 255))
def test_a_changed_byte_gives_a_refusal_or_a_job(place, byte):
    data = bytearray(job_archive(ROOT / "jobs" / "fedpia_task1"))
    data[-1 - place % len(data)] = byte
    assert outcome(lambda: admit_submission(bytes(data), "fedpia_task1")) in (*REASONS, ADMITTED)


def test_a_brace_is_refused_when_the_job_is_composed(sections):
    with pytest.raises(FedpeftError, match=r"method.name is '\{\$DB_PASSWORD\}', and FLARE would read a brace"):
        sections('method.name="{$DB_PASSWORD}"')


def test_what_is_written_is_admitted(sections, tmp_path):
    write_job(tmp_path / "job", "a/b", sections("federation.quorum=2"))
    assert admit_folder(tmp_path / "job").meta["min_clients"] == 2
