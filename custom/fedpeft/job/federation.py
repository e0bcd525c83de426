# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The `federation` section of a job, and each site's own part of the sections `data` and `backbone`.

Services can follow a run (`federation.tracking`), each through a receiver of FLARE's. A job names one of them. Where
the figures go, and with which key, is read from the environment of the server's own process: whoever writes a job
cannot make the server connect anywhere.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from fedpeft.backbones.registry import BackboneSettings
from fedpeft.core.errors import FedpeftError
from fedpeft.core.registry import Registry
from fedpeft.core.settings import SECONDS, about, check_ranges, one_of, unread, within
from fedpeft.job.strict_files import SITE_NAME

NONE, SETTING = "none", "federation.tracking"
LEAVE_OUT = f"or leave {SETTING} out"
_ADDRESS = re.compile(r"\S*(?:://|@)\S*|host=\S+")
_log = logging.getLogger(__name__)
_VARIABLES = ("MLFLOW_", "WANDB_")
BY_SITE = ("backbone", "data")  # sections with a part `sites`
LATEST = "latest"
MAX_CHECKPOINTS = 100  # a job chooses how much of the server's disk its adapters take
_CHECKPOINT = re.compile(r"([a-z0-9][a-z0-9_-]{0,99})(?:/round-([0-9]{1,5}))?")


@dataclass(frozen=True, kw_only=True)
class Tracker:
    """One service."""

    title: str  # its name, for messages
    library: str  # the module that must be installed at the server
    extra: str  # the extra of this package that installs it
    check: Callable[[], None]  # raises a FedpeftError if the environment does not say where the figures go
    receiver: Callable[[str, Path], Any]  # makes FLARE's receiver, from the job's name and the folder of the run
    # returns why a running receiver can write no more, empty if it can
    failed: Callable[[Any], str] = lambda receiver: ""
    # called when a run has ended; returns what the user can do with it, empty if nothing is to be said
    finish: Callable[[Path], str] = lambda folder: ""


class RunTracking(Protocol):
    """A run that a tracker follows: it takes the rounds of history.json, and is closed once."""

    def update(self, rounds: Sequence[Mapping[str, Any]], metrics: Mapping[str, str]) -> None: ...

    def close(self, *, completed: bool) -> None: ...


TRACKERS: Registry[Tracker] = Registry("tracker", "fedpeft.trackers", Tracker)
TRACKERS.register("mlflow", "fedpeft.flare.tracking:MLFLOW")
TRACKERS.register("wandb", "fedpeft.flare.wandb_tracker:TRACKER")


def usable(name: str) -> Tracker:
    """Return a tracker that is installed and configured on this machine."""
    tracker = TRACKERS.get(name)
    spec = find_spec(tracker.library)
    if spec is None or spec.origin is None:  # a folder of that name, which W&B writes its runs to, is no library
        raise FedpeftError(
            f"{SETTING} is {name!r}, but {tracker.library} is not installed at the server: "
            f"pip install 'flare-fedpeft[{tracker.extra}]' there, {LEAVE_OUT}.",
            setting=SETTING,
        )
    tracker.check()
    return tracker


def reason_of(error: Exception) -> str:
    """Return kind and beginning of an error, for the server's log only.

    It has no addresses, which may contain a password, and no values of the trackers' variables.
    """
    text = str(error)
    values = {value for name, value in os.environ.items() if name.startswith(_VARIABLES) and len(value) > 3}
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, "<variable>")
    lines = _ADDRESS.sub("<address>", text).split("\n")
    return f"{type(error).__name__}: {lines[0].strip():.200}".rstrip(" .:")


def unusable(title: str, error: Exception, remedy: str) -> FedpeftError:
    """Log the reason at the server, and return an error that tells the lead of the job only its kind."""
    _log.error("%s: %s", title, reason_of(error))
    return FedpeftError(
        f"{title} cannot be used from the server ({type(error).__name__}, the server's log has more): {remedy}."
    )


