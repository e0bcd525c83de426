# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Packages that work without FLARE import neither it nor `fedpeft.flare`."""

import ast
from pathlib import Path

import pytest

import fedpeft

HOUSE = Path(fedpeft.__file__).parent
WITHOUT_FLARE = [
    "alignment",
    "backbones",
    "client",
    "data",
    "export",
    "importance",
    "inspect",
    "messages",
    "methods",
    "predict",
    "privacy",
    "scheduling",
    "server",
    "worker",
]
FLARE = ("nvflare", "fedpeft.flare")


def imported(file):
    """Every module that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


def uses_flare(file):
    return any(name == root or name.startswith(f"{root}.") for name in imported(file) for root in FLARE)


@pytest.mark.parametrize("package", WITHOUT_FLARE)
def test_a_package_works_without_flare(package):
    files = sorted((HOUSE / package).rglob("*.py"))
    assert files
    assert [file.name for file in files if uses_flare(file)] == []
