# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Find what a site kept of its model, in the folder that the user names.

fedpeft simulate      the workspace, or an earlier run in <workspace>_runs/, and the site's name
a consortium          the site's workspace, or one job in it: <workspace>/fedpeft/<lineage>, also where FEDPEFT_STATE
                      is set and the folder of that name is there
fedpeft export        the exported folder
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fedpeft.answering.training_settings import BEST, LAST
from fedpeft.core.errors import FedpeftError, LocalError
from fedpeft.core.files import MAX_DIGITS, number_of, read_json, rounds_in
from fedpeft.core.locks import kept_folders
from fedpeft.core.workspace import HISTORY, MANIFEST, STATE_VARIABLE, chosen_state
from fedpeft.inference import exported
from fedpeft.job.site_policy import FILE, SitePolicy, read_policy
from fedpeft.report.history import History
from fedpeft.report.history_reader import read, read_manifest
from fedpeft.report.status import FAILED, SIMULATED, read_progress
from fedpeft.site import site_state
from fedpeft.site.site_state import ModelRecord, SiteState, best_round
from fedpeft.site.site_tasks import OWNER

COMPARED = ("overall", "loss")  # figures of a site's round that both its state and the run's history have


@dataclass(frozen=True, kw_only=True)
class KeptModel:
    """A site's model of one round."""

    folder: Path
    state: SiteState
    record: ModelRecord
    policy: SitePolicy | None = None  # the site policy; None in the simulator, and of an exported folder
    exported: bool = False  # it comes from an exported folder, which may be a stranger's

    @property
    def min_class_images(self) -> int:
        """Test images that a class or label must have to count in a mean over them."""
        return self.policy.min_class_images if self.policy else 1


def find(
    named: Path,
    *,
    site: str | None,
    round: str = LAST,
    backbone: str | None = None,
    image_backbone: str | None = None,
) -> KeptModel:
    """Return a site's model of the round `last`, `best` by the validation split, or a number.

    A simulator's workspace, where all sites are, needs the site's name. `backbone` and `image_backbone` are folders or
    hub names instead of the default ones of an exported folder.
    """
    elsewhere = _at_chosen_place(named, site)
    if not named.is_dir() and not elsewhere:
        raise FedpeftError(f"{named} is not a folder: name a run's workspace, a site's workspace, or an exported one.")
    if exported.is_exported(named):
        state = exported.read(named, backbone=backbone, image_backbone=image_backbone)
        return _exported_model(named, state, site, round)
    for option, value in (("--backbone", backbone), ("--image-backbone", image_backbone)):
        if value is not None:
            raise FedpeftError(f"{option} is {value!r:.200}, and {named} is no exported folder: leave it out.")
    lineage = elsewhere or _lineage(named.resolve(), site)
    last = _last_round(named.resolve(), site, lineage)
    folder = _round_folder(lineage, round, last)
    state = _load(folder)
    if last:
        _check_run(last.history, folder, state)
    if state.record is None or not state.record.sections:
        raise FedpeftError(
            f"{folder} does not say what the model is, as where a notebook trains without a job: train again with a "
            f"job."
        )
    _check_site(folder, state.record, site)
    policy = _find_policy(named.resolve(), lineage)
    if policy is None and _is_of_consortium(lineage):
        raise FedpeftError(
            f"{lineage} is of a consortium, and the site's {FILE} is not beside it, without which other data would be "
            f"read: name WORKSPACE/fedpeft/{lineage.name}, with the site's workspace."
        )
    return KeptModel(folder=folder, state=state, record=state.record, policy=policy)


def _exported_model(folder: Path, state: SiteState, site: str | None, round: str) -> KeptModel:
    assert state.record
    _check_site(folder, state.record, site)
    if round not in (LAST, str(state.round)):
        raise FedpeftError(f"--round is {round!r:.80}, and {folder} only holds round {state.round}: leave it out.")
    return KeptModel(folder=folder, state=state, record=state.record, exported=True)


def _check_site(folder: Path, record: ModelRecord, site: str | None) -> None:
    if site not in (None, record.site):
        raise FedpeftError(f"{folder} is of site {record.site}, not of {site}: correct --site.")


