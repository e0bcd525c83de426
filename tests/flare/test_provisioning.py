# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What the committed project writes into the start-up kits, and that its page names each line to change."""

import importlib
import json
import re
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from grids import each
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import Job, JobMetaKey
from nvflare.app_common.job_schedulers.job_scheduler import SCHEDULE_RESULT_NO_RESOURCE, DefaultJobScheduler
from nvflare.lighter.provision import prepare_builders, prepare_project
from nvflare.lighter.provisioner import Provisioner

from fedpeft.core.errors import FedpeftError
from fedpeft.core.workspace import read_kit, resources
from fedpeft.doctor import policies
from fedpeft.doctor.context import PASS
from fedpeft.flare import relay
from fedpeft.flare.job_process import RestartingLauncher
from fedpeft.flare.job_store import JobStore
from fedpeft.flare.policy import default_scope
from fedpeft.flare.provisioning import PolicyBuilder, secure_relays
from fedpeft.flare.returning_sites import ReturningSites
from fedpeft.flare.stale_jobs import StaleJobs
from fedpeft.job.composing import compose
from fedpeft.job.settings import SiteJob
from fedpeft.job.site_policy import PrivacySettings, SitePolicy, read_policy
from fedpeft.protocol.job_against_policy import refusals

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "provisioning" / "project.yml"
VISION = PROJECT.with_name("project_vision.yml")
DAY = 24 * 60 * 60
PAGE = ROOT / "docs" / "consortium.md"
SITES = ["slake", "vqa-rad", "vqa-med-2019", "vqa-med-2020", "vqa-med-2021"]


def provision(folder, project=PROJECT, **settings):
    described = yaml.safe_load(project.read_text())
    ours = next(b for b in described["builders"] if b["path"].startswith("fedpeft."))
    ours["args"] |= settings
    Provisioner(str(folder), prepare_builders(described)).provision(prepare_project(described))
    return folder / described["name"] / "prod_00"


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    return provision(tmp_path_factory.mktemp("project"))


@pytest.mark.parametrize("name", ["server", *SITES, "lead@hospital.org"])
def test_no_start_up_script_imports_from_the_folder_in_which_it_is_called(kits, name):
    (kit,) = kits.glob(f"{name.partition('@')[0]}*") if "@" in name else [kits / name]
    scripts = [file.read_text() for file in sorted((kit / "startup").glob("*.sh"))]
    assert any("python3 " in script for script in scripts)
    for script in scripts:
        assert script.splitlines()[1] == "export PYTHONSAFEPATH=1"
        assert ":$PYTHONPATH" not in script.replace("+:$PYTHONPATH", "")


COMPONENTS_OF_KITS = (  # in start-up kits that exist already: these paths must lead to the same classes for good
    "fedpeft.flare.admission_components.AdmittedAppDeployer",
    "fedpeft.flare.admission_components.SubmissionGuard",
    "fedpeft.flare.aggregator.PIAAggregator",
    "fedpeft.flare.controller.FederationController",
    "fedpeft.flare.executor.SiteExecutor",
    "fedpeft.flare.filters.AdapterOnly",
    "fedpeft.flare.filters.RememberOrder",
    "fedpeft.flare.job_process.RestartingLauncher",
    "fedpeft.flare.job_store.JobStore",
    "fedpeft.flare.persistor.SafetensorsPersistor",
    "fedpeft.flare.returning_sites.ReturningSites",
    "fedpeft.flare.stale_jobs.StaleJobs",
)


@each("path", [*COMPONENTS_OF_KITS, "fedpeft.flare.provisioning.PolicyBuilder"])
def test_what_existing_kits_and_projects_name_is_importable(path):
    module, _, name = path.rpartition(".")
    assert isinstance(getattr(importlib.import_module(module), name), type)


def test_kits_name_nothing_else_of_fedpeft(kits):
    texts = [file.read_text() for file in kits.glob("*/*/*") if file.suffix in (".json", ".default", ".sh", ".yml")]
    assert {path for text in texts for path in re.findall(r"fedpeft\.flare\.[\w.]+", text)} == set(COMPONENTS_OF_KITS)


