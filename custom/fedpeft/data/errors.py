# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The error for wrong data or data settings of a site."""

from fedpeft.errors import LocalError


class DataError(LocalError):
    """A folder, file, row or setting is wrong; the message names it and the remedy, never a question or an answer."""

    usual_code = "data-unusable"
