# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Packages import from those below them alone; those that work without FLARE import neither it nor `fedpeft.flare`."""

import ast
from pathlib import Path

import pytest

import fedpeft

HOUSE = Path(fedpeft.__file__).parent
ORDER = (  # a package imports from those before it alone
    *("core", "alignment", "backbones", "methods", "importance", "scheduling", "data", "answering", "job", "protocol"),
    *("report", "site", "server", "doctor", "inference", "federate", "compare", "flare", "run", "serve", "cli"),
)
WITH_FLARE = ("core", "doctor", "flare", "run", "cli")  # core and doctor: inside functions
WITHOUT_FLARE = [name for name in ORDER if name not in WITH_FLARE]
FLARE = ("nvflare", "fedpeft.flare")


def imported(file):
    """Every module that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names if node.module == "fedpeft")


def uses_flare(file):
    return any(name == root or name.startswith(f"{root}.") for name in imported(file) for root in FLARE)


@pytest.mark.parametrize("package", WITHOUT_FLARE)
def test_a_package_works_without_flare(package):
    files = sorted((HOUSE / package).rglob("*.py")) or [HOUSE / f"{package}.py"]
    assert [file.name for file in files if uses_flare(file)] == []


def package_of(module):
    return module.split(".")[1] if module.startswith("fedpeft.") else ""


@pytest.mark.parametrize("package", ORDER)
def test_a_package_imports_from_those_below_it_alone(package):
    files = sorted((HOUSE / package).rglob("*.py")) or [HOUSE / f"{package}.py"]
    upward = ORDER[ORDER.index(package) + 1 :]
    assert [(file.name, name) for file in files for name in imported(file) if package_of(name) in upward] == []


def test_every_package_has_its_place():
    packages = {folder.name for folder in HOUSE.iterdir() if (folder / "__init__.py").is_file()}
    files = {file.stem for file in HOUSE.glob("*.py")} - {"__init__", "adapters"}
    assert packages | files == set(ORDER)