def read(kits, name, file):
    return json.loads((kits / name / "local" / file).read_text())


@pytest.mark.parametrize("name", ["server", *SITES])
def test_every_participant_enforces_the_list_of_classes(kits, name):
    settings = read(kits, name, "resources.json.default")
    assert {key: settings[key] for key in resources()} == resources()
    assert not (kits / name / "local" / "resources.json").exists()


@pytest.mark.parametrize("name", ["server", *SITES])
def test_every_participant_checks_a_job_before_flare_reads_it(kits, name):
    kit = read_kit(kits / name)
    assert policies.component(kit.resources(), kit).verdict == PASS
    ids = [entry["id"] for entry in kit.resources()["components"]]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("name", ["server", *SITES])
def test_nobody_may_bring_code(kits, name):
    permissions = read(kits, name, "authorization.json.default")["permissions"]
    assert set(permissions) == {"project_admin", "org_admin", "lead", "member"}
    for rights in permissions.values():
        assert isinstance(rights, dict)  # a bare "any" would include byoc
        assert rights.get("byoc", "none") == "none"
        assert rights.get("server-predeployed-flwr", "none") == "none"


@pytest.mark.parametrize("name", ["server", *SITES])
def test_whoever_is_of_the_servers_organization_operates_no_server_and_no_other_site(kits, name):
    """Whether a site may be disabled is asked of the server alone, whose organization FLARE compares with theirs."""
    permissions = read(kits, name, "authorization.json.default")["permissions"]
    operate = {role: rights.get("operate", "none") for role, rights in permissions.items()}
    others = "none" if name == "server" else "o:site"
    assert operate == {"project_admin": "any", "org_admin": others, "lead": others, "member": "none"}


@pytest.mark.parametrize("name", SITES)
def test_no_log_leaves_a_site_and_every_reply_is_filtered(kits, name):
    settings = read(kits, name, "resources.json.default")
    assert settings["allow_log_streaming"] is False
    assert "site_log_streamer" not in [component["id"] for component in settings["components"]]
    assert read(kits, name, "privacy.json") == default_scope()


@pytest.mark.slow
def test_the_project_may_clip_and_noise_every_reply(tmp_path):
    kits = provision(tmp_path, privacy={"clip": 1, "noise": 2})
    assert read(kits, "slake", "privacy.json") == default_scope(PrivacySettings(clip=1, noise=2))


@pytest.mark.parametrize("name", SITES)
def test_every_site_has_a_site_policy_with_safe_defaults(kits, name):
    assert read_policy(kits / name / "local" / "fedpeft.json") == SitePolicy()
    assert set(read(kits, name, "fedpeft.json")) == {field.name for field in fields(SitePolicy)}


@pytest.mark.slow
def test_the_project_may_set_values_of_all_sites_and_of_one(tmp_path):
    own = {"slake": {"roots": {"slake": "/srv/slake"}, "max_rounds": 9}}
    kits = provision(tmp_path, site_policy={"max_rounds": 7}, site_policies=own)
    slake = SitePolicy(roots={"slake": "/srv/slake"}, max_rounds=9)
    assert read_policy(kits / "slake" / "local" / "fedpeft.json") == slake
    assert read_policy(kits / "vqa-rad" / "local" / "fedpeft.json") == SitePolicy(max_rounds=7)
    assert not (kits / "server" / "local" / "fedpeft.json").exists()


@pytest.mark.slow
def test_a_policy_of_an_unknown_site_is_refused(tmp_path, capsys):
    provision(tmp_path, site_policies={"slak": {}})
    assert "site_policies names 'slak', which is not a client of this project." in capsys.readouterr().err
    assert not (tmp_path / "fedpeft" / "prod_00").exists()


def test_the_server_stores_in_its_own_folder_and_admits_the_sites(kits):
    text = json.dumps(read(kits, "server", "resources.json.default"))
    assert "/var/lib/fedpeft/jobs" in text
    assert "/var/lib/fedpeft/snapshots" in text
    assert "/tmp" not in text
    assert '"max_num_clients": 100' in text
    assert '"max_jobs": 1' in text


