# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Clip and noise the adapter and the scores that a site sends, and record each release before it leaves.

    adapter:  round(reference + clip(sent - reference) + N(0, (noise * 2 * clip)^2))
    scores:   max(0, clip(scores) + N(0, (score_noise * sqrt(2) * score_clip)^2))

The sum is formed in float64 and then rounded to the tensor's own dtype, float32 or bf16. Rounding is
post-processing of the noised number, so it cannot weaken the guarantee; the same holds for max(0, .). The theorem does
not model the finite precision of float64 in the sum itself.

A site's ledger holds the noised releases of all its jobs, one JSON line each, written before the release leaves. One
that is recorded and then lost on the way still counts: an unrecorded release would break the guarantee.

A repeated order (same global adapter, round and layers) gets the bytes of the earlier release, which reveals nothing
new and costs nothing. Any other order, even for the same round, gets fresh noise and is counted.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from scipy.special import ndtri

from fedpeft.core.errors import FedpeftError, LocalError
from fedpeft.core.files import DISK_FULL, append, is_full, replacing, write_json
from fedpeft.core.states import State, digest
from fedpeft.job.site_policy import RECEIVED, WITHHOLD, PrivacySettings
from fedpeft.protocol.fields import BLOCKED
from fedpeft.protocol.types import ACCURACIES, METRICS, ScoreOrder, ScoreReply, TrainOrder, TrainReply

ORDERS = tuple(1 + 10 ** (k / 40) for k in range(-200, 161))


def epsilon(noise: Sequence[float], delta: float) -> float:
    """Return epsilon of a sequence of Gaussian releases, each chosen adaptively after the ones before.

    A release with noise z (standard deviation over sensitivity) has the Renyi divergence a / (2 z^2) at every order a;
    divergences of releases add; the best order gives epsilon (Mironov 2017; Balle et al. 2020, theorem 21), an upper
    bound. Every release is of the whole site: nothing is subsampled, so nothing is amplified.

    Args:
        noise: z of every release, in any order.
        delta: of the guarantee.

    Raises:
        FedpeftError: opacus, which computes epsilon, is not installed; or a release has no noise.
    """
    if not all(z > 0 for z in noise):
        raise FedpeftError(f"a release with noise {min(noise)!r} has no epsilon: noise must be above 0.")
    try:
        from opacus.accountants import RDPAccountant
    except ImportError as error:
        raise FedpeftError(
            f"the privacy accountant cannot be loaded ({error}): pip install 'flare-fedpeft[privacy]' at this site."
        ) from error
    accountant = RDPAccountant()
    for z in sorted(noise):
        accountant.step(noise_multiplier=z, sample_rate=1.0)
    return accountant.get_epsilon(delta, alphas=list(ORDERS)) if noise else 0.0


LEDGER = "book.jsonl"  # the file of a site's ledger, in the folder of all lineages


@dataclass(frozen=True, slots=True)
class Spent:
    """Epsilon and number of the releases of one job and of all jobs."""

    epsilon_of_job: float
    releases_of_job: int
    epsilon: float
    releases: int


