# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Jobs that would read a machine's environment, files or network: nothing of server or site comes out."""

import json
import shutil
import sys
import uuid
from contextlib import suppress
from pathlib import Path

import pytest
from kits import LEAD, ROOT, SCRATCH, SECRET, SITES, wait_until
from nvflare.lighter.utils import load_private_key_file, sign_folders

from fedpeft.job.strict_files import REASONS, AdmissionError, setting_names

sys.path.insert(0, str(ROOT / "benchmarks"))

from hostile_jobs import Target, attacks, job_archive, listener

pytestmark = pytest.mark.consortium
PUBLIC = {AdmissionError("", reason=reason).public for reason in REASONS}
PUBLIC |= {AdmissionError("", reason="setting", setting=name).public for name in setting_names()}


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A file of mode 600 and an address on the loopback, which no one may ask for."""
    file = tmp_path_factory.mktemp("private") / "secret.env"
    file.write_text(f'adapter = "{SECRET}"')
    file.chmod(0o600)
    with listener() as (url, seen):
        yield Target(file=file, url=url)
    assert not seen


def hostile(small_job, attack, target, folder):
    job = shutil.copytree(small_job, folder / "small")
    attack.change(job, target)
    return job


def texts(*folders):
    """All that is in the files of some folders."""
    files = (file for folder in folders for file in folder.rglob("*") if file.is_file())
    return "".join(file.read_bytes().decode("utf-8", "replace") for file in files)


def uploads():
    """What lies in the server's temporary folder."""
    return {file for file in Path(SCRATCH.name).iterdir() if file.is_file() and _is_uuid(file.name)}


def _is_uuid(name):
    try:
        return str(uuid.UUID(name)) == name
    except ValueError:
        return False


@pytest.mark.parametrize("attack", attacks(), ids=lambda attack: attack.name)
def test_the_server_refuses_it_with_a_fixed_sentence(attack, federation, small_job, target, tmp_path):
    job = hostile(small_job, attack, target, tmp_path)
    known = {one["job_id"] for one in federation.lead.list_jobs()}
    before = uploads()
    with pytest.raises(Exception) as caught:  # noqa: PT011 - FLARE's exceptions share no class
        federation.lead.submit_job(str(job))
    assert any(sentence in str(caught.value) for sentence in PUBLIC)
    assert SECRET not in str(caught.value)
    assert {one["job_id"] for one in federation.lead.list_jobs()} == known
    assert uploads() <= before
    assert SECRET not in texts(federation.kits / "server", federation.kits.parents[1] / "storage")


def answered(meta):
    """The meta data of a job that has ended, once FLARE has added the sites' answers, which it does afterwards."""
    with suppress(ValueError):  # half written
        read = json.loads(meta.read_text())
        return read if "FINISHED" in read["status"] and read.get("job_deploy_detail") else None


STORED = ("variable in JSON", "HOCON includes a file", "HOCON includes a URL", "YAML with a variable", "a container")


@pytest.mark.parametrize("attack", [one for one in attacks() if one.name in STORED], ids=lambda attack: attack.name)
def test_a_site_refuses_what_its_server_did_not(attack, federation, small_job, target, tmp_path):
    """A job that lies in the server's store from before the server checked; FLARE finds it signed and valid."""
    job = hostile(small_job, attack, target, tmp_path)
    startup = federation.kits / LEAD / "startup"
    sign_folders(str(job), load_private_key_file(str(startup / "client.key")), str(startup / "client.crt"))
    stored = federation.kits.parents[1] / "storage" / "jobs" / str(uuid.uuid4())
    draft = stored.parents[1] / "draft"
    draft.mkdir()
    (draft / "data").write_bytes(job_archive(job))
    submitter = {"name": LEAD, "org": "coordinator", "role": "lead"}
    meta = {
        **json.loads((job / "meta.json").read_text()),
        **{f"submitter_{key}": value for key, value in submitter.items()},
        **{"job_id": stored.name, "job_folder_name": job.name, "study": "default", "status": "SUBMITTED"},
        **{"submit_time": 1.0, "submit_time_iso": "", "start_time": "", "duration": "N/A", "data_storage_format": 2},
    }
    (draft / "meta").write_text(json.dumps(meta))
    draft.rename(stored)

    ended = wait_until(lambda: answered(stored / "meta"))
    assert ended["status"] == "FINISHED:FAILED_TO_RUN"
    answers = ended["job_deploy_detail"]
    assert all(any(site in answer and "the job is not admitted (" in answer for answer in answers) for site in SITES)
    assert SECRET not in texts(federation.kits / "server", stored)
    for site in SITES:
        assert SECRET not in texts(federation.kits / site)
        assert not (federation.kits / site / stored.name / "log.txt").exists()  # no process of the job has started