def test_a_job_waits_for_its_sites_longer_than_flare_lets_it(kits):
    components = {c["id"]: c for c in read(kits, "server", "resources.json.default")["components"]}
    arguments = components["job_scheduler"]["args"]
    scheduler = DefaultJobScheduler(**arguments)
    assert scheduler.max_schedule_count * scheduler.max_schedule_interval > 60 * DAY
    scheduler._exceed_max_jobs = lambda fl_ctx: False
    scheduler._try_job = lambda job, context: (SCHEDULE_RESULT_NO_RESOURCE, None, "a site is away")
    context = FLContext()
    context.set_prop(
        ReservedKey.ENGINE, SimpleNamespace(new_context=lambda: nullcontext(context)), private=True, sticky=False
    )
    tried: list[Job] = []
    waiting = Job("waiting", {}, {}, {JobMetaKey.SCHEDULE_COUNT.value: arguments["max_schedule_count"] - 1})
    scheduler._do_schedule_job([waiting, Job("next", {}, {}, {})], context, tried, [])
    assert [job.job_id for job in tried] == ["waiting", "next"]


def test_the_server_keeps_outcomes_finishes_stale_jobs_and_takes_sites_back(kits):
    components = {c["id"]: c["path"] for c in read(kits, "server", "resources.json.default")["components"]}
    ours = {"job_manager": JobStore, "stale_jobs": StaleJobs, "returning_sites": ReturningSites}
    for name, kind in ours.items():
        assert components[name] == f"{kind.__module__}.{kind.__name__}"
    assert "log_receiver" not in components


@pytest.mark.parametrize("name", SITES)
def test_a_site_starts_a_killed_process_again(kits, name):
    components = {c["id"]: c["path"] for c in read(kits, name, "resources.json.default")["components"]}
    assert components["process_launcher"] == f"{RestartingLauncher.__module__}.{RestartingLauncher.__name__}"


LISTENS = {"default_host": "relay.north.org", "host_names": ["10.0.0.7"], "port": 8102}
RELAY = {"name": "relay", "type": "relay", "org": "region", "listening_host": LISTENS}


def with_relay(folder, *, connects):
    described = yaml.safe_load(PROJECT.read_text())
    described["participants"].append(RELAY)
    next(p for p in described["participants"] if p["name"] == "slake")["connect_to"] = connects
    file = folder / "relays.yml"
    file.write_text(yaml.safe_dump(described))
    return provision(folder, file)


@pytest.mark.slow
def test_both_legs_of_a_relay_have_certificates_on_both_sides(tmp_path):
    kits = with_relay(tmp_path, connects={"name": "relay"})
    listens = read(kits, "relay", "comm_config.json")["internal"]
    assert (listens["scheme"], listens["resources"]["connection_security"]) == ("http", "mtls")
    upward = json.loads((kits / "relay" / "startup" / "fed_relay.json").read_text())["connect_to"]
    assert (upward["fqcn"], upward["connection_security"]) == ("server", "mtls")
    connects = read(kits, "slake", "relay__resources.json")["relay_config"]
    assert (connects["scheme"], connects["address"]) == ("http", "relay.north.org:8102")
    assert connects["connection_security"] == "mtls"
    assert not (kits / "vqa-rad" / "local" / "relay__resources.json").exists()


@pytest.mark.slow
def test_a_relay_starts_with_its_guards_and_imports_nothing_from_the_current_folder(tmp_path):
    kits = with_relay(tmp_path, connects={"name": "relay"})
    script = (kits / "relay" / "startup" / "sub_start.sh").read_text()
    assert f"-m {relay.__name__} " in script
    assert relay.FLARES not in script
    assert script.splitlines()[1] == "export PYTHONSAFEPATH=1"


