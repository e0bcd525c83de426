# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a reply must be: the one place that decides whether a site's message is usable, and says why not.

The server checks every reply here as it arrives; a site's own filter makes the same checks before it is sent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedpeft.backbones import BACKBONES
from fedpeft.backbones.slots import SLOTS, places
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import SLOT, belongs, is_key, layers_of, parse_key
from fedpeft.core.metrics import BELOW_CONSTANT, TITLES
from fedpeft.core.states import first_misfit
from fedpeft.data.registry import DATASETS
from fedpeft.protocol import signed_keys
from fedpeft.protocol.fields import MAX_ATTEMPTS, sentence, shown, some
from fedpeft.protocol.types import FRACTIONS, METRICS, SPLITS, Introduction, Schema, ScoreReply, TrainOrder, TrainReply

DTYPES = ("float32", "bfloat16", "float16")
MAX_WEIGHT = 1e6  # no weight of a network comes near it; larger values would reach the others through the mean
MAX_COUNT = 10**12  # below that of `report.history`, so that what is accepted can be read back
MAX_FIGURE = 1e9  # seconds and losses
MAX_SCORE = 1e30  # far above any gradient's score, and a sum over sites and layers cannot overflow
MAX_AXES = 8
MAX_TENSOR = 2**40  # numbers, a hundred times the largest matrix of any model
MAX_SLOTS = 64
RESTART = "look at its log, and restart it with this job's fedpeft version or leave it out of federation.sites"
DIVERGED = "lower training.learning_rate if its log says that training diverged, or leave it out of federation.sites"
DIGEST = re.compile(r"[0-9a-f]{64}")
VERSION = re.compile(r"[0-9A-Za-z.+!_-]{1,40}")
MODULE_PATH = re.compile(r"([A-Za-z_0-9]{1,60}\.){0,12}\{layer\}(\.[A-Za-z_0-9]{1,60}){0,12}")


def check_introduction(
    introduction: Introduction, *, site: str, initial: bool, max_samples: int, budget: int | None = None
) -> None:
    """Accept the reply to `hello` only from a site that can take part and sent what it was asked for.

    `budget` is the number of layers that the job gives the site; None: the site measures it, or trains all.
    """
    if introduction.problem:
        reason = sentence(introduction.problem, introduction.setting)
        raise FedpeftError(f"site {site} cannot take part: {reason}")
    check_announcement(introduction, site=site, max_samples=max_samples)
    if budget not in (None, introduction.budget):
        raise _refused(site, f"announces {introduction.budget} layers as budget, the job's schedule gives it {budget}")
    schema = introduction.schema if initial else {}
    check_tensors(introduction.state, site=site, schema=schema, dtype=introduction.dtype)


def check_announcement(introduction: Introduction, *, site: str, max_samples: int = MAX_COUNT) -> None:
    """Accept an introduction only if its names are known, its numbers are counts and its keys are wire keys."""
    _check_names(introduction, site)
    _check_flags(introduction, site)
    _check_counts(introduction, site, max_samples)
    _check_sum_key(introduction.sum_key, site)
    if not VERSION.fullmatch(introduction.version):
        raise _refused(site, f"announces {shown(introduction.version)} as its version, which is none")
    if introduction.start_digest and not DIGEST.fullmatch(introduction.start_digest):
        raise _refused(site, f"announces {shown(introduction.start_digest)} as start_digest, which is not a SHA-256")
    for key, shape in introduction.schema.items():
        if not is_key(key):
            raise _refused(site, f"announces {key!r:.120}, which is not a tensor's name")
        if len(shape) > MAX_AXES or not all(1 <= n <= 2**31 for n in shape) or math.prod(shape) > MAX_TENSOR:
            raise _refused(site, f"announces {key} with shape {shape!r:.60}, which is not a valid shape")
    _check_slots(introduction, site)


def _check_names(introduction: Introduction, site: str) -> None:
    known = {
        "dataset": DATASETS.names().__contains__,  # the server imports no plugin for what a site names
        "backbone": BACKBONES.names().__contains__,
        "family": _is_family,
        "metric": TITLES.__contains__,
    }
    for name, is_known in known.items():
        if not is_known(getattr(introduction, name)):
            raise _refused(site, f"names an unknown {name}")


