# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The form of the fields of a message: exact types at every depth, bounded sizes, one printable line of text.

Another participant wrote these values: nothing here may raise anything but the refusal, whatever they are.

Of a problem a site reports only a code from `CODES` and the name of a setting, never a value or free text. The site
sends the code, the server prints the sentence. The details (values, paths, exception) stay in the site's own log, in
its `problem.json`, and in what `fedpeft doctor` prints there. This file imports nothing that takes long.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from fedpeft.core.errors import FedpeftError
from fedpeft.job.strict_files import setting_names

MB = 10**6
MAX_MB = 1024  # of a job's message: the weights of ViLT-B, masked for a secure sum, have 900 MB
MIN_TENSOR = 4096  # bytes that a tensor counts at least: its file on a disk takes this many
MAX_ATTEMPTS = 2  # a site begins a round again where its training process was lost


@dataclass(frozen=True)
class Limit:
    """The largest message in bytes, and the remedy if a larger one is legitimate."""

    size: int
    remedy: str

    def __str__(self) -> str:
        return f"more than {self.size / MB:.0f} MB, which was not read: {self.remedy}"


@dataclass(frozen=True)
class Unread:
    """Placeholder of a tensor that was not fetched; in a message `reason` follows the sender's name."""

    reason: str


# codes that a site reports to the server
REFUSED, BLOCKED, NOT_AT_RELAY = "message-refused", "reply-blocked", "not-at-relay"
MAX_TEXT_LENGTH = 300
MAX_ENTRIES = 20_000
MAX_WHOLE_NUMBER = 2**53


def check_fields(values: Any, hints: Mapping[str, Any], *, message: str, sender: str) -> None:
    """Accept the fields of a message only if they are the declared ones, each of its declared type.

    A type is str, bool, int, float, None, list[...], dict[str, ...] or a union of them.
    """
    if type(values) is not dict or set(values) != set(hints):
        got = some(values) if type(values) is dict else type(values).__name__
        raise FedpeftError(
            f"{sender} sent no {message} message with {', '.join(sorted(hints))}, but {got or 'nothing'}: install the "
            f"same fedpeft version everywhere.",
            code=REFUSED,
        )
    for name, hint in hints.items():
        if misfit := find_misfit(values[name], hint, name):
            path, value = misfit
            raise FedpeftError(
                f"{sender} sent {shown(value)} as {path} of a {message} message: wrong type or too large; "
                f"install the same fedpeft version everywhere.",
                code=REFUSED,
            )


def find_misfit(value: Any, hint: Any, path: str) -> tuple[str, Any] | None:
    """Return the first value of another type than declared, or too large, with its path; None: all is as declared.

    An instance of a subclass is not of the type.
    """
    kind, parts = typing.get_origin(hint), typing.get_args(hint)
    if kind in (typing.Union, types.UnionType):
        misfits = [find_misfit(value, part, path) for part in parts]
        return None if None in misfits else misfits[0]
    if kind in (list, dict):
        if type(value) is not kind or len(value) > MAX_ENTRIES:
            return path, value
        if kind is list:
            entries = [(f"{path}[{number}]", item, parts[0]) for number, item in enumerate(value)]
        else:
            entries = [(f"a name in {path}", name, str) for name in value]
            entries += [(f"{path}.{_name(name)}", item, parts[1]) for name, item in value.items()]
        return next((misfit for place, item, part in entries if (misfit := find_misfit(item, part, place))), None)
    if hint is str:
        fits = type(value) is str and len(value) <= MAX_TEXT_LENGTH and value.isprintable()
    elif hint in (int, float) and type(value) is int:
        fits = abs(value) <= MAX_WHOLE_NUMBER
    else:
        fits = type(value) is (types.NoneType if hint is None else hint)
    return None if fits else (path, value)


