# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Clip and noise a checked reply before it leaves, and record the release in the ledger.

A repeated order (same global adapter, round and layers) gets the bytes of the earlier release, which reveals nothing
new and costs nothing. Any other order, even for the same round, gets fresh noise and is counted.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import replacing, write_json
from fedpeft.core.states import State
from fedpeft.job.privacy_settings import RECEIVED, WITHHOLD, PrivacySettings
from fedpeft.protocol.ledger import enter
from fedpeft.protocol.release import release_adapter, release_scores
from fedpeft.protocol.types import ACCURACIES, METRICS, ScoreOrder, ScoreReply, TrainOrder, TrainReply

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
    """Clip and noise one reply, or return the earlier release if the order is repeated.

    Args:
        reply: already checked by the reply policy, without a problem.
        order: the order that it answers.
        reference: the global adapter that came with the order.
        settings: the site's privacy settings.
        folder: where the last releases are kept.
        book: the ledger file, see `ledger.enter`; a release is recorded under the lineage of its order.

    Raises:
        FedpeftError: the reply must not leave; the message says why.
    """
    trained = isinstance(reply, TrainReply)
    if isinstance(reply, TrainReply) and reply.sum_key:
        raise FedpeftError(
            "an adapter under the masks of a secure sum cannot be clipped or noised: switch off privacy in the site's "
            "privacy.json, and set sum_noise in its fedpeft.json."
        )
    kind = "train" if trained else "score"
    digest = _digest(kind, order, reference, settings)
    stored = folder / f"release_{kind}.safetensors"
    state, scores = _previous_release(stored, digest)
    if state is None:
        base = reference if settings.reference == RECEIVED else None
        state, norm = release_adapter(reply.state, base, settings) if trained and reply.state else ({}, None)
        scores = release_scores(reply.scores, settings) if reply.scores else []
        summary = _account(settings, order, state, scores, folder=folder, book=book)
        summary += f"; norm before clipping {norm:.3g}, clip {settings.clip:g}" if norm is not None else ""
        kept = {f"adapter.{key}": tensor.contiguous() for key, tensor in state.items()}
        with replacing(stored) as draft:
            save_file({**kept, SCORES: torch.tensor(scores, dtype=torch.float64)}, draft, metadata={"order": digest})
    else:
        summary = "the same order as before: the same release again, which costs nothing"
    changes: dict[str, Any] = {"scores": scores}
    if trained:
        changes |= {"state": state}
        if settings.metrics == WITHHOLD:
            changes |= {"metrics": dict.fromkeys(METRICS)}
    return Release(dataclasses.replace(reply, **changes), f"round {order.round}: {summary}")


def _account(
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
    spent = enter(book, order.lineage, releases, delta=settings.delta, limit=settings.limit)
    covers = "adapter and scores; sample counts and times are not covered"
    if settings.metrics != WITHHOLD:
        covers += f", nor are {', '.join(ACCURACIES)} and losses"
    facts = {**dataclasses.asdict(spent), "delta": settings.delta, "covers": covers, "book": str(book)}
    write_json(folder.parent / SPENT, facts)
    return (
        f"epsilon {spent.epsilon_of_job:.3g} at delta {settings.delta:g} after {spent.releases_of_job} releases of "
        f"this job, {spent.epsilon:.3g} after {spent.releases} of all jobs ({covers})"
    )


def _digest(kind: str, order: ScoreOrder | TrainOrder, reference: State, settings: PrivacySettings) -> str:
    requested = {"layers": order.layers, "scored": order.scored} if isinstance(order, TrainOrder) else {}
    facts = {"kind": kind, "lineage": order.lineage, "round": order.round, **requested, **dataclasses.asdict(settings)}
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for key in sorted(reference):
        tensor = reference[key].detach().cpu().contiguous()
        digest.update(f"{key} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _previous_release(file: Path, digest: str) -> tuple[dict[str, torch.Tensor] | None, list[float]]:
    if not file.is_file():
        return None, []
    with safe_open(file, framework="pt") as stored:
        if (stored.metadata() or {}).get("order") != digest:
            return None, []
        kept = {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118
    scores = kept.pop(SCORES).tolist()
    return {key.removeprefix("adapter."): tensor for key, tensor in kept.items()}, scores
