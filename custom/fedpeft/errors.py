# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The one exception that means: your input, not our bug."""


class FedpeftError(ValueError):
    """Bad input or setting, told in one sentence that names the value and the remedy."""
