# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The command line: `fedpeft simulate | jobs | tasks | data | build-vqa | doctor | status | verify | report | ...`."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fedpeft
from fedpeft import serve
from fedpeft.compare import command as compare
from fedpeft.compare import tune
from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import replacing
from fedpeft.core.settings import suggestion
from fedpeft.core.text import Unread, cleaned_output, shortened
from fedpeft.inference.commands import add_export, add_inspect, add_merge, add_predict
from fedpeft.job import JOB_HELP

if TYPE_CHECKING:
    from fedpeft.data import SiteData
    from fedpeft.data.folder_sites import FolderSites

SET: dict[str, Any] = {"action": "append", "default": [], "metavar": "SECTION.NAME=VALUE", "help": "change one setting"}
WORKSPACE: dict[str, Any] = {"type": Path, "default": Path("simulator_workspace"), "help": "folder of the run"}
CONFIGS: dict[str, Any] = {
    "type": Path,
    "help": "folder of the configuration (default app_configs, where there is none that of the package)",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; wrong input gives one sentence on stderr and exit code 1."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    with cleaned_output(goes_on=arguments.writes) as streams:
        return _carry_out(arguments) or UNREAD * any(one.is_unread for one in streams)


UNREAD = 128 + signal.SIGPIPE  # the reader of the output has gone, as in `fedpeft tasks | head`


def _carry_out(arguments: argparse.Namespace) -> int:
    try:
        arguments.command(arguments)
        sys.stdout.flush()
    except FedpeftError as error:
        print(f"fedpeft: {shortened(str(error))}", file=sys.stderr)
        return 1
    except Unread:
        return UNREAD
    except OSError as error:
        print(
            f"fedpeft: {shortened(str(error.filename or 'a file'))} cannot be used ({error.strerror or error}): check "
            f"the path, its permissions and the room on its disk.",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("fedpeft: interrupted; finished rounds are kept.", file=sys.stderr)
        return 130
    return 0


ENGINE_HELP = "flare: its simulator (default); pool: the sites take turns in as many processes as -t says"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fedpeft", description=fedpeft.__doc__.partition("\n")[0])
    parser.add_argument("--version", action="version", version=f"fedpeft {fedpeft.__version__}")
    parser.set_defaults(writes=True)
    commands = parser.add_subparsers(required=True, metavar="command")
    _add_jobs(commands)
    _add_runs(commands)
    return parser


def _add(
    commands: Any, name: str, run: Callable[[argparse.Namespace], None], help: str, *, writes: bool = True
) -> argparse.ArgumentParser:
    """Add a command; one that writes no file ends once nobody reads its output."""
    parser = commands.add_parser(name, help=help)
    parser.set_defaults(command=run, writes=writes)
    return parser


def _add_jobs(commands: Any) -> None:
    simulate = _add(commands, "simulate", _simulate, "run a job on this machine; exit code 0 only if it completes")
    simulate.add_argument("job", type=Path, help=JOB_HELP)
    simulate.add_argument("-t", "--threads", type=int, default=1, help="sites that run at the same time (default 1)")
    simulate.add_argument("-w", "--workspace", **WORKSPACE)
    simulate.add_argument("--set", **SET)
    simulate.add_argument("--engine", choices=("flare", "pool"), default="flare", help=ENGINE_HELP)

    jobs = _add(commands, "jobs", _jobs, "write the job folders from app_configs/")
    jobs.add_argument("names", nargs="*", metavar="job", help=f"{JOB_HELP} (default: all jobs)")
    jobs.add_argument("--configs", **CONFIGS)
    jobs.add_argument("--out", type=Path, default=Path("jobs"), help="where the job folders go")
    jobs.add_argument("--check", action="store_true", help="write nothing, fail if a folder is out of date")
    jobs.add_argument("--set", **SET)

    tasks = _add(
        commands, "tasks", _tasks, "list the tasks of the papers: clients, metric, data and terms, jobs", writes=False
    )
    tasks.add_argument("--configs", **CONFIGS)

    data = _add(commands, "data", _data, "count what the sites of a job or a folder hold, and images in common")
    data.add_argument("what", metavar="JOB|PATH", help=f"{JOB_HELP}; or a folder of data")
    data.add_argument("site", nargs="?", metavar="SITE", help="this site of the job only")
    data.add_argument("--configs", **CONFIGS)
    data.add_argument("--set", **SET)
    data.add_argument("--picture", type=Path, metavar="FILE.png", help="draw how often each label occurs at each site")

    new = _add(commands, "new", _new, "look at a folder of data, and write a task and a job for it")
    new.add_argument("name", help="of the task and the job, e.g. own")
    new.add_argument(
        "--data", type=Path, required=True, metavar="DIR", help="a folder for each site, or of one data set"
    )
    new.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help="where app_configs/ and jobs/ are (default here)"
    )
    new.add_argument(
        "--backbone",
        metavar="PART",
        help="a file of app_configs/backbones/, e.g. vilt_b32 (default mmbt_small, and without the extra "
        "'pretrained' a tiny one)",
    )
    new.add_argument("--set", **SET)

    built = _add(commands, "build-vqa", _build_vqa, "make questions and answers from images of which a class is known")
    built.add_argument("source", type=Path, help="a folder of class folders, or of such folders, or MedMNIST's .npz")
    built.add_argument("out", type=Path, help="a new folder, with a folder for each site: manifest.csv and images")
    built.add_argument("--modality", default="", help="of images in class folders, e.g. 'x-ray'; asked for if given")
    built.add_argument("--anatomy", default="", help="what they show, e.g. 'lung'; asked for if given")
    built.add_argument(
        "--classes",
        default="disease",
        choices=("disease", "grade", "tissue", "anatomy", "other"),
        help="what the names of the class folders are (default disease)",
    )
    built.add_argument("--seed", type=int, default=0, help="of types, wordings and splits (default 0)")
    built.add_argument("--test-fraction", type=float, default=0.2, help="share of images for the test (default 0.2)")


def _add_runs(commands: Any) -> None:
    doctor = _add(commands, "doctor", _doctor, "find what would keep a job from running on this machine", writes=False)
    doctor.add_argument("job", type=Path, nargs="?", help=JOB_HELP)
    doctor.add_argument("--set", **SET)
    doctor.add_argument("--startup-kit", type=Path, metavar="DIR", help="kit of this server, site or administrator")
    doctor.add_argument("--site", metavar="NAME", help="look at one site of the job only (without a kit)")
    doctor.add_argument("-w", "--workspace", **WORKSPACE)

    status = _add(
        commands,
        "status",
        _status,
        "show a run's progress: rounds, accuracy, estimated end, rejected replies",
        writes=False,
    )
    status.add_argument("run", nargs="?", default="simulator_workspace", help="folder of a run, workspace, or job id")
    status.add_argument("--startup-kit", type=Path, metavar="DIR", help="an administrator's kit, to ask for a job id")
    status.add_argument("-f", "--follow", action="store_true", help="until the run has ended")

    add_predict(commands)
    add_export(commands)
    add_inspect(commands)
    add_merge(commands)

    verify = _add(
        commands,
        "verify",
        _verify,
        "check that a run completed and its files are intact; print its tables",
        writes=False,
    )
    verify.add_argument("run", type=Path, help="folder with manifest.json, or one of `nvflare job download`")

    report = _add(commands, "report", _report, "write tables, pictures and page of a run")
    report.add_argument("run", type=Path, help="folder of a run, or workspace")
    report.add_argument("--out", type=Path, help="where the files go (default: report/ in that folder)")
    report.add_argument(
        "--surface", action="store_true", help="draw the loss between two sites' adapters (FedPIA's Figure 2(c))"
    )
    report.add_argument("--sites", metavar="A,B", help="of --surface (default: the first two of the run)")
    report.add_argument("--grid", type=int, metavar="N", help="of --surface: N x N points (default 11)")

    serve.add(commands)

    compare.add(commands)

    tune.add(commands)

    methods = _add(
        commands, "methods", _methods, "list what can be trained, and how many parameters in a backbone", writes=False
    )
    methods.add_argument("--backbone", default="vilt", help="a name of `fedpeft backbones` (default vilt)")

    backbones = _add(
        commands, "backbones", _backbones, "list the backbones, or show where adapters go in a model", writes=False
    )
    backbones.add_argument("source", nargs="?", help="a folder or hub name of any transformers model: show its slots")
    backbones.add_argument("--name", default="transformers", help="the backbone that reads it (default transformers)")


def _simulate(arguments: argparse.Namespace) -> None:
    from fedpeft.run.simulate import simulate

    if arguments.threads < 1:
        raise FedpeftError(f"-t is {arguments.threads}, it must be at least 1.")
    workspace = arguments.workspace.resolve()
    results = simulate(
        arguments.job, workspace=workspace, threads=arguments.threads, overrides=arguments.set, engine=arguments.engine
    )
    print(f"results  {results}\nreport   {results / 'report'}")


def _jobs(arguments: argparse.Namespace) -> None:
    from fedpeft.job.admission import admit_folder
    from fedpeft.job.composing import check_used, compose, default_configs, name_of, outdated, recipes, write_job
    from fedpeft.job.writing import check_admitted

    configs = arguments.configs or default_configs()
    composed = {}
    names = [name_of(job) for job in arguments.names] or list(recipes(configs))
    if not names:
        raise FedpeftError(f"{configs} lists no job: name one, or write one with `fedpeft new`.")
    for name in names:
        composed[name] = compose(configs, name, arguments.set)
        check_used(arguments.set, composed[name], job=name)
        if not arguments.check:
            check_admitted(name, composed[name])
    for name, sections in composed.items():
        if not arguments.check:
            write_job(arguments.out / name, name, sections)
        elif stale := outdated(arguments.out / name, name, sections):
            raise FedpeftError(f"{stale[0]} is not what app_configs/ says: run `fedpeft jobs` and commit the result.")
        admit_folder(arguments.out / name)
        print(arguments.out / name)


def _tasks(arguments: argparse.Namespace) -> None:
    from fedpeft.core.console import Console
    from fedpeft.job.catalog import paper_tasks
    from fedpeft.job.composing import default_configs
    from fedpeft.report.catalogs import task_tables

    Console().print(*task_tables(list(paper_tasks(arguments.configs or default_configs()))), sep="\n\n")


def _data(arguments: argparse.Namespace) -> None:
    from fedpeft import data
    from fedpeft.job.folder import named_job, read_job_data
    from fedpeft.job.writing import check_looked, look

    picture = arguments.picture
    if picture and picture.suffix.lower() != ".png":
        raise FedpeftError(f"--picture is {str(picture)!r}: end the file's name in .png.")
    if picture and picture.is_dir():
        raise FedpeftError(f"--picture is {str(picture)!r}, which is a folder: name a file.")
    configs, title = named_job(arguments.what, arguments.configs)
    sites: Sequence[SiteData]
    if title:
        pairs = read_job_data(configs, title, arguments.set, only=arguments.site)
        sites, procedural = [read for _, read in pairs], any(data.is_procedural(name) for name, _ in pairs)
        _print_data(sites)
    elif arguments.site:
        raise FedpeftError(
            f"{arguments.what} is a folder and no job: leave {arguments.site!r} out, or name its folder."
        )
    else:
        check_looked(arguments.set)
        found = look(Path(arguments.what), arguments.set)
        sites, procedural, title = found.data, False, Path(arguments.what).resolve().name
        _print_found(found)
    if picture:
        from fedpeft.report.data_summary import AT_HOME, label_picture

        with replacing(picture, private=True) as draft:
            draft.write_bytes(label_picture(title, sites, procedural=procedural))
        print(f"picture  {picture}\n{AT_HOME}")


def _print_found(found: FolderSites) -> None:
    print(f"found    {found.kind}")
    for note in found.notes:
        print(note)
    _print_data(found.data)


def _print_data(sites: Sequence[SiteData]) -> None:
    from fedpeft.core.console import Console
    from fedpeft.data.duplicates import fingerprints
    from fedpeft.report.data_summary import NO_OVERLAP, Overlap, data_summary, remarks

    console = Console()
    console.print(data_summary(sites))
    for remark in remarks(sites):
        console.print(remark, markup=False, highlight=False, soft_wrap=True)
    overlap = Overlap([mark for site in sites for mark in fingerprints(site)])
    console.print(overlap.table() if overlap.common else NO_OVERLAP)
    for remark in overlap.remarks():
        console.print(remark, markup=False, highlight=False, soft_wrap=True)


def _new(arguments: argparse.Namespace) -> None:
    from fedpeft.job.writing import backbone_parts, check_free, check_part, look, write_new

    name, out, part = arguments.name, arguments.out, arguments.backbone or ""
    check_free(name, out)
    if arguments.backbone is not None:
        check_part(part, out)
    found = look(arguments.data, arguments.set, out=out, backbone=part)
    _print_found(found)
    new = write_new(name, found, folder=arguments.data, out=out, overrides=arguments.set, backbone=part)
    for path in new.written:
        print(f"wrote    {path}")
    says = "; its figures compare methods and say nothing about medicine" if new.tiny else ""
    print(f"backbone {new.backbone}{new.source and ', weights '}{new.source}{says}")
    folder, job, place, configs = map(
        shlex.quote, map(str, (arguments.data, new.written[-1], out, out / "app_configs"))
    )
    there, elsewhere = ("", "") if out == Path() else (f" --out {place}", f" --configs {configs}")
    others = ", ".join(backbone_parts(out))
    print(f"another  fedpeft new OTHER --data {folder}{there} --backbone PART ({others})")
    print(f"next     fedpeft simulate {job}")
    print(f"or       fedpeft tune {name}{elsewhere}")
    print(f"or       fedpeft compare {name}{elsewhere} --methods local,fedavg,fedpia_agreement")


def _build_vqa(arguments: argparse.Namespace) -> None:
    from fedpeft.data.build_vqa import build, sources

    known = {"modality": arguments.modality, "anatomy": arguments.anatomy, "classes_are": arguments.classes}
    parts = sources(arguments.source, **known)
    build(parts, arguments.out, seed=arguments.seed, test_fraction=arguments.test_fraction)
    for part in parts:
        print(f"{arguments.out / part.site}  {part.name}: {len(part.items)} images")
    print(arguments.out / "statistics.md")


def _doctor(arguments: argparse.Namespace) -> None:
    from fedpeft.doctor import open_context, print_findings

    kit, site, workspace = arguments.startup_kit, arguments.site, arguments.workspace
    context = open_context(arguments.job, overrides=arguments.set, startup_kit=kit, site=site, workspace=workspace)
    print_findings(context)


def _status(arguments: argparse.Namespace) -> None:
    from fedpeft.report.status import follow, read_progress, run_folder, wait_for_run

    if arguments.startup_kit:
        from fedpeft.flare.job_session import JobSession

        with JobSession(arguments.startup_kit, arguments.run) as session:
            follow(session.progress, until_end=arguments.follow)
    else:
        folder = (wait_for_run if arguments.follow else run_folder)(Path(arguments.run))
        follow(lambda: read_progress(folder), until_end=arguments.follow)


def _verify(arguments: argparse.Namespace) -> None:
    from fedpeft.report import show
    from fedpeft.report.history_reader import verify
    from fedpeft.report.status import run_folder

    run = run_folder(arguments.run)
    manifest = verify(run)
    show(run, metrics=("overall", "open", "closed"))
    early = manifest.get("ended_early")
    ended = f", ended early, the best is round {early['best_round']}" if early else ""
    print(f"complete {manifest['rounds']} rounds{ended}, {len(manifest['files'])} files\nresults  {run}")


def _report(arguments: argparse.Namespace) -> None:
    from fedpeft.core.workspace import HISTORY
    from fedpeft.report import render, show
    from fedpeft.report.status import read_progress, run_folder, unfinished

    if not arguments.surface and (arguments.sites or arguments.grid is not None):
        option = "--sites" if arguments.sites else "--grid"
        raise FedpeftError(f"{option} belongs to --surface: add that, or leave this out.")
    if arguments.run.is_file() and arguments.run.name != HISTORY:
        raise FedpeftError(f"{arguments.run} is no {HISTORY}: name the folder of a run, or the {HISTORY} in it.")
    run = arguments.run.parent if arguments.run.is_file() else run_folder(arguments.run)
    out = arguments.out or run / "report"
    state = unfinished(read_progress(run))
    render(run, out, state=state)
    show(run, metrics=("overall", "open", "closed"))
    if state:
        print(f"state    {state}")
    print(f"report   {out}")
    if arguments.surface:
        _surface(arguments, out)


def _surface(arguments: argparse.Namespace, out: Path) -> None:
    from fedpeft.core.console import Console
    from fedpeft.inference.surface import GRID, report_lines, surface_of, write_picture

    console = Console()
    sites = arguments.sites.split(",") if arguments.sites else ()
    grid = GRID if arguments.grid is None else arguments.grid
    surface = surface_of(arguments.run, sites=sites, grid=grid, console=console)
    for line in report_lines(surface):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    print(f"surface  {write_picture(surface, out)}")


def _methods(arguments: argparse.Namespace) -> None:
    from fedpeft.backbones import names
    from fedpeft.core.console import Console
    from fedpeft.report.catalogs import method_list

    if arguments.backbone not in names():
        raise FedpeftError(
            f"--backbone is {arguments.backbone!r}, which is no name: {suggestion(arguments.backbone, names())}; the "
            f"methods in the model of a folder or a hub name: fedpeft backbones {arguments.backbone}."
        )
    Console(highlight=False).print(method_list(arguments.backbone))


def _backbones(arguments: argparse.Namespace) -> None:
    from fedpeft.core.console import Console
    from fedpeft.report.catalogs import backbone_table, source_tables

    tables = source_tables(arguments.source, arguments.name) if arguments.source else [backbone_table()]
    Console(highlight=False).print(*tables, sep="\n\n", crop=False)


if __name__ == "__main__":
    sys.exit(main())
