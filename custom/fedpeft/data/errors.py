# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What is raised when a site's data or its data settings are wrong."""

from fedpeft.errors import LocalError


class DataError(LocalError):
    """A folder, file, row or setting is wrong; the sentence names it and the remedy, never a question or an answer."""

    usual_code = "data-unusable"