@dataclass(frozen=True, kw_only=True)
class FederationSettings:
    """Which sites take part, how many must reply, how long to wait, and where to resume.

    Args:
        sites: names of the sites, as in the job's deploy map: a letter or digit, then up to 99 letters, digits, `_`
            and `-`.
        quorum: valid replies that a round needs; 0: one from every site.
        hello_timeout: seconds for the handshake of round 0.
        round_timeout: seconds for one round at the slowest site, waiting for its turn included.
        grace: seconds to wait for stragglers once the quorum has answered; used when the quorum is not all sites.
        checkpoints: rounds that the server keeps on its disk, to resume from. A site keeps its last four: if
            the job resumes from an earlier round, its own state and head begin anew.
        max_samples: samples that a site may announce in each split; its weight follows from those of training.
        largest_reply_mb: megabytes of one reply, whatever is announced; below that a reply may bring a tenth more than
            the largest adapter that the sites announced, and 16 MB.
        sums_at_relays: FLARE's relays of fedpeft add up the adapters of their sites, and the server only gets the
            sums. Needs an aggregation that only adds up, as `method.secure_sum` does.
        tracking: `mlflow` or `wandb` (Weights & Biases): the server sends every round's figures there too; its own
            environment says to which address, with which key. `none`: nowhere.
        resume_from: `latest`, or a checkpoint's name: resume with the round after it; empty: start anew.
    """

    sites: tuple[str, ...]
    quorum: int = field(default=0, metadata=within(0))
    hello_timeout: int = field(default=600, metadata=SECONDS)
    round_timeout: int = field(default=3600, metadata=SECONDS)
    grace: int = field(default=60, metadata=SECONDS)
    checkpoints: int = field(default=3, metadata=within(1, MAX_CHECKPOINTS))
    max_samples: int = field(default=1_000_000, metadata=within(1, 10**12))
    largest_reply_mb: int = field(default=1024, metadata=within(1, 10**6))
    sums_at_relays: bool = False
    tracking: str = NONE
    resume_from: str = ""

    def __post_init__(self) -> None:
        if not all(isinstance(site, str) and site for site in self.sites):
            raise FedpeftError(f"sites is {list(self.sites)!r:.200}, it must name sites, each a text.", setting="sites")
        if wrong := next((site for site in self.sites if not SITE_NAME.fullmatch(site)), ""):
            raise FedpeftError(
                f"sites names {wrong!r:.80}, which cannot be a site's name: use a letter or digit, then up to 99 "
                f"letters, digits, _ and -. FLARE takes what follows a dot for a part of the site.",
                setting="sites",
            )
        if not self.sites or len(set(self.sites)) != len(self.sites):
            raise FedpeftError(
                f"sites is {list(self.sites)!r:.200}, it must name at least one site, each once.", setting="sites"
            )
        check_ranges(self)
        if self.quorum > len(self.sites):
            raise FedpeftError(
                f"quorum is {self.quorum}, the job has only {len(self.sites)} sites: lower it.", setting="quorum"
            )
        one_of("tracking", self.tracking, (NONE, *TRACKERS.names()))
        if self.resume_from:
            with about("resume_from"):
                checkpoint_of(self.resume_from)

    @property
    def needed(self) -> int:
        """Valid replies that a round needs."""
        return self.quorum or len(self.sites)


def check_joins(joins: Mapping[str, int], federation: FederationSettings, *, rounds: int) -> None:
    """Refuse a job that a site joins after its end, or that has too few sites in its first round."""
    for site, round in joins.items():
        if round > rounds:
            raise FedpeftError(f"schedule.joins lets {site} join in round {round}, the job has {rounds}: lower it.")
    if not any(joins.get(site, 1) == 1 for site in federation.sites):
        raise FedpeftError("schedule.joins lets every site join after round 1: leave at least one of them out.")


