# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Check whether a task's result is still needed: FLARE itself asks the server only when there is a result."""

from __future__ import annotations

import time

from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReservedTopic, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

SECONDS_BETWEEN = 5.0
SECONDS_TO_ANSWER = 5.0


class TaskCheck:
    """A callable that returns True once the task is aborted here or canceled by the server; called repeatedly.

    Without it a site whose training hangs or is too slow would miss every later round too.
    """

    def __init__(self, fl_ctx: FLContext, abort_signal: Signal) -> None:
        self._fl_ctx, self._signal = fl_ctx, abort_signal
        self._last = time.monotonic()
        self._gone = False

    def __call__(self) -> bool:
        """Check the signal at every call and the server every few seconds; if it does not answer, the task goes on."""
        if time.monotonic() - self._last >= SECONDS_BETWEEN:
            self._gone = self._gone or self._server_gave_up()
            self._last = time.monotonic()
        return self._gone or self._signal.triggered

    def _server_gave_up(self) -> bool:
        runner, task = self._fl_ctx.get_prop(FLContextKey.RUNNER), self._fl_ctx.get_prop(FLContextKey.TASK_ID)
        if runner is None or not task:
            return False
        query = Shareable()
        query.set_header(ReservedKey.TASK_ID, task)
        answers = self._fl_ctx.get_engine().send_aux_request(
            targets=[runner.parent_target],
            topic=ReservedTopic.TASK_CHECK,
            request=query,
            timeout=SECONDS_TO_ANSWER,
            fl_ctx=self._fl_ctx,
            optional=True,
        )
        answer = (answers or {}).get(runner.parent_target)
        return isinstance(answer, Shareable) and answer.get_return_code() == ReturnCode.TASK_UNKNOWN
