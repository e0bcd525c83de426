# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Which deaths of a site's job process are accidents, and how often one is started again."""

import os
import signal
import subprocess
import sys

import pytest
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_launcher_spec import JobReturnCode
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.process_launcher import ProcessHandle

from fedpeft.core.errors import FedpeftError
from fedpeft.flare.job_process import GPUS, JobProcess, RestartingLauncher

END, KILLED, TERMINATED, FAILED = "", signal.SIGKILL, signal.SIGTERM, "raise SystemExit(1)"


class Starts:
    """Starts real processes that end as asked, one after the other."""

    def __init__(self, *ends):
        self.ends, self.count = list(ends), 0

    def __call__(self):
        self.count += 1
        how = self.ends.pop(0)
        code = how if isinstance(how, str) else f"import os; os.kill(os.getpid(), {how.value})"
        return ProcessHandle(process=subprocess.Popen([sys.executable, "-S", "-c", code]))


@pytest.mark.parametrize(
    ("ends", "restarts", "count", "code"),
    [
        ([END], 3, 1, JobReturnCode.SUCCESS),
        ([FAILED], 3, 1, JobReturnCode.EXECUTION_ERROR),
        ([TERMINATED], 3, 1, JobReturnCode.EXECUTION_ERROR),
        ([KILLED, END], 3, 2, JobReturnCode.SUCCESS),
        ([KILLED, signal.SIGSEGV, FAILED], 3, 3, JobReturnCode.EXECUTION_ERROR),
        ([KILLED, KILLED], 1, 2, JobReturnCode.EXECUTION_ERROR),
        ([KILLED], 0, 1, JobReturnCode.EXECUTION_ERROR),
    ],
)
def test_only_accidents_are_repeated(ends, restarts, count, code):
    starts = Starts(*ends)
    process = JobProcess(starts, restarts)
    process.wait()
    assert (starts.count, process.poll()) == (count, code)


def test_a_process_that_cannot_start_again_has_ended():
    """As where no memory is left: FLARE, which waits here, must hear of it."""
    starts = Starts(KILLED)
    process = JobProcess(starts, 3)
    process.wait()  # there is no second one to start
    assert (starts.count, process.poll()) == (2, JobReturnCode.EXECUTION_ERROR)


def test_what_is_ended_on_purpose_stays_so():
    process = JobProcess(starts := Starts(KILLED, END), 3)
    process._process.wait()
    process.terminate()
    process.wait()
    assert starts.count == 1


@pytest.mark.parametrize(("own", "others"), [("0,1", "2"), ("0,1", None), (None, "2")])
@pytest.mark.parametrize("ends", [[KILLED, END], [KILLED]], ids=["starts again", "cannot"])
def test_a_process_sees_the_gpus_of_its_job_in_every_start_and_no_other_does(own, others, ends, monkeypatch):
    def set_gpus(value):
        monkeypatch.delenv(GPUS, raising=False)
        if value is not None:
            monkeypatch.setenv(GPUS, value)

    starts, seen = Starts(*ends), []

    def launch(*_):
        seen.append(os.environ.get(GPUS))
        return starts()

    monkeypatch.setattr(ClientProcessJobLauncher, "launch_job", launch)
    set_gpus(own)
    process = RestartingLauncher().launch_job({}, FLContext())
    set_gpus(others)  # as FLARE does when it starts the next job
    process.wait()
    assert seen == [own, own]
    assert os.environ.get(GPUS) == others


def test_a_negative_number_is_refused():
    with pytest.raises(FedpeftError, match="restarts is -1"):
        RestartingLauncher(restarts=-1)