def shown(value: Any) -> str:
    """Return a value as an error may print it: short, on one line, without looking deep into it."""
    if type(value) is str:
        return repr(value[:60])
    if value is None or type(value) in (bool, float) or (type(value) is int and abs(value) <= MAX_WHOLE_NUMBER):
        return repr(value)
    return f"a value of type {type(value).__name__[:40]!r}"


def some(names: Collection[Any], max_names: int = 3) -> str:
    """Return the first few names of a collection, as an error may print them."""
    plain = sorted(_name(name) for name in names)
    return ", ".join(plain[:max_names]) + (f" and {len(plain) - max_names} more" if len(plain) > max_names else "")


def _name(name: Any) -> str:
    plain = type(name) is str and len(name) <= 120 and name.isprintable() and " " not in name
    return name if plain else shown(name)


SETTING_MARK = "{setting}"
CODES = {
    "setting-refused": "it cannot use the job's value of {setting}: correct the job; the site's log has the details.",
    "setting-not-allowed": "its site policy does not allow what the job sets in {setting}: change the job, or ask "
    "the site whether its local/fedpeft.json can allow it.",
    "job-refused": "it cannot do what the job asks; the site's log has the details.",
    "message-refused": "it cannot read the server's message: install the same fedpeft version everywhere.",
    "message-too-large": "the server's message is larger than its site policy allows (max_message_mb): agree "
    "with the site on more, or train a smaller adapter.",
    "site-file-missing": "it has no local/fedpeft.json, which every site needs: `fedpeft doctor` at the site says how "
    "to write it.",
    "site-file-unusable": "its own local/fedpeft.json cannot be used: `fedpeft doctor` at the site says why.",
    "data-unusable": "its data cannot be used; the site's log has the details.",
    "data-too-few": "it holds less data than its site policy requires of a job that it takes part in: leave it out of "
    "federation.sites, or agree with the site on another local/fedpeft.json.",
    "plugin-unusable": "a plugin that the job names cannot be used there; the site's log has the details.",
    "backbone-unusable": "it cannot load the backbone: `fedpeft doctor` at the site says why.",
    "state-unusable": "what it kept of earlier rounds cannot be used; the site's log has the details.",
    "state-of-another-job": "what it kept under this name belongs to another job: submit the job without resume_from.",
    "state-in-use": "another job still uses what it kept under this name: abort that job, or wait for its end.",
    "state-full": "it keeps as much of earlier jobs as its site policy allows (kept_gib): the site has to make room.",
    "disk-full": "its disk is full: the site has to make room there; a job that ended goes on with resume_from=latest.",
    "disk-unwritable": "it cannot write to its own disk; the site's log names the file.",
    "order-refused": "the server asked it for something that the job's own settings do not provide for: install the "
    "same fedpeft version everywhere; the site's log has the details.",
    "adapter-outdated": "it lacks the adapter that this round builds on: it will be sent whole in the next round.",
    "training-diverged": "its training diverged: lower training.learning_rate.",
    "training-failed": "an error in its training code; the site's log has the traceback.",
    "training-process-lost": "its training process ended before it answered, perhaps for lack of memory; the "
    "site's log has the details.",
    "out-of-memory": "a batch does not fit into its memory: lower training.batch_size.",
    "secure-sum-refused": "it does not take part in the secure sum as the server proposes it; the site's log says why.",
    "reply-blocked": "its own filter blocked the reply; the site's log says what was in it.",
    "not-at-relay": "its adapter did not reach its relay; the site's log says why.",
}


def is_known(code: object, setting: object) -> bool:
    """Return whether the code is one of `CODES` and the setting is declared or empty."""
    declared = isinstance(setting, str) and (not setting or setting in setting_names())
    return declared and isinstance(code, str) and code in CODES


def sentence(code: object, setting: object = "") -> str:
    """Return the sentence that the server prints for a site's problem; it never repeats an unknown code or setting."""
    if not is_known(code, setting):
        return "it sent an unknown problem code: install the same fedpeft version everywhere."
    return CODES[str(code)].replace(SETTING_MARK, str(setting) or "a setting")