def add_releases(file: Path, lineage: str, releases: Sequence[dict], *, delta: float, limit: float) -> Spent:
    """Record releases in the ledger and return epsilon of all releases there; after an error nothing may leave.

    A release has `noise`, its standard deviation over its sensitivity, and fields that identify it. `limit` is the
    largest epsilon of all releases together; 0: no limit.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "r+") as book:
            fcntl.flock(book, fcntl.LOCK_EX)
            added = [{"job": lineage, **release} for release in releases]
            entries = [*map(json.loads, book), *added]
            noise = [entry["noise"] for entry in entries]
            own = [z for z, entry in zip(noise, entries, strict=True) if entry["job"] == lineage]
            if not all(type(z) in (int, float) and math.isfinite(z) and z > 0 for z in noise):
                raise ValueError("a release without noise, or with noise that is no number")
            spent = Spent(epsilon(own, delta), len(own), epsilon(noise, delta), len(noise))
            if not spent.epsilon < math.inf:
                raise LocalError(
                    f"{len(noise)} releases with noise as low as {min(noise)} have no finite epsilon.", code=BLOCKED
                )
            if limit and spent.epsilon > limit:
                raise LocalError(
                    f"this release would take the epsilon of all jobs to {spent.epsilon:.3g} at delta {delta:g}, over "
                    f"the limit of {limit:g}.",
                    code=BLOCKED,
                )
            append(book, "".join(json.dumps(entry) + "\n" for entry in added))
    except FedpeftError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = "make room on its disk" if is_full(error) else "repair it"
        raise LocalError(
            f"the ledger of releases {file} cannot be used ({error}): {remedy}; until then nothing leaves the site.",
            code=DISK_FULL if is_full(error) else BLOCKED,
        ) from error
    return spent


Source = Callable[[int], bytes]


def gaussian(shape: tuple[int, ...], deviation: float, source: Source = os.urandom) -> torch.Tensor:
    """Draw independent samples of N(0, deviation^2), in float64.

    A job's seed is known to the server, and so is the state of a seeded generator once enough of its output is seen.
    The noise is therefore drawn from the operating system's cryptographic generator: 52 random bits u give
    deviation * Phi^-1((u + 1/2) / 2^52). Draws beyond 8.2 standard deviations, of probability 1e-16, cannot occur.

    Args:
        shape: of the result.
        deviation: standard deviation, not negative.
        source: from a number of bytes to that many random bytes; tests pass a seeded one.
    """
    count = int(np.prod(shape, dtype=np.int64))
    bits = np.frombuffer(source(8 * count), dtype=np.uint64) >> np.uint64(12)
    draws = ndtri((bits.astype(np.float64) + 0.5) * 2.0**-52)
    return torch.from_numpy(draws * deviation).reshape(shape)


def clipped_update(sent: State, reference: State | None, bound: float) -> tuple[dict[str, torch.Tensor], float]:
    """Clip the difference between an adapter and a reference to an L2 ball; return it and its norm before.

        u = sent - reference,    clipped = u * min(1, bound / |u|)

    The norm is the L2 norm over all tensors together. Two clipped updates u, v of any two data sets are at most
    |u - v| <= |u| + |v| <= 2 * bound apart: that is the sensitivity, without assumptions on the data, the training or
    the order of the neurons. The reference may depend on the site's data only through earlier releases.

    Args:
        sent: the adapter that would leave, any shapes.
        reference: holds every key of `sent` in the same shape; None: zero.
        bound: the radius, above 0.

    Returns:
        the clipped update in float64, and |u|, which is private.

    Raises:
        FedpeftError: NaN, infinity, or a key that the reference lacks or has in another shape.
    """
    update = {}
    for key, tensor in sent.items():
        update[key] = tensor.detach().to("cpu", torch.float64)
        if reference is not None:
            if key not in reference or reference[key].shape != tensor.shape:
                expected = tuple(reference[key].shape) if key in reference else "missing"
                raise FedpeftError(
                    f"{key} has shape {tuple(tensor.shape)}, {expected} in the global adapter that the site received: "
                    f"with adapters of several widths, use reference='zero'."
                )
            update[key] = update[key] - reference[key].to("cpu", torch.float64)
    norm = math.sqrt(sum(float(tensor.square().sum()) for tensor in update.values()))
    if not math.isfinite(norm):
        raise FedpeftError("the adapter's update has NaN or infinity: the site's training diverged.")
    factor = min(1.0, bound / norm) if norm else 1.0
    return {key: tensor * factor for key, tensor in update.items()}, norm


def clipped_scores(scores: Sequence[float], bound: float) -> list[float]:
    """Clip non-negative layer scores to an L2 ball.

    Two such vectors s, t have a non-negative inner product, so |s - t|^2 = |s|^2 + |t|^2 - 2 <s, t> <= 2 * bound^2: the
    sensitivity is sqrt(2) * bound.

    Raises:
        FedpeftError: a score is negative, NaN or infinite.
    """
    if not all(math.isfinite(score) and score >= 0 for score in scores):
        raise FedpeftError("the layer scores must be finite and not negative: the site's gradients diverged.")
    norm = math.hypot(*scores)
    if not math.isfinite(norm):
        raise FedpeftError("the layer scores are too large to be clipped: the site's gradients diverged.")
    factor = min(1.0, bound / norm) if norm else 1.0
    return [score * factor for score in scores]


def release_adapter(
    sent: State, reference: State | None, settings: PrivacySettings, source: Source = os.urandom
) -> tuple[dict[str, torch.Tensor], float]:
    """Clip and noise an adapter, in the dtypes of `sent`; also return the norm before clipping, which is private.

    Raises:
        FedpeftError: see `clipped_update`; or a noised number exceeds the range of its dtype.
    """
    update, norm = clipped_update(sent, reference, settings.clip)
    released = {}
    for key, tensor in update.items():
        total = tensor if reference is None else tensor + reference[key].to("cpu", torch.float64)
        if settings.noise:
            total = total + gaussian(tuple(total.shape), settings.deviation, source)
        released[key] = total.to(sent[key].dtype)
        if not torch.isfinite(released[key]).all():
            raise FedpeftError(f"{key} does not fit into {sent[key].dtype} once it is noised: lower clip or noise.")
    return released, norm


def release_scores(scores: Sequence[float], settings: PrivacySettings, source: Source = os.urandom) -> list[float]:
    """Clip and noise layer scores; the result is not negative.

    Raises:
        FedpeftError: invalid scores, or noise is set for the adapter and not for the scores.
    """
    if not settings.score_clip:
        if settings.noise:
            raise FedpeftError("layer scores may not leave without noise: set score_clip and score_noise.")
        return list(scores)
    values = torch.tensor(clipped_scores(scores, settings.score_clip), dtype=torch.float64)
    if settings.score_noise:
        values = values + gaussian((len(values),), settings.score_deviation, source)
    return values.clamp(min=0).tolist()


SPENT = "spent.json"
SCORES = "scores"


@dataclasses.dataclass(frozen=True, slots=True)
class Release:
    """The reply that leaves the site, and a one-line summary for the site's own log."""

    reply: ScoreReply | TrainReply
    summary: str


