# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""FLARE's receiver of W&B, whose process ends with the server's, however that ends.

FLARE's own waits forever after a `kill -9` of the server, with a copy of the server's connections.
"""

from __future__ import annotations

import os
import threading
from multiprocessing import Queue

from nvflare.app_opt.tracking.wandb.wandb_receiver import WandBReceiver

from fedpeft.core.processes import end_with


class BoundReceiver(WandBReceiver):
    """See the module."""

    def _process_queue_tasks(self, queue: Queue) -> None:
        threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
        super()._process_queue_tasks(queue)