def checkpoint_of(resume_from: str) -> tuple[str, int | None]:
    """Return the lineage of `resume_from`, a plain name because it becomes a path, and its round; None: the newest."""
    if match := _CHECKPOINT.fullmatch(resume_from):
        return match[1], int(match[2]) if match[2] else None
    raise FedpeftError(
        f"resume_from is {resume_from!r:.80}, it must be 'latest', the lineage that a manifest names, or "
        f"<lineage>/round-<number>."
    )


def site_data(section: Mapping[str, Any] | None, site: str) -> dict[str, Any]:
    """Return a site's data settings: the common ones, replaced by those under `sites`, with the site's name."""
    if section is None:
        raise FedpeftError("data is None: the job's configuration must say which data set each site holds.")
    return {"site": site, **_site_values("data", section, site)}


def site_backbone(section: Mapping[str, Any] | None, site: str) -> dict[str, Any]:
    """Return a site's backbone settings, with its name: the common ones, replaced by those under `sites`."""
    if section is None:
        raise FedpeftError("backbone is None: the job's configuration must name a backbone.", setting="backbone")
    return {"name": BackboneSettings.name, **_site_values("backbone", section, site)}


def unread_at(section: str, name: str, sites: Sequence[str], sections: Mapping[str, Any]) -> str:
    """Return the remedy for a setting that no backbone or data set of these sites reads; empty: one reads it."""
    from fedpeft.backbones import BACKBONES
    from fedpeft.data.registry import DATASETS
    from fedpeft.data.settings import DataSettings

    reasons = {}
    if section == "data":  # a site that pools others reads theirs
        sites = [one for site in sites for one in site_data(sections[section], site).get("pool") or (site,)]
    for site in sites:
        if section == "backbone":
            named = site_backbone(sections[section], site)["name"]
            reasons[f"backbone {named}"] = BACKBONES.get(named).unread(name)
        else:
            own = site_data(sections[section], site)
            named = own.get("dataset", DataSettings.dataset)
            needed = unread(DataSettings, own, name)
            reason = DATASETS.get(named).unread(name) if named in DATASETS.own_names() else ""
            reasons[named] = f"does not read it without data.{needed}" if needed else reason
    return f"leave it out, {' and '.join(map(' '.join, reasons.items()))}" if all(reasons.values()) else ""


def sections_by_site(sections: Mapping[str, Any]) -> list[str]:
    """Return the settings of a job that replace a whole section's values at single sites, e.g. `data.sites`."""
    given = {name: own.get("sites") for name, own in sections.items() if isinstance(own, Mapping)}
    return [f"{name}.sites" for name, sites in given.items() if sites and isinstance(sites, Mapping)]


def several_backbones(section: Mapping[str, Any]) -> bool:
    """Return whether some site has other pre-trained weights than the rest."""
    return any({"name", "source"} & set(own) for own in section.get("sites", {}).values() if isinstance(own, Mapping))


def check_connector(section: Mapping[str, Any], backbone: BackboneSettings) -> None:
    """Refuse sites with encoders of their own where one map between the two is averaged over all sites."""
    for site, own in section.get("sites", {}).items() if backbone.trains_connector else ():
        if not isinstance(own, Mapping):
            continue  # which its own check refuses
        if other := sorted({"name", "source", "image_source", "projection"} & set(own)):
            raise FedpeftError(
                f"backbone.projection is {backbone.projection!r}, one matrix between the encoders of all sites, and "
                f"backbone.sites.{site} sets {other[0]}: leave that out, or set backbone.projection to 'orthogonal'.",
                setting="backbone.projection",
            )


def _site_values(name: str, section: Any, site: str) -> dict[str, Any]:
    common, setting = _as_object(name, section, setting=name), f"{name}.sites"
    of_sites = _as_object(setting, common.pop("sites", {}), setting=setting)
    return {**common, **_as_object(f"{setting}.{site}", of_sites.get(site, {}), setting=setting)}


def _as_object(name: str, value: Any, *, setting: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise FedpeftError(f"{name} is {value!r:.200}, it must be an object of settings.", setting=setting)
    return dict(value)
