# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A provisioning Builder that writes a consortium's policies into every start-up kit."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nvflare.lighter.constants import ConnSecurity, PropKey, ProvFileName
from nvflare.lighter.entity import Participant, Project
from nvflare.lighter.spec import Builder, ProvisionContext

from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import write_json
from fedpeft.core.processes import SAFE_PATH
from fedpeft.core.settings import at_least, build
from fedpeft.core.workspace import GUARDS, PRIVACY, resources
from fedpeft.flare import relay as relay_module
from fedpeft.flare.policy import default_scope
from fedpeft.job.site_policy import FILE, PrivacySettings, SitePolicy, build_policy

JOB_STORE = "fedpeft.flare.job_store.JobStore"
MIN_CLIENTS = 100  # as FLARE has it
MAX_TRIES = 10_000  # to start a job: one in ten minutes, where FLARE gives up after 40 minutes
LAUNCHER = "fedpeft.flare.job_process.RestartingLauncher"
SERVER_COMPONENTS = (
    {"id": "stale_jobs", "path": "fedpeft.flare.stale_jobs.StaleJobs", "args": {}},
    {"id": "returning_sites", "path": "fedpeft.flare.returning_sites.ReturningSites", "args": {}},
)
RIGHTS = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate")
ROLES = {
    "project_admin": ("any", "any", "any", "any", "any", "any"),
    "org_admin": ("none", "none", "o:submitter", "o:submitter", "any", "o:site"),
    "lead": ("any", "n:submitter", "n:submitter", "n:submitter", "any", "o:site"),
}
SCHEME = "http"  # with TLS, as between server and sites
NO_CODE = dict.fromkeys(("shell_commands", "byoc", "server-predeployed-flwr"), "none")
PERMISSIONS = {
    **{role: {**dict(zip(RIGHTS, rights, strict=True)), **NO_CODE} for role, rights in ROLES.items()},
    "member": {"view": "any"},
}
# at the server "o:site" would let those of its organization stop it, and shut out any site of others' jobs
AT_SERVER = {role: {**rights, "operate": "none"} for role, rights in PERMISSIONS.items() if role != "project_admin"}