def _lineage(named: Path, site: str | None) -> Path:
    """Return the folder that holds a site's rounds of one job."""
    if _holds_rounds(named):
        return named
    if (named / SIMULATED).is_dir():
        return _simulated_lineage(named, site)
    if (named / "startup").is_dir() or (named / "fedpeft").is_dir():
        return _only_lineage(named, [named / "fedpeft", *_chosen_places(site or named.name)])
    raise FedpeftError(
        f"{named} holds no model of a site: name a workspace of `fedpeft simulate`, a site's workspace, or an exported "
        f"folder."
    )


def _simulated_lineage(workspace: Path, site: str | None) -> Path:
    file = workspace / SIMULATED / MANIFEST
    if not file.is_file():
        if read_progress(workspace / SIMULATED).state == FAILED:
            raise FedpeftError(
                f"the run in {workspace} was cut off and left no manifest: resume where it stopped with fedpeft "
                f"simulate and --set resume_from=latest."
            )
        raise FedpeftError(f"{workspace} holds a run that has not ended: wait for its end (fedpeft status --follow).")
    manifest = read_manifest(file)
    sites, lineage = sorted(manifest.get("sites", {})), manifest.get("lineage", "")
    if manifest["status"] == FAILED and not sites:
        kept = f"{chosen_state() or kept_folders(workspace)[0]}/SITE/LINEAGE"
        remedy = f"name the folder of a site's state, {kept}" if manifest.get("rounds") else "name another run"
        raise FedpeftError(f"the run in {workspace} failed and names no sites: {remedy}.")
    if site not in sites:
        why = "is missing" if site is None else f"is {site!r:.80}"
        raise FedpeftError(f"--site {why}: name one of {', '.join(sites) or 'the sites; this run has none'}.")
    beside = [folder / site for folder in kept_folders(workspace)]
    places = [*_chosen_places(site), *beside, workspace / site / "fedpeft"]
    for place in places:
        if lineage and _holds_rounds(place / lineage):
            return place / lineage
    if site not in sites_in(workspace):
        raise _took_no_part(site, workspace)
    raise FedpeftError(
        f"what {site} kept of the run in {workspace} is not in {beside[0] / lineage}: it was removed, or is where "
        f"{STATE_VARIABLE} pointed; set that variable as it was."
    )


def sites_in(workspace: Path) -> set[str]:
    """Return the sites of a simulated run that took part in a round; all of its manifest's if it has no history."""
    run = workspace / SIMULATED
    manifest = read_manifest(run / MANIFEST)
    if not (run / HISTORY).is_file():
        return set(manifest.get("sites", {}))
    return {site for one in read(run).rounds for site in one.sites} if manifest.get("rounds") else set()


def _took_no_part(site: str, workspace: Path) -> FedpeftError:
    return FedpeftError(f"{site} took part in no round of the run in {workspace}: name another site.")


def _chosen_places(site: str) -> list[Path]:
    return [chosen / site] if (chosen := chosen_state()) else []


def _at_chosen_place(named: Path, site: str | None) -> Path | None:
    """Return the job of a site's workspace that is named as if it lay there; None: it is there, or there is none."""
    workspace = named.resolve().parent.parent
    if named.is_dir() or named.resolve().parent != workspace / "fedpeft" or not workspace.is_dir():
        return None
    places = (place / named.name for place in _chosen_places(site or workspace.name))
    return next((place for place in places if _holds_rounds(place)), None)


def _only_lineage(named: Path, places: list[Path]) -> Path:
    lineages = sorted(path for place in places if place.is_dir() for path in place.iterdir() if _holds_rounds(path))
    if not lineages:
        raise FedpeftError(f"{named} holds no model: no job has finished a round at this site.")
    if len(lineages) > 1:
        newest = max(lineages, key=lambda path: path.stat().st_mtime)
        raise FedpeftError(
            f"{named} holds the models of {len(lineages)} jobs: name one, the newest is "
            f"{named / 'fedpeft' / newest.name}."
        )
    return lineages[0]


