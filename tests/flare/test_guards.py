# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What the components of a start-up kit change in FLARE: each job is checked before FLARE reads it."""

import json
import logging
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from nvflare.apis.workspace import Workspace
from nvflare.app_common.streamers.streamer_base import KEY_FILE_LOCATION
from nvflare.fuel.hci.server.hci import AdminServer
from nvflare.fuel.utils.config import ConfigFormat
from nvflare.fuel.utils.config_factory import ConfigFactory
from nvflare.private.fed.client import training_cmds
from nvflare.private.fed.client.client_engine import ClientEngine
from nvflare.private.fed.client.info_coll_cmd import ClientInfoProcessor
from nvflare.private.fed.client.shell_cmd import ShellCommandProcessor
from nvflare.private.fed.client.sys_cmd import ReportEnvProcessor
from nvflare.private.fed.server.job_cmds import CLONED_META_KEYS
from nvflare.private.fed.server.job_meta_validator import JobMetaValidator
from nvflare.private.fed.utils.app_deployer import AppDeployer
from nvflare.private.fed_json_config import FedJsonConfigurator

from fedpeft.core.errors import FedpeftError
from fedpeft.flare.admission_components import NOT_DEPLOYED, AdmittedAppDeployer, SubmissionGuard
from fedpeft.job.admission import BOOKKEEPING, META_KEYS
from fedpeft.job.strict_files import REASONS, AdmissionError, setting_names

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from hostile_jobs import CLIENT, VARIABLE, Target, app_archive, attacks, job_archive, listener  # noqa: E402

SECRET = "hospital-database-password"
AT_A_SITE = (
    (training_cmds, "unzip_all_from_bytes"),
    (ShellCommandProcessor, "process"),
    (ReportEnvProcessor, "process"),
    (ClientInfoProcessor, "process"),
    (ClientEngine, "delete_run"),
    (ClientEngine, "start_app"),
)
REPLACED = (
    (JobMetaValidator, "validate"),
    (AdminServer, "_process_upload"),
    (FedJsonConfigurator, "_do_configure"),
    *AT_A_SITE,
)


@pytest.fixture
def unguarded(monkeypatch):
    """FLARE as it came, and again after the test."""
    monkeypatch.setattr(ConfigFactory, "_fmt2Loader", dict(ConfigFactory._fmt2Loader))
    for owner, name in REPLACED:
        monkeypatch.setattr(owner, name, getattr(owner, name))


@pytest.fixture
def site(unguarded):
    return AdmittedAppDeployer()


@pytest.fixture
def server(unguarded):
    return SubmissionGuard()


@pytest.fixture
def job(tmp_path):
    """A copy of a committed job."""
    return shutil.copytree(ROOT / "jobs" / "fedpia_task1", tmp_path / "fedpia_task1")


@pytest.fixture
def target(tmp_path, monkeypatch):
    """What attacks are after on this machine; nothing may ask for its address."""
    monkeypatch.setenv(VARIABLE, SECRET)
    file = tmp_path / "secret.env"
    file.write_text(f'adapter = "{SECRET}"')
    file.chmod(0o600)
    with listener() as (url, seen):
        yield Target(file=file, url=url)
    assert not seen


PUBLIC = {AdmissionError("", reason=reason).public for reason in REASONS}
PUBLIC |= {AdmissionError("", reason="setting", setting=name).public for name in setting_names()}


@pytest.mark.slow
def test_without_the_guards_flare_reads_a_url_when_a_job_is_submitted(job):
    attack = next(one for one in attacks() if one.name == "HOCON of the server")
    with listener() as (url, seen):
        attack.change(job, Target(file=job, url=url))
        JobMetaValidator().validate(job.name, job_archive(job))
        assert seen


@pytest.mark.parametrize("attack", attacks(), ids=lambda attack: attack.name)
def test_a_server_answers_an_attack_with_a_fixed_sentence(attack, server, job, target, caplog, tmp_path):
    attack.change(job, target)
    upload = tmp_path / "upload"
    upload.write_bytes(job_archive(job))
    caplog.set_level(logging.DEBUG)
    for data in (str(upload), upload.read_bytes()):
        valid, sentence, meta = JobMetaValidator().validate(job.name, data)
        assert not valid
        assert sentence in PUBLIC
        assert meta == {}
    assert "submitted job refused" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize("attack", [one for one in attacks() if one.at_site], ids=lambda attack: attack.name)
def test_a_site_answers_an_attack_with_a_fixed_sentence(attack, site, job, target, caplog):
    meta = json.loads((job / "meta.json").read_text())
    attack.change(job, target)
    if (job / "meta.json").exists():
        meta = json.loads((job / "meta.json").read_text())
    elif (job / CLIENT).exists():
        return  # only meta is changed, and a site gets it parsed
    caplog.set_level(logging.DEBUG)
    assert site.deploy(None, "id", meta, "app", app_archive(job), None) in PUBLIC
    assert "a job of the server is refused" in caplog.text
    assert SECRET not in caplog.text


