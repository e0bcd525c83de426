# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The pages as a site: built without a warning, every page in it, and nothing requested from outside."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REQUEST = re.compile(
    r"""<(?:script|img|iframe|source)[^>]* src=["']?(?:https?:)?//|<link[^>]* href=["']?(?:https?:)?//"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for library in ("material", "mkdocstrings_handlers.python"):
        pytest.importorskip(library, reason="the site needs pip install -e '.[docs]', which CI has")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_every_page_is_in_the_site_and_its_links_lead_somewhere(site):
    pages = {path.stem for path in site.glob("*.html")}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} | {"start", "changelog", "api"} <= pages


@pytest.mark.slow
def test_a_page_requests_nothing_from_outside(site):
    assert not [page.name for page in site.glob("*.html") if REQUEST.search(page.read_text())]
    assert not [sheet for sheet in site.rglob("*.css") if re.search(r"url\([\"']?(https?:)?//", sheet.read_text())]


@pytest.mark.slow
def test_the_api_has_the_public_names(site):
    page = (site / "api.html").read_text()
    for name in ("adapter_state", "barycenter", "score", "schedule", "federate", "FedPIARecipe"):
        assert re.search(rf'id="fedpeft\.[\w.]+\.{name}"', page), name
