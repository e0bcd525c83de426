# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The one exception that means: your input, not our bug."""


class FedpeftError(ValueError):
    """Bad input or setting, told in one sentence that names the value and the remedy."""


class LocalError(FedpeftError):
    """One whose sentence names a file or value of a site: it stays at the site, the server learns only that it was."""