@pytest.mark.parametrize(
    ("changed", "connects", "message"),
    [
        ({}, "relay", "slake connects to 'relay', which FLARE reads as a host: write {name: relay} for the relay."),
        ({}, {"name": "relais"}, "slake connects to 'relais', which is no relay of this project."),
        ({}, {"name": "relay", "connection_security": "tls"}, "slake has connection_security='tls' at a relay"),
        ({"listening_host": LISTENS | {"connection_security": "clear"}}, None, "relay has connection_security='clear'"),
        ({"listening_host": LISTENS | {"scheme": "tcp"}}, None, "relay has scheme='tcp' at a relay"),
        ({"listening_host": "relay.north.org"}, None, "give it default_host, host_names and port"),
        ({"connect_to": {"name": "relay-2"}}, None, "relay connects to 'relay-2', not to the server."),
    ],
)
def test_a_relay_without_certificates_or_a_place_is_refused(changed, connects, message):
    described = yaml.safe_load(PROJECT.read_text())
    described["participants"].append(RELAY | changed)
    if connects:
        next(p for p in described["participants"] if p["name"] == "slake")["connect_to"] = connects
    with pytest.raises(FedpeftError, match=re.escape(message)):
        secure_relays(prepare_project(described))


@pytest.mark.parametrize("relays", [[], [RELAY]])
def test_with_relays_few_jobs_run_at_a_time(relays):
    described = yaml.safe_load(PROJECT.read_text())
    described["participants"] += relays
    project = prepare_project(described)
    PolicyBuilder(storage="/srv", max_jobs=8).initialize(project, None)
    refused = pytest.raises(FedpeftError, match="max_jobs is 9, and with relays at most 8 jobs run at a time: lower")
    with refused if relays else nullcontext():
        PolicyBuilder(storage="/srv", max_jobs=9).initialize(project, None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"storage": "jobs"}, "storage is 'jobs', it must be an absolute path"),
        ({"storage": "/srv", "max_jobs": 0}, "max_jobs is 0"),
        ({"storage": "/srv", "privacy": {"clip": -1, "noise": 0}}, "clip"),
        ({"storage": "/srv", "site_policy": {"max_round": 1}}, "did you mean 'max_rounds'"),
        ({"storage": "/srv", "site_policies": {"slake": {"max_rounds": 0}}}, "max_rounds is 0"),
    ],
)
def test_an_impossible_setting_is_refused_with_the_reason(settings, message):
    with pytest.raises(FedpeftError, match=re.escape(message)):
        PolicyBuilder(**settings)


@pytest.mark.slow
def test_the_sites_of_the_vision_project_admit_the_vision_jobs(tmp_path):
    kits = provision(tmp_path, VISION)
    for job in ("vit_fed_isic2019", "paper/vit_fed_isic2019"):
        sections = compose(ROOT / "app_configs", job)
        for site in sections["federation"]["sites"]:
            policy = read_policy(kits / site / "local" / "fedpeft.json")
            assert list(refusals(policy, SiteJob.from_sections(sections, site=site))) == []
    own = ["data.partition=natural", "data.parts=1"]  # of hospitals with images of their own
    for job in ("vit_ham10000", "paper/vit_ham10000", "vit_caltech101", "vit_flowers102"):
        sections = compose(ROOT / "app_configs", job, own)
        assert list(refusals(policy, SiteJob.from_sections(sections, site="client-1"))) == []


def test_the_vision_project_differs_in_its_sites_and_what_they_allow():
    default, vision = (yaml.safe_load(file.read_text()) for file in (PROJECT, VISION))
    for described in (default, vision):
        described["participants"] = [p for p in described["participants"] if p.get("role") != "org_admin"]
        described["participants"] = [p for p in described["participants"] if p["type"] != "client"]
        del described["name"], described["description"]
    (ours,) = (builder["args"] for builder in vision["builders"] if builder["path"].startswith("fedpeft."))
    assert ours.pop("site_policy") == {"head": True, "validation_fraction": 0}
    assert vision == default


@pytest.mark.parametrize("project", [PROJECT, VISION], ids=lambda path: path.name)
def test_the_page_names_every_line_that_must_be_changed(project):
    lines = [line.partition("# CHANGE")[0].strip() for line in project.read_text().splitlines() if "CHANGE" in line]
    keys = {line.partition(":")[0] for line in lines if ":" in line and not line.startswith("#")}
    assert keys == {"name", "org", "default_host", "host_names", "fed_learn_port", "storage"}
    table = PAGE.read_text().partition("change its marked lines")[2].partition("Leave the builders")[0]
    assert not [key for key in keys if f"`{key}`" not in table]
