# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Checks around functions of FLARE 2.9, which has no public hook before it parses a job.

FLARE's validator parses HOCON and YAML when a job is submitted, before any event, and HOCON reads files and URLs. The
components that call this are built when a process of a start-up kit starts, before it takes any message. If a
function is missing, the process does not start: a server or site that cannot check jobs must not run them.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvflare.app_common.streamers.file_streamer import FileStreamer
from nvflare.fuel.hci.server.hci import AdminServer
from nvflare.fuel.utils.config import ConfigFormat, ConfigLoader
from nvflare.fuel.utils.config_factory import ConfigFactory
from nvflare.private.fed.client import training_cmds
from nvflare.private.fed.server.job_meta_validator import JobMetaValidator
from nvflare.private.fed_json_config import FedJsonConfigurator

from fedpeft.core.errors import FedpeftError
from fedpeft.flare.function_guard import replace_function
from fedpeft.flare.job_failures import guard_job_failures
from fedpeft.flare.request_guards import guard_cell_requests, guard_job_requests, guard_requests
from fedpeft.job.admission import admit_configuration, admit_submission
from fedpeft.job.strict_files import MAX_ARCHIVE, AdmissionError, check_archive

logger = logging.getLogger(__name__)
NOT_CHECKED = "the job could not be checked; the server's log says why."


class RefusedFormat(ConfigLoader):
    """Replaces FLARE's loaders of HOCON and YAML: raises an error instead of parsing."""

    def load_config(self, file_path: str) -> None:
        self._refuse()

    def load_config_from_str(self, config_str: str) -> None:
        self._refuse()

    def load_config_from_dict(self, config_dict: dict) -> None:
        self._refuse()

    def _refuse(self) -> None:
        raise ValueError("a configuration must be JSON: HOCON and YAML are not read here.")


def guard_configurations() -> None:
    """In every process: refuse HOCON and YAML, and check a job's configuration before FLARE expands or builds it."""
    for kind in (ConfigFormat.PYHOCON, ConfigFormat.OMEGACONF):
        ConfigFactory._fmt2Loader[kind] = RefusedFormat(kind)
    replace_function(FedJsonConfigurator, "_do_configure", _admitted_before_expansion)


def guard_submissions() -> None:
    """At the server: check a submitted archive before FLARE's validator opens it, and remove the uploaded file."""
    replace_function(JobMetaValidator, "validate", _admitted_before_validation)
    replace_function(AdminServer, "_process_upload", _removing_the_upload)


def guard_deployments() -> None:
    """At a site: check the size of a deployed archive before FLARE unpacks it."""
    replace_function(training_cmds, "unzip_all_from_bytes", _checked_before_unpacking)


def _admitted_before_expansion(configure: Callable) -> Callable:
    def do_configure(self: FedJsonConfigurator) -> None:
        role = "server" if self.is_server else "client"
        admit_configuration(role, self.config_data, f"config_fed_{role}.json")
        configure(self)

    return do_configure


def _admitted_before_validation(validate: Callable) -> Callable:
    def validated(self: JobMetaValidator, job_name: str, job_data: bytes | str) -> tuple[bool, str, dict]:
        try:
            admit_submission(_archive(job_data), job_name)
        except AdmissionError as error:
            logger.warning("submitted job refused: %s", error)
            return False, error.public, {}
        except Exception:  # what cannot be checked is not admitted
            logger.exception("a submitted job could not be checked")
            return False, NOT_CHECKED, {}
        return validate(self, job_name, job_data)

    return validated


def _archive(data: bytes | str) -> bytes:
    if isinstance(data, bytes):
        return data
    with open(data, "rb") as stream:
        return stream.read(MAX_ARCHIVE + 1)


def _removing_the_upload(process: Callable) -> Callable:
    def process_upload(self: AdminServer, stream_ctx: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return process(self, stream_ctx, *args, **kwargs)
        finally:
            if location := FileStreamer.get_file_location(stream_ctx):
                Path(location).unlink(missing_ok=True)

    return process_upload


def _checked_before_unpacking(unzip: Callable) -> Callable:
    def unzip_all_from_bytes(data: bytes, folder: str | os.PathLike) -> None:
        check_archive(data)
        unzip(data, folder)

    return unzip_all_from_bytes


def main() -> int:
    """Install all guards and check that they work."""
    guard_configurations()
    guard_submissions()
    guard_deployments()
    guard_requests()
    guard_cell_requests()
    guard_job_requests()
    guard_job_failures()
    for kind in (ConfigFormat.PYHOCON, ConfigFormat.OMEGACONF):
        if not isinstance(ConfigFactory.get_config_loader(kind), RefusedFormat):
            raise FedpeftError(f"FLARE still reads {kind.name}: install the version in constraints.txt.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