def release_reply(
    reply: ScoreReply | TrainReply,
    order: ScoreOrder | TrainOrder,
    reference: State,
    settings: PrivacySettings,
    *,
    folder: Path,
    book: Path,
) -> Release:
    """Clip and noise a checked reply, or return the earlier release if the order is repeated."""
    trained = isinstance(reply, TrainReply)
    if isinstance(reply, TrainReply) and reply.sum_key:
        raise FedpeftError(
            "an adapter under the masks of a secure sum cannot be clipped or noised: switch off privacy in the site's "
            "privacy.json, and set sum_noise in its fedpeft.json."
        )
    if isinstance(order, TrainOrder) and order.part:
        raise FedpeftError(
            "method.pia.share='agreement' takes what the site trained off the mean, and what leaves is clipped: ask "
            "for a job with a number as method.pia.share, or switch off privacy in the site's privacy.json."
        )
    kind = "train" if trained else "score"
    order_id = _id_of_order(kind, order, reference, settings)
    stored = folder / f"release_{kind}.safetensors"
    state, scores = _previous_release(stored, order_id)
    if state is None:
        base = reference if settings.reference == RECEIVED else None
        state, norm = release_adapter(reply.state, base, settings) if trained and reply.state else ({}, None)
        scores = release_scores(reply.scores, settings) if reply.scores else []
        summary = _record_in_ledger(settings, order, state, scores, folder=folder, book=book)
        summary += f"; norm before clipping {norm:.3g}, clip {settings.clip:g}" if norm is not None else ""
        kept = {f"adapter.{key}": tensor.contiguous() for key, tensor in state.items()}
        with replacing(stored) as draft:
            save_file({**kept, SCORES: torch.tensor(scores, dtype=torch.float64)}, draft, metadata={"order": order_id})
    else:
        summary = "the same order as before: the same release again, which costs nothing"
    changes: dict[str, Any] = {"scores": scores}
    if trained:
        changes |= {"state": state}
        if settings.metrics == WITHHOLD:
            changes |= {"metrics": dict.fromkeys(METRICS)}
    return Release(dataclasses.replace(reply, **changes), f"round {order.round}: {summary}")


def _record_in_ledger(
    settings: PrivacySettings,
    order: ScoreOrder | TrainOrder,
    state: State,
    scores: list[float],
    *,
    folder: Path,
    book: Path,
) -> str:
    releases = [
        {"round": order.round, "what": what, "noise": noise, "bound": bound}
        for what, present, noise, bound in (
            ("adapter", state, settings.noise, settings.clip),
            ("scores", scores, settings.score_noise, settings.score_clip),
        )
        if present
    ]
    if not releases:
        return "neither adapter nor scores left"
    if not settings.noise:
        return "clipped, without noise: no differential privacy"
    spent = add_releases(book, order.lineage, releases, delta=settings.delta, limit=settings.limit)
    covers = "adapter and scores; sample counts and times are not covered"
    if settings.metrics != WITHHOLD:
        covers += f", nor are {', '.join(ACCURACIES)} and losses"
    facts = {**dataclasses.asdict(spent), "delta": settings.delta, "covers": covers, "book": str(book)}
    write_json(folder.parent / SPENT, facts)
    return (
        f"epsilon {spent.epsilon_of_job:.3g} at delta {settings.delta:g} after {spent.releases_of_job} releases of "
        f"this job, {spent.epsilon:.3g} after {spent.releases} of all jobs ({covers})"
    )


def _id_of_order(kind: str, order: ScoreOrder | TrainOrder, reference: State, settings: PrivacySettings) -> str:
    requested = {"layers": order.layers, "scored": order.scored} if isinstance(order, TrainOrder) else {}
    facts = {"kind": kind, "lineage": order.lineage, "round": order.round, **requested, **dataclasses.asdict(settings)}
    return digest(reference, after=json.dumps(facts, sort_keys=True).encode())


def _previous_release(file: Path, order_id: str) -> tuple[dict[str, torch.Tensor] | None, list[float]]:
    if not file.is_file():
        return None, []
    with safe_open(file, framework="pt") as stored:
        if (stored.metadata() or {}).get("order") != order_id:
            return None, []
        kept = {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118
    scores = kept.pop(SCORES).tolist()
    return {key.removeprefix("adapter."): tensor for key, tensor in kept.items()}, scores