def _check_counts(introduction: Introduction, site: str, max_samples: int) -> None:
    if introduction.dtype not in DTYPES:
        raise _refused(site, f"announces tensors of {introduction.dtype!r:.40}, allowed are {', '.join(DTYPES)}")
    if set(introduction.samples) != set(SPLITS):
        got = some(introduction.samples) or "nothing"
        raise _refused(site, f"sent no counts of {', '.join(SPLITS)} samples, but of {got}")
    counts = {f"samples.{split}": count for split, count in introduction.samples.items()}
    counts |= {name: getattr(introduction, name) for name in ("classes", "width", "budget", "finished")}
    for name, count in counts.items():
        if not 0 <= count <= MAX_COUNT:
            raise _refused(site, f"announces {count} as {name}, which must be from 0 to {MAX_COUNT:,}")
    if introduction.baseline is not None and not 0 <= introduction.baseline <= 1:
        raise _refused(site, f"announces {introduction.baseline} as baseline, which must be a fraction from 0 to 1")
    for split, least in (("train", 1), ("validation", 0), ("test", 0)):
        if not least <= (samples := introduction.samples[split]) <= max_samples:
            limit = "raise that limit if it has so many, or leave it out of federation.sites"
            kind = "training" if split == "train" else split
            what = f"announces {samples} {kind} samples, allowed are {least} to {max_samples} (federation.max_samples)"
            raise _refused(site, what, RESTART if samples < 1 else limit)


def _check_flags(introduction: Introduction, site: str) -> None:
    """Refuse wrong statements about a data set or backbone; about a plugin the site is believed."""
    dataset, backbone = introduction.dataset, introduction.backbone
    flags: dict[str, tuple[str, bool]] = {}
    if not DATASETS.is_plugin(dataset):
        flags["procedural"] = dataset, DATASETS.get(dataset).procedural
    if not BACKBONES.is_plugin(backbone):
        flags["tiny"] = backbone, BACKBONES.get(backbone).tiny
    for name, (owner, known) in flags.items():
        if getattr(introduction, name) != known:
            raise _refused(site, f"announces {getattr(introduction, name)} as {name} of {owner}, which is {known}")


def _is_family(name: str) -> bool:
    """Return whether a name is in the table of slots, or a kind of model in transformers."""
    if name in SLOTS:
        return True
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return name in CONFIG_MAPPING_NAMES


def _check_slots(introduction: Introduction, site: str) -> None:
    """Accept module paths for every slot of the tensors; a slot that the family has in the table keeps its path."""
    slots = introduction.slots
    for slot, path in slots.items():
        if not MODULE_PATH.fullmatch(path) or not re.fullmatch(SLOT, slot) or slot == "shared":
            raise _refused(
                site, f"announces {path!r:.120} as the place of slot {slot!r:.60}, which is not a valid path"
            )
    for slot, path in places(introduction.family).items():
        if not f".{slots.get(slot, path)}".endswith(f".{path}"):
            raise _refused(site, f"announces another place of slot {slot} than family {introduction.family} has")
    if len(slots) > MAX_SLOTS:
        raise _refused(site, f"announces {len(slots)} slots of its model, allowed are {MAX_SLOTS}")
    adapter = (key for key in introduction.schema if key.startswith("layer."))
    named = {parts.slot for key in adapter if (parts := parse_key(key))}
    if slots and named - set(slots):
        raise _refused(site, f"announces tensors in slot {min(named - set(slots))}, but not where that is")


def check_score_reply(reply: ScoreReply, *, site: str, round: int, schema: Schema) -> None:
    """Accept a reply to `score` only with one score for each layer that the site announced."""
    if reply.problem:
        reason = sentence(reply.problem, reply.setting)
        raise FedpeftError(f"site {site} could not score round {round}: {reason}")
    _check_round(reply.round, round, site)
    _check_seconds(reply.seconds, site)
    check_scores(reply.scores, len(layers_of(schema)), site)


def check_train_reply(
    reply: TrainReply,
    *,
    site: str,
    order: TrainOrder,
    schema: Schema,
    dtype: str,
    samples: int,
    at_relay: bool = False,
) -> None:
    """Accept a reply to `train` only if it is as announced, of the layers that were ordered, and finite.

    Any other must not reach the global adapter. The schema is empty in a job without exchanged adapters; an adapter
    that is `at_relay` has been checked there.
    """
    if reply.problem:
        attempts = f" in {MAX_ATTEMPTS} attempts" if reply.attempts == MAX_ATTEMPTS else ""
        raise FedpeftError(
            f"site {site} could not finish round {order.round}{attempts}: {sentence(reply.problem, reply.setting)}"
        )
    _check_round(reply.round, order.round, site)
    if reply.samples != samples:
        raise _refused(site, f"reports {reply.samples} training samples, announced were {samples}")
    _check_seconds(reply.seconds, site)
    if not 1 <= reply.attempts <= MAX_ATTEMPTS:
        raise _refused(site, f"reports {reply.attempts} attempts, allowed are 1 to {MAX_ATTEMPTS}")
    _check_metrics(reply.metrics, site)
    check_scores(reply.scores, len(layers_of(schema)) if order.scored else 0, site)
    assigned = {key: shape for key, shape in schema.items() if belongs(key, order.layers)}
    if at_relay:
        assigned = {}
    check_tensors(reply.state, site=site, schema=assigned, dtype=dtype, masked=bool(order.sum_keys))
    _check_sum_key(reply.sum_key, site, needed=bool(order.sum_keys))


