# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Run what a comparison lacks: each method with each seed, in processes of their own, one line of a file for each run.

All methods have the same data, the same steps and the same seeds. A run is a federation in one process
(`fedpeft.federate`), which gives the same bits as FLARE's simulator; an experiment that ended early is continued.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import entry_points
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fedpeft
from fedpeft.alignment import PIASettings
from fedpeft.compare.grid import Axis, check_not_varied, points
from fedpeft.compare.outcome import Outcome, from_json
from fedpeft.compare.runs import Variant, sections_of
from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import append, digest, own_folder, parse_json, read_text, remove_leftovers
from fedpeft.core.metrics import ENDS, VALIDATION, pooled_balanced_accuracy
from fedpeft.core.processes import end, end_with_parent_later, hide_current_folder
from fedpeft.core.settings import build, orders_of
from fedpeft.data import DataSettings
from fedpeft.data.folders import files_below
from fedpeft.job.composing import PACKAGED, check_used, parse_overrides, unused_methods
from fedpeft.job.federation import NONE, SETTING, FederationSettings
from fedpeft.job.folder import check_shared, folders_of
from fedpeft.job.settings import SiteJob
from fedpeft.methods import names as method_names
from fedpeft.methods.settings import MethodSettings
from fedpeft.report.wording import IDENTITY, Alignment

if TYPE_CHECKING:
    from fedpeft.backbones.images import EncodedImages
    from fedpeft.site.learner import Learner, Update

RUNS = "runs.jsonl"
STATE = ".fedpeft-run-"  # how the temporary folder of a run begins
SEEDS = ("training.seed", "data.seed")
METHOD = "method.name"
# of `data`, what rows of a table may have differently: none of it changes which examples are tested, nor how
UNTESTED = ("train_share", "window", "pool", "sites")
PLUGINS = "fedpeft."  # how the groups of entry points begin
Key = tuple[str, int, str]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One method with one seed."""

    task: str
    method: str  # name of the row
    seed: int
    sections: Mapping[str, Any]
    # the method of `app_configs/` and the row's settings; empty if other settings are changed
    recipe: str = ""
    point: str = ""  # setting and value of a sweep (`Point.label`); empty: there is none
    form: str = ""  # of FedPIA (`PIASettings.label`), if the row is named by its method; empty: it has none

    @functools.cached_property
    def settings(self) -> str:
        """A digest of everything that the result depends on, to distinguish runs of one method."""
        everything = f"{json.dumps(self.sections, sort_keys=True)}{_files_of(self.sections)}{orders_of(self.sections)}"
        return hashlib.sha256(everything.encode(errors="surrogateescape")).hexdigest()[:16]

    @property
    def row(self) -> str:
        """Its row's name in tables and pictures."""
        return f"{self.method} ({self.form})" if self.form else self.method

    @property
    def label(self) -> str:
        """Its name in messages."""
        return ", ".join(filter(None, (self.method, self.point, f"seed {self.seed}")))

    @property
    def key(self) -> Key:
        """What an earlier result must have in common with this run."""
        return self.method, self.seed, self.settings


@functools.cache  # for the rows and seeds of one plan
def _list_files(folder: Path) -> str:
    try:
        files = [(file.relative_to(folder), file.stat()) for file in files_below(folder, whole=False)]
    except OSError:  # the run says what is wrong with it
        return ""
    return "\n".join(f"{name}:{one.st_size}:{one.st_mtime_ns}" for name, one in files)


@functools.cache
def _plugins() -> tuple[str, ...]:
    """Return name, version and sources of each installed plugin, none of which is imported."""
    found = set()
    groups = [group for group in entry_points().groups if group.startswith(PLUGINS)]
    for point in itertools.chain.from_iterable(entry_points(group=group) for group in groups):
        package = point.module.partition(".")[0]
        if package == fedpeft.__name__ or not (spec := find_spec(package)):
            continue
        sources = {Path(spec.origin).name: Path(spec.origin)} if spec.origin else {}
        for folder in map(Path, spec.submodule_search_locations or ()):
            below = [file for file in files_below(folder, whole=False) if file.suffix == ".py"]
            sources |= {str(file.relative_to(folder)): file for file in below}
        version = point.dist.version if point.dist else ""
        found.add("\n".join([package, version, *(f"{name}:{digest(file)}" for name, file in sources.items())]))
    return tuple(sorted(found))


def _files_of(sections: Mapping[str, Any]) -> str:
    """Return the versions of the package and its plugins, and name, size and time of each file that sites read."""
    found = [fedpeft.__version__, *_plugins()]
    for site in sections.get("federation", {}).get("sites", ()):
        with contextlib.suppress(FedpeftError):  # what is missing is said by the run itself
            found += map(_list_files, folders_of(SiteJob.from_sections(sections, site=site)))
    return "\n".join(found)


