# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Write all figures of a run as CSV, one row for each site and round."""

from __future__ import annotations

import csv
import io

from fedpeft.core.csv_cells import csv_cell
from fedpeft.report.history import History
from fedpeft.report.series import ACCURACIES
from fedpeft.report.wording import note as note_of

COLUMNS = ("job", "method", "round", "site", "status", *ACCURACIES, "loss", "samples", "alignment", "reason", "note")


def tidy_csv(history: History) -> str:
    """Return one row for each round and site: fractions in full precision, an empty cell for none.

    ``status`` is "replied", "rejected" or "absent". ``note`` stands in every row, not in a comment above the head, so
    that it survives any reader and any filter. The same history gives the same text.
    """
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(COLUMNS)
    note = note_of(history)
    for one in history.rounds:
        for site in history.sites:
            result = one.sites.get(site)
            status = "rejected" if site in one.rejected else "absent" if result is None else "replied"
            row = [history.job, history.method, one.round, site, status]
            row += [getattr(result, name, None) for name in (*ACCURACIES, "loss", "samples")]
            row += [one.alignment.get(site), one.rejected.get(site), note]
            rows.writerow(map(csv_cell, row))
    return text.getvalue()
