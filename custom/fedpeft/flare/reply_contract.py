# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a reply must be: the one place that turns what a site sent into a checked message, or into a reason by name.

The server reads every reply here, as it arrives; a site's outgoing filter holds its own replies to the same checks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from nvflare.app_common.abstract.fl_model import FLModel

from fedpeft import backbones, data
from fedpeft.backbones.slots import SLOTS
from fedpeft.errors import FedpeftError
from fedpeft.flare.message_fields import LARGEST_WHOLE_NUMBER, shown, some
from fedpeft.flare.messages import (
    ACCURACIES,
    METRICS,
    SPLITS,
    Introduction,
    Schema,
    ScoreReply,
    TrainOrder,
    TrainReply,
)
from fedpeft.keys import belongs, layers_of, parse_key
from fedpeft.privacy import signed_keys
from fedpeft.privacy.problem_codes import sentence
from fedpeft.server.assignment import check_scores
from fedpeft.worker.supervisor import ATTEMPTS

DTYPES = ("float32", "bfloat16", "float16")
LARGEST_WEIGHT = 1e6  # no weight of a network comes near; what does would reach the others through the mean
LARGEST_FIGURE = 1e9  # seconds and losses
MOST_AXES = 8


def read_introduction(model: FLModel, *, site: str, initial: bool, most_samples: int) -> Introduction:
    """The reply to `hello` of a site that can take part.

    Args:
        model: what arrived.
        site: who sent it.
        initial: whether it was to send the adapter that it starts from.
        most_samples: training samples that a site may announce.

    Raises:
        FedpeftError: naming the site and what is wrong, or why it cannot take part.
    """
    introduction = Introduction.from_model(model, sender=f"site {site}")
    if introduction.problem:
        reason = sentence(introduction.problem, introduction.setting)
        raise FedpeftError(f"site {site} cannot take part: {reason}")
    check_introduction(introduction, site=site, most_samples=most_samples)
    schema = introduction.schema if initial else {}
    check_tensors(introduction.state, site=site, schema=schema, dtype=introduction.dtype)
    return introduction


def read_scores(model: FLModel, *, site: str, round: int, introduction: Introduction) -> ScoreReply:
    """The reply to `score`, with one score for each layer that the site announced.

    Raises:
        FedpeftError: naming the site and what is wrong.
    """
    reply = ScoreReply.from_model(model, sender=f"site {site}")
    check_score_reply(reply, site=site, round=round, layers=len(layers_of(introduction.schema)))
    return reply


def read_training(
    model: FLModel, *, site: str, order: TrainOrder, introduction: Introduction, exchanges: bool
) -> TrainReply:
    """The reply to `train`: exactly what the site announced, of the layers that it was to train.

    Args:
        model: what arrived.
        site: who sent it.
        order: what the site was to do.
        introduction: what it announced.
        exchanges: whether adapters travel in this job.

    Raises:
        FedpeftError: naming the site and what is wrong.
    """
    reply = TrainReply.from_model(model, sender=f"site {site}")
    announced = introduction.schema if exchanges else {}
    assigned = {key: shape for key, shape in announced.items() if belongs(key, order.layers)}
    check_reply(
        reply,
        site=site,
        round=order.round,
        schema=assigned,
        dtype=introduction.dtype,
        samples=introduction.samples["train"],
        scores=len(layers_of(announced)) if order.scored else 0,
        masked=bool(order.sum_keys),
    )
    return reply


def check_introduction(introduction: Introduction, *, site: str, most_samples: int = LARGEST_WHOLE_NUMBER) -> None:
    """Accept an introduction only if its names are known, its numbers are counts and its keys are wire keys.

    Raises:
        FedpeftError: naming the site and the field.
    """
    for name, known in (("dataset", data.names()), ("backbone", backbones.names()), ("family", SLOTS)):
        if getattr(introduction, name) not in known:
            raise FedpeftError(f"site {site} names an unknown {name}: install the same fedpeft version everywhere.")
    if introduction.dtype not in DTYPES:
        raise FedpeftError(f"site {site} announces tensors of {introduction.dtype!r:.40}, allowed are {DTYPES}.")
    if set(introduction.samples) != set(SPLITS):
        raise FedpeftError(f"site {site} sent no counts of {', '.join(SPLITS)} samples.")
    counts = {f"samples.{split}": count for split, count in introduction.samples.items()}
    counts |= {name: getattr(introduction, name) for name in ("classes", "budget", "finished")}
    for name, count in counts.items():
        if count < 0:
            raise FedpeftError(f"site {site} announces {count} as {name}: it must be a count.")
    samples = introduction.samples["train"]
    if not 1 <= samples <= most_samples:
        raise FedpeftError(
            f"site {site} announces {samples} training samples, it must be from 1 to {most_samples} "
            f"(federation.max_samples)."
        )
    _check_sum_key(introduction.sum_key, site)
    for key, shape in introduction.schema.items():
        if not key.startswith("backbone."):
            parse_key(key)
        elif not all(part.isidentifier() or part.isdigit() for part in key.split(".")):
            raise FedpeftError(f"site {site} announces {key!r:.120}, which is not a tensor's name.")
        if len(shape) > MOST_AXES or not all(1 <= n <= 2**31 for n in shape):
            raise FedpeftError(f"site {site} announces {key} with shape {shape!r:.60}, which is no shape.")


