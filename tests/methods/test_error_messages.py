# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Every error message of `fedpeft.methods` ends with a period."""

import ast
from pathlib import Path

import pytest

import fedpeft.methods

FILES = sorted(Path(fedpeft.methods.__file__).parent.rglob("*.py"))


def messages(file):
    """Line and last piece of text of every FedpeftError that is written out there."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "FedpeftError":
            text = node.args[0].values[-1] if isinstance(node.args[0], ast.JoinedStr) else node.args[0]
            if isinstance(text, ast.Constant):
                yield node.lineno, text.value
            elif isinstance(text, ast.FormattedValue) and getattr(text.value, "id", "") != "error":
                yield node.lineno, ""  # ends with a value


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_error_message_ends_with_a_period(file):
    assert [line for line, text in messages(file) if not text.endswith(".")] == []
