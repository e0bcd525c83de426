# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Public names that are imported when first used: `dir()` lists them, so completion finds them."""

import importlib
import subprocess
import sys

import pytest

PACKAGES = {
    "fedpeft": "load_adapter",
    "fedpeft.adapters": "HoulsbyConfig",
    "fedpeft.alignment": "barycenter",
    "fedpeft.importance": "score",
    "fedpeft.scheduling": "schedule",
}


@pytest.mark.parametrize("package", PACKAGES)
def test_dir_lists_every_public_name_and_each_can_be_imported(package):
    module = importlib.import_module(package)
    assert PACKAGES[package] in module.__all__
    assert set(module.__all__) <= set(dir(module))
    assert all(hasattr(module, name) for name in dir(module))


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_dir_imports_nothing_heavy(package):
    code = f"import sys, {package} as p; dir(p); print([m for m in ('torch', 'peft', 'scipy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("package", PACKAGES)
def test_an_unknown_name_is_refused_as_python_does(package):
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        _ = importlib.import_module(package).nothing