def check_tensors(state: Mapping[Any, Any], *, site: str, schema: Schema, dtype: str, masked: bool = False) -> None:
    """Refuse tensors unless keys, shapes and dtype are as announced, dense, finite and at most `MAX_WEIGHT`.

    Masked ones are int64, every value as likely as any other.
    """
    if masked:
        misfit = first_misfit(state, schema, dtype="int64")
    else:
        misfit = first_misfit(state, schema, dtype=dtype, bound=MAX_WEIGHT)
    if misfit is None:
        return
    if misfit.what == "keys":
        missing, extra = misfit.missing, misfit.unknown
        what = f"lacks {some(missing)}" if missing else f"has unannounced keys {some(extra)}"
        raise _refused(site, f"sent an adapter that {what}")
    key, tensor = misfit.key, state[misfit.key]
    if masked and getattr(tensor, "dtype", None) != torch.int64:
        raise _refused(site, f"sent {key} without a mask in a secure sum, which loses this round")
    if misfit.what == "form" or not (masked or tensor.is_floating_point()):
        nested = "nested tensor, " if getattr(tensor, "is_nested", False) else ""
        kind = f"{nested}{tensor.layout} of {tensor.dtype}" if isinstance(tensor, torch.Tensor) else shown(tensor)
        raise _refused(site, f"sent {key} as {kind}, only dense floating-point tensors are accepted")
    if misfit.what == "dtype":
        raise _refused(site, f"sent {key} as {tensor.dtype}, announced was {dtype}")
    if misfit.what == "shape":
        raise _refused(site, f"sent {key} with shape {list(tensor.shape)}, announced was {schema[key]}")
    if misfit.what == "finite":
        raise _refused(site, f"sent NaN or infinity in {key}", DIVERGED)
    limit = f"allowed are {-MAX_WEIGHT:g} to {MAX_WEIGHT:g}"
    raise _refused(site, f"sent {misfit.value:.3g} in {key}, {limit}", DIVERGED)


def check_scores(scores: Sequence[float], count: int, site: str) -> None:
    """Refuse scores that are not finite, negative or of the wrong number; the error names the site."""
    if len(scores) != count:
        raise _refused(site, f"sent {len(scores)} layer scores, {count} were asked for")
    for number, value in enumerate(scores):
        if not isinstance(value, (int, float)) or not 0 <= value <= MAX_SCORE:
            limit = f"allowed are 0 to {MAX_SCORE:g}"
            raise _refused(site, f"sent {value!r} as the score of layer {number}, {limit}", DIVERGED)


def _check_sum_key(offered: Mapping[str, list[str]], site: str, *, needed: bool = False) -> None:
    """Refuse a malformed key here, so that it costs only its own site the round and not all others."""
    if offered or needed:
        signed_keys.read(offered, site=site)


def _check_round(sent: int, expected: int, site: str) -> None:
    if sent != expected:
        raise _refused(site, f"answered for round {sent} in round {expected}")


def _check_seconds(seconds: float, site: str) -> None:
    if not 0 <= seconds <= MAX_FIGURE:
        raise _refused(site, f"reports {seconds} seconds of work, allowed are 0 to {MAX_FIGURE:g}")


def _check_metrics(metrics: Mapping[str, float | None], site: str) -> None:
    if set(metrics) != set(METRICS):
        raise _refused(site, f"sent metrics {some(metrics, 9)}, declared are {', '.join(sorted(METRICS))}")
    for name, value in metrics.items():
        if value is None:
            continue
        if not (math.isfinite(value) and abs(value) <= MAX_FIGURE):
            limit = f"it must be a finite number, up to {MAX_FIGURE:g}"
            raise _refused(site, f"sent {value!r} as metric {name}, {limit}", DIVERGED)
        if name in (*FRACTIONS, BELOW_CONSTANT) and not 0 <= value <= 1:
            raise _refused(site, f"sent {value!r} as metric {name}, it must be a fraction from 0 to 1")


def _refused(site: str, what: str, remedy: str = RESTART) -> FedpeftError:
    """Return the error for an unusable message: who sent it, what is wrong, and what to do."""
    return FedpeftError(f"site {site} {what}: {remedy}.")
