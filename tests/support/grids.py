# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""One test for a grid of small cases, each of which takes less time than pytest takes to start a test."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any


def each(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test for every row as `pytest.mark.parametrize` does, in one test; an error names the row.

    All rows share the fixtures, so a test that fills `tmp_path` must be able to write over what is there.
    """
    single = isinstance(names, str)
    cases = [dict(zip((names,) if single else names, (row,) if single else row, strict=True)) for row in rows]
    assert cases

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**given: Any) -> None:
            for case in cases:
                try:
                    test(**given, **case)
                except BaseException as error:  # also that of `pytest.fail`
                    error.add_note("where " + ", ".join(f"{name} is {value!r:.200}" for name, value in case.items()))
                    raise

        signature = inspect.signature(test)
        kept = [one for name, one in signature.parameters.items() if name not in cases[0]]
        run.__signature__ = signature.replace(parameters=kept)
        return run

    return decorate
