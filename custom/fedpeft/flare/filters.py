# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The two filters of a site's `privacy.json`: store the server's order, and check the reply against it.

    task data, in      RememberOrder   stores the order
    task result, out   AdapterOnly     checks the reply against it, and clips and noises it if the site sets that

Both work only in the site's own scope (and in the simulator, which has no scopes): a job cannot add them.

Their constructors raise nothing, because a site whose filters cannot be built would end the whole job. An error is
written to the site's log; the server learns only that the reply was blocked.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from nvflare.apis.dxo import DataKind
from nvflare.apis.filter import Filter, FilterContextKey, FilterSource
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import DISK_FULL
from fedpeft.core.settings import build
from fedpeft.flare.folders import lineages_folder, run_folder
from fedpeft.flare.messages import FIELDS, from_model, model_of, register_tensors, to_model
from fedpeft.flare.policy import policy_of, simulated
from fedpeft.protocol import PrivacySettings, epsilon
from fedpeft.protocol.differential_privacy import LEDGER, release_reply
from fedpeft.protocol.fields import BLOCKED
from fedpeft.protocol.outgoing_reply import (
    FOLDER,
    AnnouncementStore,
    check_known,
    permissions_needed,
    rebuilt,
    refuse_others,
    without_withheld,
)
from fedpeft.protocol.types import (
    TASKS,
    TOO_LARGE,
    Hello,
    Introduction,
    Order,
    Reply,
    ScoreOrder,
    TrainOrder,
    empty_reply,
)
from fedpeft.site.orders import apply_delta
from fedpeft.site.site_tasks import note_problem

OFF = "off"
ORDER = "fedpeft.order"
HEADERS = {ReservedHeaderKey.CONTENT_TYPE, AppConstants.START_ROUND, AppConstants.CURRENT_ROUND}