def plan(
    configs: Path,
    task: str,
    methods: Sequence[Variant],
    seeds: Sequence[int],
    overrides: Sequence[str],  # settings of all methods, `section.name=value`
    sweep: Axis | None = None,  # a setting with whose every value each method runs
) -> list[Run]:
    """Compose all runs, so that what is wrong is found before the first one starts.

    Each seed gives all methods the same data, initial values and order.
    """
    _list_files.cache_clear()
    _plugins.cache_clear()
    axes = [sweep] if sweep else []
    given = [*overrides, *(setting for method in methods for setting in method.settings)]
    varied = [*given, *(axis.setting for axis in axes)]
    if chosen := [text for text in varied if text.partition("=")[0].strip() in SEEDS]:
        raise FedpeftError(f"{chosen[0]!r}: the seeds of a comparison are those of --seeds; leave it out.")
    check_not_varied(axes, given)
    _check_rows(methods, overrides, sweep)
    runs = []
    for seed, method, point in itertools.product(seeds, methods, points(axes).values()):
        own = [*(f"{name}={seed}" for name in SEEDS), *overrides]
        sections = point.sections(partial(_compose_row, configs, task, method, own))
        check_runs_here(sections)
        packaged = not (overrides or axes) and sections == _packaged_sections(task, method, own)
        recipe = " ".join((method.method, *method.settings)) if packaged else ""
        form = _pia_form(sections) if method.name == method.method else ""
        row = {"task": task, "method": method.name, "recipe": recipe, "form": form}
        runs.append(Run(**row, seed=seed, sections=sections, point=point.label))
    forms = {(run.method, run.form) for run in runs}
    if sweep and len(forms) > len(methods):  # the sweep's own axis says which form it is
        runs = [replace(run, form="") for run in runs]
    tuned = {run.sections["method"].get("name", MethodSettings.name) for run in runs}
    for name in parse_overrides(overrides).get("method", {}).get("settings", {}):
        if all(name in unused_methods(overrides, one) for one in tuned):
            raise FedpeftError(
                f"method.settings.{name} changes nothing: no row of the comparison has that method; leave it out, or "
                f"add {name} to the methods."
            )
    _check_measured_alike(runs)
    check_read(overrides, runs)
    for method in methods:
        check_read(method.settings, [run for run in runs if run.method == method.name])
    for point in points(axes).values():
        check_read(point.overrides, [run for run in runs if run.point == point.label])
    return runs


def _check_measured_alike(runs: Sequence[Run]) -> None:
    """Refuse rows whose figures are of other examples or another metric: their difference says nothing."""
    first: dict[tuple[int, str, str, str], tuple[Run, Any]] = {}
    for run in runs:
        for (site, name), own in _tested(run).items():
            one, theirs = first.setdefault((run.seed, run.point, site, name), (run, own))
            if theirs != own:
                raise FedpeftError(
                    f"the row {run.method} has data.{name}={own!r:.80} and {one.method} {theirs!r:.80}, and rows of a "
                    f"table are measured alike: set it for all with --set, or compare them in a table of their own."
                )


def _tested(run: Run) -> dict[tuple[str, str], Any]:
    """Return the settings by which figures are measured, of all sites together (as "") and of each, by name."""
    data, default = run.sections["data"], vars(DataSettings())
    sites = run.sections.get("federation", {}).get("sites", ())
    own = {site: {**default, **data, **data.get("sites", {}).get(site, {})} for site in sites}
    return {
        (site, name): list(value) if isinstance(value, tuple) else value
        for site, values in ({"": {**default, **data}} | own).items()
        for name, value in values.items()
        if name not in UNTESTED
    }


def _pia_form(sections: Mapping[str, Any]) -> str:
    method = build(MethodSettings, sections["method"], section="method")
    return method.pia.label if isinstance(method.pia, PIASettings) and method.aligns else ""


def check_read(settings: Sequence[str], runs: Sequence[Run]) -> None:
    """Refuse settings of these runs, `section.name=value`, that none of them reads."""
    for text in settings:
        unread = [error for run in runs if (error := _unread(text, run))]
        if len(unread) == len(runs):
            raise unread[0]


def _check_rows(methods: Sequence[Variant], overrides: Sequence[str], sweep: Axis | None) -> None:
    """Refuse to set the method of all rows if a row is named by its own method."""
    common = [text for text in overrides if text.partition("=")[0].strip() == METHOD]
    if sweep and sweep.setting == METHOD and len(methods) > 1:
        common.append(sweep.setting)
    rows = [one.name for one in methods if one.name == one.method and one.method.partition("+")[0] in method_names()]
    if common and rows:
        raise FedpeftError(
            f"the row {rows[0]!r} stands for the method of its name, and {common[0]!r:.80} would replace it: leave it "
            f"out, or name a way to aggregate as the row's method, e.g. fedavg."
        )


