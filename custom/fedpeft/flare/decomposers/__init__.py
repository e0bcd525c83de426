# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What FLARE imports first in a simulated site's process: register the tensor messages, in the background.

Its simulator waits a second before it connects to a process that it has started; torch, whose import takes longer than
all else in that process, is imported meanwhile.
"""

import threading


def _register() -> None:
    from fedpeft.flare.messages import register_tensors

    register_tensors()


threading.Thread(target=_register, daemon=True).start()