class RememberOrder(Filter):
    """Stores the order of a task for `AdapterOnly`; a task data filter, direction `in`.

    In round 0 it requests the site's initial adapter even if the server does not: that has the shapes and dtypes which
    the site may send, and the first update is measured from it. `AdapterOnly` removes the adapter again.
    """

    def __init__(self, **unknown: Any) -> None:
        super().__init__()
        register_tensors()
        self._unknown = unknown

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Store the order; return the task, with the initial adapter requested in round 0."""
        task = fl_ctx.get_prop(FLContextKey.TASK_NAME)
        if task not in TASKS:
            return shareable
        try:
            _refuse_misuse(self, self._unknown, fl_ctx)
            store = AnnouncementStore(run_folder(fl_ctx) / FOLDER)
            model = model_of(shareable)
            message = from_model(TASKS[task].order, model)
            remembered: Order | Exception = message
            if isinstance(message, Hello) and not store.trained:
                shareable["DXO"]["meta"] = copy.deepcopy(model.meta)
                shareable["DXO"]["meta"][FIELDS]["initial"] = True
            if not isinstance(message, Hello):  # scoring also loads the adapter that the site has trained
                store.note_training()
        except Exception as error:
            remembered = error
        fl_ctx.set_prop(ORDER, remembered, private=True, sticky=False)
        return shareable


class AdapterOnly(Filter):
    """Blocks a reply unless every part of it was requested; a task result filter, direction `out`.

    Args:
        privacy: `off`, or the values of `PrivacySettings` with which replies are clipped and noised. The site's
            workspace then has a ledger of the releases of all jobs.
    """

    def __init__(self, privacy: dict[str, Any] | str | None = OFF, **unknown: Any) -> None:
        super().__init__()
        register_tensors()
        self._privacy, self._unknown = privacy, unknown

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Return the reply rebuilt from its checked values, or one that reports that it was blocked."""
        task = fl_ctx.get_prop(FLContextKey.TASK_NAME)
        try:
            code = shareable.get_return_code()
            if code != ReturnCode.OK:
                return make_reply(code if code in vars(ReturnCode).values() else ReturnCode.TASK_RESULT_FILTER_ERROR)
            if task not in TASKS:
                raise FedpeftError(f"the reply to a task {task!r:.60}, which is not a task of fedpeft.")
            return _shareable(self._checked(shareable, TASKS[task].reply, fl_ctx))
        except Exception as error:
            return self._block(task, shareable, error, fl_ctx)

    def _checked(self, shareable: Shareable, kind: type[Reply], fl_ctx: FLContext) -> Reply:
        _refuse_misuse(self, self._unknown, fl_ctx)
        settings = self._settings()
        order = fl_ctx.get_prop(ORDER)
        if not isinstance(order, Order):
            raise FedpeftError(
                f"the order of this task is not known ({order}): RememberOrder must be among the scope's "
                f"task_data_filters with direction in, see fedpeft.flare.policy."
            )
        store = AnnouncementStore(run_folder(fl_ctx) / FOLDER)
        reply = _read(shareable, kind)
        announced = store.load()
        sent = rebuilt(reply, order, announced, site=fl_ctx.get_identity_name(), trained=store.trained)
        if permissions_needed(sent):
            without_withheld(sent, policy_of(fl_ctx))
        if isinstance(reply, Introduction):
            if settings and settings.noise:
                epsilon([settings.noise], settings.delta)  # report a missing accountant before training
            if announced is None and not reply.problem:
                store.save(reply)
            return sent
        if settings is None or reply.problem:
            return sent
        # the executor has accepted this order before, and written its adapter to disk
        received = apply_delta(store.folder, order.state, base=order.base, version=order.version)
        release = release_reply(
            sent,
            order,
            received or store.first_adapter(),
            settings,
            folder=store.folder,
            book=lineages_folder(fl_ctx) / LEDGER,
        )
        self.log_info(fl_ctx, f"site {fl_ctx.get_identity_name()}: {release.summary}", fire_event=False)
        return release.reply

    def _settings(self) -> PrivacySettings | None:
        if self._privacy == OFF:
            return None
        return build(PrivacySettings, self._privacy, section="privacy")

    def _block(self, task: str, shareable: Shareable, error: Exception, fl_ctx: FLContext) -> Shareable:
        """Log the reason at the site, and report to the server only that the reply was blocked."""
        problem = str(error) if isinstance(error, FedpeftError) else f"{type(error).__name__}: {error}"
        problem = f"blocked on its way out of task {task}: {problem}"
        self.log_error(fl_ctx, f"site {fl_ctx.get_identity_name()}: {problem}", fire_event=False)
        note_problem(run_folder(fl_ctx), fl_ctx.get_identity_name(), problem)
        if task not in TASKS:
            return make_reply(ReturnCode.TASK_RESULT_FILTER_ERROR)
        order = fl_ctx.get_prop(ORDER)
        round = order.round if isinstance(order, (ScoreOrder, TrainOrder)) else 0
        codes = [one.code for one in (order, error) if isinstance(one, FedpeftError)]
        code = next((code for code in codes if code in (TOO_LARGE, DISK_FULL)), BLOCKED)
        return _shareable(empty_reply(TASKS[task].reply, round=round, problem=code))


def _refuse_misuse(component: Filter, unknown: dict[str, Any], fl_ctx: FLContext) -> None:
    """Refuse a filter that a job brought, or one with unknown arguments."""
    name = type(component).__name__
    if component.get_prop(FilterContextKey.SOURCE) != FilterSource.SITE and not simulated(fl_ctx):
        raise FedpeftError(f"{name} is in the job: only a site's own privacy.json may use it.")
    if unknown:
        raise FedpeftError(f"{name} has no argument {min(unknown)!r}: correct the site's privacy.json.")


def _read(shareable: Shareable, kind: type[Reply]) -> Reply:
    """Read the message in a reply that FLARE is about to send; refuse anything else in it."""
    refuse_others("part", shareable, {ReservedHeaderKey.HEADERS, "DXO"})
    refuse_others("header", shareable.get(ReservedHeaderKey.HEADERS) or {}, HEADERS)
    content = shareable.get("DXO")
    refuse_others("part of the content", content if isinstance(content, Mapping) else {}, {"kind", "data", "meta"})
    if not isinstance(content, Mapping) or content.get("kind") != DataKind.WEIGHTS:
        got = content.get("kind") if isinstance(content, Mapping) else type(content).__name__
        raise FedpeftError(f"content of kind {got!r:.60}, only {DataKind.WEIGHTS!r} may leave.")
    refuse_others("meta field", content.get("meta") or {}, {FIELDS})
    check_known(kind, (content.get("meta") or {}).get(FIELDS) or {})
    return from_model(kind, FLModelUtils.from_shareable(shareable), sender="the executor")


def _shareable(reply: Reply) -> Shareable:
    return FLModelUtils.to_shareable(to_model(reply, round=getattr(reply, "round", 0)))
