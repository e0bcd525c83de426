# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A site's `privacy.json`: one scope, which every job falls under.

    python -m fedpeft.flare.policy > local/privacy.json
    python -m fedpeft.flare.policy clip=1 noise=2 > local/privacy.json

One scope only: with several, whoever writes a job chooses among them (`scope` in its meta.json).
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any

import yaml

from fedpeft.errors import FedpeftError
from fedpeft.privacy.settings import PrivacySettings
from fedpeft.settings import build

SCOPE = "fedpeft"


def default_scope(privacy: PrivacySettings | None = None, *, book: str = "") -> dict[str, Any]:
    """The whole of `privacy.json`.

    The directions are written out, so that a server that reads the same file, as the simulator's does, runs neither.

    Args:
        privacy: clip and noise what leaves; None: only check it.
        book: see `fedpeft.flare.filters.AdapterOnly`.
    """
    settings = dataclasses.asdict(privacy) if privacy else "off"
    return {
        "scopes": [
            {
                "name": SCOPE,
                "task_data_filters": [{"path": "fedpeft.flare.filters.RememberOrder", "args": {}, "direction": "in"}],
                "task_result_filters": [
                    {
                        "path": "fedpeft.flare.filters.AdapterOnly",
                        "args": {"privacy": settings, "book": book},
                        "direction": "out",
                    }
                ],
            }
        ],
        "default_scope": SCOPE,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the scope; arguments are settings of `PrivacySettings` as name=value."""
    try:
        values = dict(argument.split("=", 1) for argument in (sys.argv[1:] if arguments is None else arguments))
        chosen = {name: yaml.safe_load(value) for name, value in values.items()}
        book = chosen.pop("book", "")
        privacy = build(PrivacySettings, chosen, section="privacy") if chosen else None
    except (FedpeftError, ValueError) as error:
        print(f"fedpeft: {error}", file=sys.stderr)
        return 1
    print(json.dumps(default_scope(privacy, book=book), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