def test_a_valid_job_passes_the_validator(server, job):
    valid, sentence, meta = JobMetaValidator().validate(job.name, job_archive(job))
    assert (valid, sentence, meta["name"]) == (True, "", "fedpia_task1")


def test_a_cloned_job_is_known_to_a_site():
    assert CLONED_META_KEYS - {*META_KEYS, *BOOKKEEPING} == {"mandatory_clients", "byoc"}  # no job of ours has these


def test_what_goes_wrong_at_a_site_names_nothing_of_it(site, job, tmp_path, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device", "/srv/hospital/secret")

    monkeypatch.setattr(AppDeployer, "deploy", full)
    meta = json.loads((job / "meta.json").read_text())
    (tmp_path / "startup").mkdir()
    (tmp_path / "local").mkdir()
    workspace = Workspace(str(tmp_path), site_name="site")
    assert site.deploy(workspace, str(uuid.uuid4()), meta, "app", app_archive(job), None) == NOT_DEPLOYED
    assert "/srv/hospital/secret" in caplog.text


@pytest.mark.parametrize("kind", [ConfigFormat.PYHOCON, ConfigFormat.OMEGACONF])
@pytest.mark.parametrize("guarded", ["site", "server"])
def test_other_formats_are_refused_in_a_sentence(kind, guarded, request):
    request.getfixturevalue(guarded)
    loader = ConfigFactory.get_config_loader(kind)
    for load in (loader.load_config, loader.load_config_from_str, loader.load_config_from_dict):
        with pytest.raises(ValueError, match="must be JSON"):
            load("a: 1")


@pytest.mark.parametrize(("role", "is_server"), [("client", False), ("server", True)])
@pytest.mark.parametrize("guarded", ["site", "server"])
def test_no_variable_is_expanded_in_a_jobs_process(role, is_server, guarded, job, target, request, capsys):
    def configure():
        FedJsonConfigurator(
            config_file_name=str(file), base_pkgs=["nvflare"], module_names=["apis"], is_server=is_server
        ).configure()

    file = job / "app" / "config" / f"config_fed_{role}.json"
    text = file.read_text()
    for value in ("phantom", "houlsby"):
        text = text.replace(f'"{value}"', f'"{{${VARIABLE}}}"')
    file.write_text(text)
    request.getfixturevalue(guarded)
    with pytest.raises(AdmissionError, match="FLARE would read a brace"):
        configure()
    assert SECRET not in capsys.readouterr().out


def test_a_bomb_is_not_unpacked(site, tmp_path, job):
    (tmp_path / "app").mkdir()
    training_cmds.unzip_all_from_bytes(app_archive(job), str(tmp_path / "app"))
    assert (tmp_path / "app" / "config" / "config_fed_client.json").exists()
    (job / "app" / "config" / "large.json").write_text(" " * (2 << 20))
    (tmp_path / "bomb").mkdir()
    with pytest.raises(AdmissionError, match="too large"):
        training_cmds.unzip_all_from_bytes(app_archive(job), str(tmp_path / "bomb"))
    assert not list((tmp_path / "bomb").iterdir())


def test_an_upload_is_removed_whatever_becomes_of_it(server, tmp_path):
    class Broken(AdminServer):
        def __init__(self):
            pass

    upload = tmp_path / "upload"
    upload.write_bytes(b"zip")
    with pytest.raises(AttributeError):  # it has no logger
        Broken()._process_upload({KEY_FILE_LOCATION: str(upload)}, None)
    assert not upload.exists()


@pytest.mark.parametrize(("owner", "name"), REPLACED)
def test_another_flare_does_not_start(unguarded, owner, name, monkeypatch):
    monkeypatch.setattr(owner, name, None)
    component = AdmittedAppDeployer if (owner, name) in AT_A_SITE else SubmissionGuard
    with pytest.raises(FedpeftError, match=f"FLARE has no .*{name}"):
        component()


def test_guards_are_set_once(site, server):
    before = [getattr(owner, name) for owner, name in REPLACED]
    SubmissionGuard()
    AdmittedAppDeployer()
    assert [getattr(owner, name) for owner, name in REPLACED] == before


@pytest.mark.slow
def test_the_first_submission_waits_for_no_import_of_torch():
    """FLARE's client gives up after five seconds."""
    code = (
        "import sys; from pathlib import Path; from fedpeft.flare.admission_components import SubmissionGuard; "
        "from fedpeft.job.admission import admit_folder; "
        "before = 'torch' in sys.modules; SubmissionGuard(); loaded = {*sys.modules}; "
        f"admit_folder(Path({str(ROOT / 'jobs' / 'fedpia_task1')!r})); "
        "print(before, 'torch' in loaded, len({*sys.modules} - loaded) < 100)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "True"]