def check_score_reply(reply: ScoreReply, *, site: str, round: int, layers: int) -> None:
    """Accept a reply only if it has one score for each of that many layers.

    Raises:
        FedpeftError: naming the site and what is wrong.
    """
    if reply.problem:
        reason = sentence(reply.problem, reply.setting)
        raise FedpeftError(f"site {site} could not score round {round}: {reason}")
    _check_round(reply.round, round, site)
    _check_seconds(reply.seconds, site)
    check_scores(reply.scores, layers, site)


def check_reply(
    reply: TrainReply,
    *,
    site: str,
    round: int,
    schema: Schema,
    dtype: str,
    samples: int,
    scores: int,
    masked: bool = False,
) -> None:
    """Accept a reply only if it is what the site announced, and finite.

    Args:
        reply: from the site, its fields of their declared types.
        site: its name.
        round: that it must be for.
        schema: by key, the shapes of the tensors that it must hold.
        dtype: of these tensors.
        samples: training samples that the site announced.
        scores: layer scores that it must hold.
        masked: whether its tensors are masked for a secure sum.

    Raises:
        FedpeftError: with the site, the key and what is wrong; such a reply must not reach the global adapter.
    """
    if reply.problem:
        attempts = f" in {ATTEMPTS} attempts" if reply.attempts == ATTEMPTS else ""
        raise FedpeftError(
            f"site {site} could not finish round {round}{attempts}: {sentence(reply.problem, reply.setting)}"
        )
    _check_round(reply.round, round, site)
    if reply.samples != samples:
        raise FedpeftError(f"site {site} reports {reply.samples} training samples, it announced {samples}.")
    _check_seconds(reply.seconds, site)
    if not 1 <= reply.attempts <= ATTEMPTS:
        raise FedpeftError(f"site {site} reports {reply.attempts} attempts, a site makes 1 to {ATTEMPTS}.")
    _check_metrics(reply.metrics, site)
    check_scores(reply.scores, scores, site)
    check_tensors(reply.state, site=site, schema=schema, dtype=dtype, masked=masked)
    _check_sum_key(reply.sum_key, site, needed=masked)


def check_tensors(state: Mapping[Any, Any], *, site: str, schema: Schema, dtype: str, masked: bool = False) -> None:
    """Exactly the announced keys and shapes, dense, of the announced dtype, finite and no larger than a weight is.

    Args:
        state: what arrived; its keys may be anything.
        site: who sent it.
        schema: by key, the shape that was announced.
        dtype: that was announced, as torch names it.
        masked: whether they are masked: int64 then, every value as likely as any other.

    Raises:
        FedpeftError: naming the site and the key.
    """
    missing, extra = set(schema) - set(state), set(state) - set(schema)
    if missing or extra:
        what = f"lacks {some(missing)}" if missing else f"has unannounced keys {some(extra)}"
        raise FedpeftError(f"the adapter of site {site} {what}: it must send exactly the tensors of its schema.")
    for key, tensor in state.items():
        if masked and getattr(tensor, "dtype", None) != torch.int64:
            raise FedpeftError(f"site {site} sent {key} without a mask in a secure sum: this round is lost.")
        dense = type(tensor) is torch.Tensor and tensor.layout == torch.strided and tensor.device.type != "meta"
        if not dense or not (masked or tensor.is_floating_point()):
            kind = f"{tensor.layout} of {tensor.dtype}" if isinstance(tensor, torch.Tensor) else shown(tensor)
            raise FedpeftError(f"site {site} sent {key} as {kind}: only dense floating-point tensors are accepted.")
        if list(tensor.shape) != list(schema[key]):
            raise FedpeftError(f"site {site} sent {key} with shape {list(tensor.shape)}, announced was {schema[key]}.")
        if masked:
            continue
        if str(tensor.dtype) != f"torch.{dtype}":
            raise FedpeftError(f"site {site} sent {key} as {tensor.dtype}, announced was {dtype}.")
        low, high = (float(end) for end in torch.aminmax(tensor)) if tensor.numel() else (0.0, 0.0)
        if not (math.isfinite(low) and math.isfinite(high)):
            raise FedpeftError(f"site {site} sent NaN or infinity in {key}: its training diverged.")
        if max(-low, high) > LARGEST_WEIGHT:
            raise FedpeftError(
                f"site {site} sent {max(-low, high):.3g} in {key}, no weight is above {LARGEST_WEIGHT:g}: its training "
                f"diverged."
            )


def _check_sum_key(offered: Mapping[str, list[str]], site: str, *, needed: bool = False) -> None:
    """Blame the right one: a malformed key would make all other sites refuse the round."""
    if offered or needed:
        signed_keys.read(offered, site=site)


def _check_round(sent: int, expected: int, site: str) -> None:
    if sent != expected:
        raise FedpeftError(f"site {site} answered for round {sent} in round {expected}.")


def _check_seconds(seconds: float, site: str) -> None:
    if not 0 <= seconds <= LARGEST_FIGURE:
        raise FedpeftError(f"site {site} reports {seconds} seconds of work: it must be a finite number.")


def _check_metrics(metrics: Mapping[str, float | None], site: str) -> None:
    if set(metrics) != set(METRICS):
        raise FedpeftError(f"site {site} sent metrics {some(metrics, 9)}, declared are {', '.join(sorted(METRICS))}.")
    for name, value in metrics.items():
        if value is None:
            continue
        if not (math.isfinite(value) and abs(value) <= LARGEST_FIGURE):
            raise FedpeftError(f"site {site} sent {value!r} as metric {name}: it must be a finite number.")
        if name in ACCURACIES and not 0 <= value <= 1:
            raise FedpeftError(f"site {site} sent {value!r} as metric {name}: it must be a fraction from 0 to 1.")