def _unread(setting: str, run: Run) -> FedpeftError | None:
    """Return why a setting changes nothing in a run; None: it changes something."""
    try:
        check_used([setting], run.sections, job=f"row {run.method!r}")
    except FedpeftError as error:
        return error
    return None


def _compose_row(
    configs: Path, task: str, method: Variant, overrides: Sequence[str], more: Sequence[str]
) -> dict[str, Any]:
    return sections_of(configs, task, replace(method, settings=(*method.settings, *more)), overrides)


def _packaged_sections(task: str, method: Variant, overrides: Sequence[str]) -> dict[str, Any] | None:
    """Return a row's sections by the package's own configuration; None: it has no such job or method."""
    try:
        return sections_of(PACKAGED, task, method, overrides)
    except FedpeftError:
        return None


def earlier(folder: Path, runs: Sequence[Run]) -> list[Outcome]:
    """Return the outcomes of these runs that the folder has already."""
    file = folder / RUNS
    if not file.is_file():
        return []
    wanted, found = {run.key for run in runs}, {}
    for number, line in enumerate(read_text(file, errors="surrogateescape").splitlines(), 1):
        try:
            values = parse_json(line)
        except ValueError as error:
            raise FedpeftError(f"{file}, line {number} is not JSON ({error}): remove the line.") from error
        outcome = from_json(values, origin=f"{file}, line {number}")
        if (key := (outcome.method, outcome.seed, outcome.settings)) in wanted:
            found[key] = outcome
    return list(found.values())


def run_missing(
    folder: Path, runs: Sequence[Run], *, processes: int, finished: Callable[[Outcome], None]
) -> dict[Key, str]:
    """Run what the folder lacks, and add a line for each that ended; return why others failed, by `Run.key`."""
    folder.mkdir(parents=True, exist_ok=True)
    done = {(one.method, one.seed, one.settings) for one in earlier(folder, runs)}
    missing, failed = [run for run in runs if run.key not in done], dict[Key, str]()
    with hide_current_folder():  # the pool starts a process when it is made, and one with each of the first runs
        pool = ProcessPoolExecutor(
            processes, mp_context=get_context("spawn"), initializer=end_with_parent_later, initargs=(os.getpid(),)
        )
    try:
        with hide_current_folder():
            futures = {pool.submit(carry_out, run): run for run in missing}
        for future in as_completed(futures):
            run = futures[future]
            try:
                outcome = future.result()
            except BrokenProcessPool as error:
                raise FedpeftError(
                    f"the process of a run was ended from outside, perhaps because memory ran out; lower --processes "
                    f"(it is {processes}) and repeat the command, which runs the rest."
                ) from error
            except Exception as error:  # one run, such as one without room on a GPU, must not end the others
                reason = str(error) if isinstance(error, FedpeftError) else f"{type(error).__name__}: {error}"
                failed[run.key] = f"{run.label}: {reason}"
                continue
            with (folder / RUNS).open("a") as lines:
                append(lines, json.dumps(outcome.as_json()) + "\n")
            finished(outcome)
    except BaseException:
        end(getattr(pool, "_processes", None) or ())  # they would first compute all runs that the pool has queued
        remove_leftovers(Path(tempfile.gettempdir()), f"{STATE}*")
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return failed


@cache
def _encoded_images() -> EncodedImages:
    """Return what frozen image encoders made of images in earlier runs of this process."""
    from fedpeft.backbones.images import EncodedImages

    return EncodedImages()


def check_runs_here(sections: Mapping[str, Any]) -> None:
    """Refuse what only a run in FLARE does: to send figures to a tracker, and to go on from an earlier round."""
    if (tracker := sections["federation"].get("tracking", NONE)) != NONE:
        raise FedpeftError(f"{SETTING} is {tracker!r}, and here no server of FLARE sends figures: set it to {NONE!r}.")
    if sections["federation"].get("sums_at_relays"):
        raise FedpeftError("federation.sums_at_relays is true, and there are no relays here: set it to false.")
    if resumed := sections["federation"].get("resume_from"):
        raise FedpeftError(
            f"federation.resume_from is {resumed!r:.80}, and here runs begin anew: add "
            f"--set \"federation.resume_from=''\"."
        )