def _holds_rounds(folder: Path) -> bool:
    return any(_rounds(folder))  # a server's checkpoints have none


class _Run(NamedTuple):
    """A simulated run of a site."""

    history: History
    took: int  # the last round in which the site took part
    kept: int  # the last round that the site kept


def _last_round(named: Path, site: str | None, lineage: Path) -> _Run | None:
    """Return the last rounds of a site in a simulated run; other runs may have used the lineage since."""
    run = named / SIMULATED
    if site is None or not (run / HISTORY).is_file() or not read_manifest(run / MANIFEST).get("rounds"):
        return None
    history = read(run)
    took = max((one.round for one in history.rounds if site in one.sites), default=0)
    kept = max((number for number, _ in _rounds(lineage) if number <= history.rounds[-1].round), default=0)
    if not kept and not took:
        raise _took_no_part(site, named)
    return _Run(history, took, kept)


def _check_run(history: History, folder: Path, state: SiteState) -> None:
    """Refuse a round that another job, resumed from an earlier round, kept instead of this run's."""
    if state.record is None:
        return
    own = {int(one["round"]): one for one in state.record.rounds}
    seen = {one.round: site for one in history.rounds if (site := one.sites.get(state.record.site))}
    both = [(own[number].get(name), getattr(seen[number], name)) for number in own.keys() & seen for name in COMPARED]
    pairs = [pair for pair in both if None not in pair]
    if any(not math.isclose(*pair, rel_tol=1e-3, abs_tol=1e-3) for pair in pairs):
        raise FedpeftError(
            f"{folder} is of another run, which went on from an earlier round and set aside or removed what was there: "
            f"name that other run, or train again."
        )


def _round_folder(lineage: Path, round: str, last: _Run | None) -> Path:
    kept = dict(_rounds(lineage))
    if last:
        kept = {number: folder for number, folder in kept.items() if number <= last.kept}
        if not kept or (round in (LAST, BEST) and last.kept < last.took):
            raise FedpeftError(
                f"{lineage} no longer keeps round {last.took} of that run: a job that went on from one of its rounds "
                f"set it aside or removed it. Name the run of that job, a round that is kept, or train again."
            )
    if round == LAST:
        return kept[max(kept)]
    number: int | None = int(round) if round.isdecimal() and len(round) <= MAX_DIGITS else 0
    if round == BEST:
        state = _load(kept[max(kept)])
        if last:
            _check_run(last.history, kept[max(kept)], state)
        number = best_round(state.record.rounds if state.record else ())
    if number is None:
        raise FedpeftError("no round was measured on a validation split: name a round, or leave --round out.")
    has = ", ".join(map(str, sorted(kept)))
    if number not in kept and round == BEST:
        raise FedpeftError(
            f"the best round by validation is {number}, and the site kept {has}: name one of these, and set "
            f"training.keep to 'best' in the next job."
        )
    if number not in kept:
        raise FedpeftError(
            f"--round is {round!r:.80}, and the site kept the rounds {has}: name one of them, last or best."
        )
    return kept[number]


def _rounds(lineage: Path) -> Iterator[tuple[int, Path]]:
    for folder in rounds_in(lineage):
        if (folder / "state.json").is_file():
            yield number_of(folder), folder


def _load(folder: Path) -> SiteState:
    try:
        return site_state.load(folder)
    except LocalError as error:
        raise FedpeftError(f"{folder} cannot be read ({error.__cause__}): name another round with --round.") from error


def _find_policy(named: Path, lineage: Path) -> SitePolicy | None:
    """Return the site policy, in the workspace that is named, or in which the state is; None: there is none."""
    within = (one.parent.parent for one in (named, lineage) if one.parent.name == "fedpeft")  # SITE/fedpeft/LINEAGE
    files = (folder / "local" / FILE for folder in (named, *within))
    return next((read_policy(file) for file in files if file.is_file()), None)


def _is_of_consortium(lineage: Path) -> bool:
    try:
        return bool(read_json(lineage / OWNER).get("submitter"))
    except (OSError, ValueError, AttributeError):  # a notebook's
        return False