class PolicyBuilder(Builder):
    """Writes the policies of server and sites: jobs, classes, rights, filters, each site policy, and storage.

    It comes after FLARE's StaticFileBuilder and rewrites its files `*.default` in place: a participant that needs
    another policy adds a file without `.default`, which FLARE reads instead. (POC mode makes the server's
    `resources.json` from `resources.json.default`.)

    Args:
        storage: absolute path of the server's folder for jobs and their results; FLARE's default is shared by
            all servers of a machine and lost at a restart.
        max_jobs: jobs that run at the same time; with relays at most eight.
        privacy: every site's `PrivacySettings`; None: replies are checked, but neither clipped nor noised.
        site_policy: values of `SitePolicy` that replace its defaults in the file of every site.
        site_policies: by site, values that replace those.
    """

    def __init__(
        self,
        storage: str,
        max_jobs: int = 1,
        privacy: dict[str, Any] | None = None,
        site_policy: dict[str, Any] | None = None,
        site_policies: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        if not Path(storage).is_absolute():
            raise FedpeftError(f"storage is {storage!r}, it must be an absolute path on the server's machine.")
        at_least("max_jobs", max_jobs, 1)
        self._storage, self._max_jobs = Path(storage), max_jobs
        self._site_policy, self._site_policies = site_policy or {}, site_policies or {}
        for site in ("", *self._site_policies):
            self._policy_of(site)
        self._scope = default_scope(build(PrivacySettings, privacy, section="privacy") if privacy else None)

    def initialize(self, project: Project, ctx: ProvisionContext) -> None:
        """Require certificates on both sides of every connection with a relay, before FLARE writes its files."""
        if project.get_relays() and self._max_jobs > relay_module.MAX_JOBS:
            raise FedpeftError(
                f"max_jobs is {self._max_jobs}, and with relays at most {relay_module.MAX_JOBS} jobs run at a time: "
                f"lower it, or leave the relays out."
            )
        secure_relays(project)

    def build(self, project: Project, ctx: ProvisionContext) -> None:
        """Write the policies of the server and of every site."""
        sites = project.get_clients()
        if unknown := set(self._site_policies) - {site.name for site in sites}:
            raise FedpeftError(f"site_policies names {min(unknown)!r}, which is not a client of this project.")
        for participant in (project.get_server(), *sites):
            local = Path(ctx.get_local_dir(participant))
            file = local / ProvFileName.RESOURCES_JSON_DEFAULT
            settings = {**json.loads(file.read_text()), **resources()}
            if participant in sites:
                _keep_logs_at_the_site(settings)
                write_json(local / FILE, asdict(self._policy_of(participant.name)))
                _component_of(settings, "process_launcher")["path"] = LAUNCHER
            else:
                self._limit_the_server(settings, sites=len(sites))
            settings["components"].append(GUARDS["site" if participant in sites else "server"])
            write_json(file, settings)
            permissions = PERMISSIONS if participant in sites else PERMISSIONS | AT_SERVER
            rights = {"format_version": "1.0", "permissions": permissions}
            write_json(local / ProvFileName.AUTHORIZATION_JSON_DEFAULT, rights)
            write_json(local / PRIVACY, self._scope)
            (local / ProvFileName.PRIVACY_JSON_SAMPLE).unlink()
        for relay in project.get_relays():
            script = Path(ctx.get_kit_dir(relay)) / ProvFileName.SUB_START_SH
            if relay_module.FLARES not in script.read_text():
                raise FedpeftError("FLARE's relay has another start-up script: install the version in constraints.txt.")
            script.write_text(script.read_text().replace(relay_module.FLARES, relay_module.__name__))
        for participant in (project.get_server(), *project.get_relays(), *sites, *project.get_admins()):
            for script in sorted(Path(ctx.get_kit_dir(participant)).glob("*.sh")):
                script.write_text(_keep_imports_out_of_current_folder(script.read_text()))

    def _policy_of(self, site: str) -> SitePolicy:
        values = {**self._site_policy, **self._site_policies.get(site, {})}
        return build_policy(values, section="site_policy", source="project.yml")

    def _limit_the_server(self, settings: dict[str, Any], *, sites: int) -> None:
        settings["servers"][0]["max_num_clients"] = max(MIN_CLIENTS, 2 * sites)  # some may join later
        settings["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(self._storage / "snapshots")
        _component_of(settings, "job_manager")["args"]["uri_root"] = str(self._storage / "jobs")
        _component_of(settings, "job_scheduler")["args"] |= {
            "max_jobs": self._max_jobs,
            "max_schedule_count": MAX_TRIES,
            "min_schedule_interval": 10,  # seconds; FLARE doubles it with every try, to more than a float can hold
        }
        _component_of(settings, "job_manager")["path"] = JOB_STORE
        # it writes what a site streams to a file whose name the site chooses, and no site of a consortium streams logs
        settings["components"] = [c for c in settings["components"] if c["id"] != "log_receiver"]
        settings["components"] += SERVER_COMPONENTS


def secure_relays(project: Project) -> None:
    """Let relays and their sites connect by HTTPS with certificates on both sides.

    By default FLARE's relay listens without TLS, over another protocol than its sites use.
    """
    server, relays = project.get_server().name, {relay.name: relay for relay in project.get_relays()}
    for relay in relays.values():
        host = relay.get_prop(PropKey.LISTENING_HOST)
        if not isinstance(host, dict) or not isinstance(host.get(PropKey.PORT), int):
            raise FedpeftError(
                f"relay {relay.name} has listening_host {host!r:.80}: give it default_host, host_names and port."
            )
        relay.set_prop(PropKey.LISTENING_HOST, _require_certificates(host, relay.name, scheme=SCHEME))
        relay.set_prop(PropKey.CONNECT_TO, _require_certificates(_parent(relay) or {PropKey.NAME: server}, relay.name))
        if relay.get_connect_to().name != server:
            raise FedpeftError(f"relay {relay.name} connects to {relay.get_connect_to().name!r}, not to the server.")
    for site in project.get_clients():
        parent = _parent(site)
        if isinstance(name := site.get_prop(PropKey.CONNECT_TO), str) and name in relays:
            raise FedpeftError(
                f"{site.name} connects to {name!r}, which FLARE reads as a host: write {{name: {name}}} for the relay."
            )
        if parent and parent.get(PropKey.NAME, server) not in (server, *relays):
            raise FedpeftError(f"{site.name} connects to {parent[PropKey.NAME]!r}, which is no relay of this project.")
        if parent and parent.get(PropKey.NAME) in relays:
            site.set_prop(PropKey.CONNECT_TO, _require_certificates(parent, site.name))


def _parent(participant: Participant) -> dict[str, Any] | None:
    """Return where a participant connects to; FLARE reads a text as the server's address."""
    parent = participant.get_prop(PropKey.CONNECT_TO)
    return parent if isinstance(parent, dict) else None


def _require_certificates(connection: dict[str, Any], name: str, **settings: str) -> dict[str, Any]:
    """Return a connection's settings with certificates on both sides; refuse settings that contradict that."""
    required = {PropKey.CONN_SECURITY: ConnSecurity.MTLS, **settings}
    for key, value in required.items():
        if connection.get(key, value) != value:
            raise FedpeftError(f"{name} has {key}={connection[key]!r} at a relay: leave it out, it is {value!r}.")
    return {**connection, **required}


def _keep_imports_out_of_current_folder(script: str) -> str:
    """Return a start-up script whose Python processes import nothing from the current folder.

    FLARE's own script would end PYTHONPATH with a colon where that is not set, which means the current folder too.
    """
    begin, rest = script.split("\n", 1)
    return f"{begin}\nexport {SAFE_PATH}=1\n" + rest.replace(":$PYTHONPATH", "${PYTHONPATH:+:$PYTHONPATH}")


def _keep_logs_at_the_site(settings: dict[str, Any]) -> None:
    # by default FLARE sends every job's error log to the server, and an error may name files and records
    settings["allow_log_streaming"] = False
    settings["components"] = [c for c in settings["components"] if c["id"] != "site_log_streamer"]


def _component_of(settings: dict[str, Any], name: str) -> dict[str, Any]:
    return next(c for c in settings["components"] if c["id"] == name)
