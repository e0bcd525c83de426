# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""An executor that puts what it must not into its replies."""

from nvflare.apis.fl_constant import FLContextKey

from fedpeft.flare.executor import SiteExecutor


class Leaker(SiteExecutor):
    """One site sends a field of its own, with free text, in one round; it goes around whatever checks itself."""

    def __init__(self, faulty_site: str, round: int, secret: str, **settings) -> None:
        super().__init__(**settings)
        self._leak = faulty_site, round, secret

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        """Answer as it should, and add something."""
        reply = super().execute(task_name, shareable, fl_ctx, abort_signal)
        faulty_site, round, secret = self._leak
        fields = reply["DXO"]["meta"]["fedpeft"]
        task = fl_ctx.get_prop(FLContextKey.TASK_NAME)
        if fl_ctx.get_identity_name() == faulty_site and task == "train" and fields["round"] == round:
            fields["comment"] = secret
        return reply