def carry_out(run: Run) -> Outcome:
    """Run a federation to its end in this process."""
    from fedpeft.backbones import is_tiny
    from fedpeft.data import is_procedural
    from fedpeft.federate import federate
    from fedpeft.job.federation import site_backbone
    from fedpeft.site.learner import Learner
    from fedpeft.site.site_model import SharedModels

    sites = run.sections["federation"]["sites"]
    jobs = [SiteJob.from_sections(run.sections, site=site) for site in sites]
    check_shared(jobs)
    began = time.monotonic()
    with own_folder(STATE) as folder:
        images = _encoded_images()
        images.begin_run()
        shared = SharedModels(images)  # the sites take turns
        learners = {
            site: Learner.from_sections(run.sections, site=site, folder=Path(folder) / site, shared=shared)
            for site in sites
        }
        on_cpu = all(learner.device.type == "cpu" for learner in learners.values())
        # without imports and the encoding of images, which only the first run of a process pays for
        before = _cpu_seconds() - images.seconds
        rounds, pooled, alignment = [], [], Alignment()
        refused = 0
        needed = build(FederationSettings, run.sections["federation"], section="federation").needed
        for result in federate(learners, quorum=needed, tolerant=True):
            rounds.append({site: one for site, one in result.updates.items() if site not in result.refused})
            refused += len(result.refused)
            alignment += _alignment(result.round, result.report, apart=_unaligned(next(iter(learners.values()))))
            pooled.append(pooled_balanced_accuracy(learners[site].recognized() for site in rounds[-1]))
        spent = _cpu_seconds() - images.seconds - before
        course = _loss_course(learners, rounds)
    return Outcome(
        task=run.task,
        method=run.method,
        seed=run.seed,
        figures=_site_figures(rounds, "overall"),
        sent=tuple(
            {site: _bytes_of(one, learners[site].method) for site, one in updates.items()} for updates in rounds
        ),
        metrics={site: learner.data.metric for site, learner in learners.items()},
        seconds=time.monotonic() - began,
        procedural=any(is_procedural(part.dataset) for job in jobs for part in job.parts),
        tiny=any(is_tiny(site_backbone(run.sections["backbone"], site)["name"]) for site in sites),
        settings=run.settings,
        recipe=run.recipe,
        samples={site: one.samples for updates in rounds for site, one in updates.items()},
        pooled=tuple(pooled) if any(value is not None for value in pooled) else (),
        cpu_seconds=spent if on_cpu else None,
        alignment=alignment,
        validation=_site_figures(rounds, VALIDATION),
        validated={site: len(learner.data.validation) for site, learner in learners.items()},
        **_end_losses(rounds),
        loss_course=course,
        refused=refused,
    )


def _loss_course(
    learners: Mapping[str, Learner], rounds: Sequence[Mapping[str, Update]]
) -> tuple[tuple[dict[str, float], ...], ...]:
    """Return the sites' losses for each point of a round's course and each round; empty: they were not measured."""
    from fedpeft.answering.training_settings import STEPS
    from fedpeft.site.site_state import course_name, load_before

    if all(learner.training.measure != STEPS for learner in learners.values()):
        return ()
    kept = {site: load_before(learner.folder, len(rounds) + 1) for site, learner in learners.items()}
    courses = {site: state.losses for site, state in kept.items() if state and state.losses}
    points = max((len(one) for losses in courses.values() for one in losses.values()), default=0)
    return tuple(
        tuple(
            {site: losses[name][point].item() for site, losses in courses.items() if name in losses and site in counted}
            for name, counted in zip(map(course_name, range(1, len(rounds) + 1)), rounds, strict=True)
        )
        for point in range(points)
    )


def _bytes_of(update: Update, method: MethodSettings) -> float:
    """Return the bytes that leave a site; masked for a secure sum, each number has 8."""
    return float(sum(t.numel() * (8 if method.secure_sum else t.itemsize) for t in update.state.values()))


def _end_losses(rounds: Sequence[Mapping[str, Update]]) -> dict[str, Any]:
    measured = any(ENDS[0] in one.metrics for updates in rounds for one in updates.values())
    return {name: _site_figures(rounds, name) for name in ENDS} if measured else {}


def _site_figures(rounds: Sequence[Mapping[str, Update]], metric: str) -> tuple[dict[str, float], ...]:
    """Return the sites' figures of one name for each round, without sites that have none."""
    return tuple(
        {site: value for site, one in updates.items() if (value := one.metrics[metric]) is not None}
        for updates in rounds
    )


def _alignment(number: int, report: Mapping[str, Any], *, apart: bool) -> Alignment:
    decisions = report.get("decisions", {}).values()
    moved, stayed, held = (sum(one[name] for one in decisions) for name in ("moved", "stayed", "held"))
    return Alignment(places=moved + stayed, moved=moved, held=held, last=number if moved else 0, apart=apart)


def _unaligned(learner: Learner) -> bool:
    method = learner.method
    assert isinstance(method.pia, PIASettings)
    return method.initialization != "shared" or method.pia.solver == IDENTITY or bool(learner.schedule.joins)


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
