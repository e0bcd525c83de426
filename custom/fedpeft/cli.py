# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The command line: `fedpeft simulate | jobs | data | doctor | status | verify | report`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import fedpeft
from fedpeft.errors import FedpeftError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; bad input gives one sentence on stderr and exit code 1."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    try:
        chosen.command(chosen)
    except FedpeftError as error:
        print(f"fedpeft: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(
            f"fedpeft: {error.filename or 'a file'} cannot be used ({error.strerror or error}): check the path, its "
            f"permissions and the room on its disk.",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("fedpeft: interrupted; finished rounds are kept.", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fedpeft", description=fedpeft.__doc__)
    parser.add_argument("--version", action="version", version=f"fedpeft {fedpeft.__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    simulate = commands.add_parser("simulate", help="run a job in FLARE's simulator; the exit code is true")
    simulate.add_argument("job", type=Path, help="job folder, e.g. jobs/fedpia_task1")
    simulate.add_argument("-t", "--threads", type=int, default=1, help="sites that run at the same time (default 1)")
    simulate.add_argument("-w", "--workspace", type=Path, default=Path("simulator_workspace"), help="folder of the run")
    simulate.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE", help="change one setting")
    simulate.set_defaults(command=_simulate)

    jobs = commands.add_parser("jobs", help="write the job folders from app_configs/")
    jobs.add_argument("names", nargs="*", help="jobs of app_configs/jobs.yml (default: all)")
    jobs.add_argument("--configs", type=Path, default=Path("app_configs"), help="folder of the configuration")
    jobs.add_argument("--out", type=Path, default=Path("jobs"), help="where the job folders go")
    jobs.add_argument("--check", action="store_true", help="write nothing, fail if a folder is out of date")
    jobs.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE", help="change one setting")
    jobs.set_defaults(command=_jobs)

    data = commands.add_parser("data", help="what the sites of a job hold on this machine, and images in common")
    data.add_argument("job", help="a job of app_configs/jobs.yml, e.g. vqa_rad")
    data.add_argument("--configs", type=Path, default=Path("app_configs"), help="folder of the configuration")
    data.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE", help="change one setting")
    data.set_defaults(command=_data)

    doctor = commands.add_parser("doctor", help="what keeps a job from running on this machine, and what to do")
    doctor.add_argument("job", type=Path, nargs="?", help="job folder, e.g. jobs/fedpia_task1")
    doctor.add_argument("--startup-kit", type=Path, metavar="DIR", help="kit of this server, site or administrator")
    doctor.add_argument("--site", metavar="NAME", help="look at one site of the job only (without a kit)")
    doctor.add_argument("-w", "--workspace", type=Path, default=Path("simulator_workspace"), help="folder of the run")
    doctor.set_defaults(command=_doctor)

    status = commands.add_parser("status", help="how far a run is: rounds, accuracy, when it ends, who was left out")
    status.add_argument("run", nargs="?", default="simulator_workspace", help="folder of a run, workspace, or job id")
    status.add_argument("--startup-kit", type=Path, metavar="DIR", help="an administrator's kit, to ask for a job id")
    status.add_argument("-f", "--follow", action="store_true", help="until the run has ended")
    status.set_defaults(command=_status)

    verify = commands.add_parser("verify", help="whether a run completed and its files are whole; its table")
    verify.add_argument("run", type=Path, help="folder with manifest.json, or what `nvflare job download` brought")
    verify.set_defaults(command=_verify)

    report = commands.add_parser("report", help="tables, picture and page of a run")
    report.add_argument("run", type=Path, help="folder of a run, or workspace")
    report.add_argument("--out", type=Path, help="where the files go (default: report/ in that folder)")
    report.set_defaults(command=_report)
    return parser


def _simulate(chosen: argparse.Namespace) -> None:
    from fedpeft.simulate import simulate

    if chosen.threads < 1:
        raise FedpeftError(f"-t is {chosen.threads}, it must be at least 1.")
    workspace = chosen.workspace.resolve()
    results = simulate(chosen.job, workspace=workspace, threads=chosen.threads, overrides=chosen.set)
    print(f"results  {results}\nreport   {results / 'report'}")


def _jobs(chosen: argparse.Namespace) -> None:
    from fedpeft.admission.job import admit_folder
    from fedpeft.jobs import compose, outdated, recipes, write_job

    for name in chosen.names or recipes(chosen.configs):
        sections = compose(chosen.configs, name, chosen.set)
        if not chosen.check:
            write_job(chosen.out / name, name, sections)
        elif stale := outdated(chosen.out / name, name, sections):
            raise FedpeftError(f"{stale[0]} is not what app_configs/ says: run `fedpeft jobs` and commit the result.")
        admit_folder(chosen.out / name)
        print(chosen.out / name)


def _data(chosen: argparse.Namespace) -> None:
    from rich.console import Console

    from fedpeft import data
    from fedpeft.data.duplicates import duplicates, fingerprints, summary
    from fedpeft.federation import site_data
    from fedpeft.jobs import compose
    from fedpeft.report.data_summary import census
    from fedpeft.settings import build

    sections = compose(chosen.configs, chosen.job.removeprefix("jobs/").rstrip("/"), chosen.set)
    chosen_data = (site_data(sections["data"], site) for site in sections["federation"]["sites"])
    sites = [data.load(build(data.DataSettings, values, section="data")) for values in chosen_data]
    Console().print(census(sites))
    print(summary(duplicates(mark for site in sites for mark in fingerprints(site))))


def _doctor(chosen: argparse.Namespace) -> None:
    from fedpeft.doctor import open_context
    from fedpeft.doctor.console import visit

    visit(open_context(chosen.job, startup_kit=chosen.startup_kit, site=chosen.site, workspace=chosen.workspace))


def _status(chosen: argparse.Namespace) -> None:
    from fedpeft.status import follow, read_progress, run_folder, wait_for_run

    if chosen.startup_kit:
        from fedpeft.flare.job_session import JobSession

        with JobSession(chosen.startup_kit, chosen.run) as session:
            follow(session.progress, until_end=chosen.follow)
    else:
        folder = (wait_for_run if chosen.follow else run_folder)(Path(chosen.run))
        follow(lambda: read_progress(folder), until_end=chosen.follow)


def _verify(chosen: argparse.Namespace) -> None:
    from fedpeft.report import show
    from fedpeft.status import run_folder
    from fedpeft.verify import verify

    run = run_folder(chosen.run)
    manifest = verify(run)
    show(run, metrics=("overall", "open", "closed"))
    print(f"complete {manifest['rounds']} rounds, {len(manifest['files'])} files\nresults  {run}")


def _report(chosen: argparse.Namespace) -> None:
    from fedpeft.report import render, show
    from fedpeft.status import run_folder

    run = chosen.run.parent if chosen.run.is_file() else run_folder(chosen.run)
    out = chosen.out or run / "report"
    render(run, out)
    show(run, metrics=("overall", "open", "closed"))
    print(f"report   {out}")


if __name__ == "__main__":
    sys.exit(main())
