# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What is built to be installed: every file of the package, nothing else, and one version number."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import layouts
import pytest
import yaml

import fedpeft

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "custom" / "fedpeft"
NAME = f"flare_fedpeft-{fedpeft.__version__}"
BUILD = """
import sys
from setuptools import build_meta
print(getattr(build_meta, "build_" + sys.argv[1])(sys.argv[2]))
"""
SECTIONS = r"^## (\S+)(?:, .+)?$"
BESIDE = ("constraints.txt", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "SECURITY.md", "mkdocs.yml")
LICENSES = ("LICENSE", "NOTICE")
USE = """
import sys
import fedpeft
from fedpeft.cli import main
print(fedpeft.__file__)
for line in sys.stdin:
    if status := main(line.split()):
        sys.exit(status)
"""
COMMANDS = """tasks
new own --data {data} --out here --backbone tiny_vit --set training.rounds=1
tune own --configs here/app_configs --over training.learning_rate=1e-3,1e-2 --out tuning
simulate here/jobs/own --engine pool -t 1 -w run
export run --site client-1 --out one
export run --site client-2 --out two
merge one two --out merged
predict one --image {data}/ill/0.png
"""


def build(kind: str, source: Path, out: Path) -> Path:
    """Run the build backend of pyproject.toml in a copy of the project."""
    command = [sys.executable, "-c", BUILD, kind, str(out)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return out / done.stdout.splitlines()[-1]


def contents(wheel: Path) -> dict[str, bytes]:
    """Files of a wheel, without the description of the distribution."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """An sdist of a copy of the project, and the wheel made of the copy."""
    folder = tmp_path_factory.mktemp("dist")
    copy = folder / "project"
    generated = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "custom", copy / "custom", symlinks=True, ignore=generated)
    for name in ("app_configs", "tests", "docs", "jobs"):
        shutil.copytree(ROOT / name, copy / name, ignore=generated)
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", *LICENSES, *BESIDE):
        shutil.copy(ROOT / name, copy)
    return build("sdist", copy, folder), build("wheel", copy, folder)


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_package_and_nothing_else(built):
    files = [Path(folder) / name for folder, _, names in os.walk(PACKAGE, followlinks=True) for name in names]
    expected = {path.relative_to(PACKAGE.parent).as_posix() for path in files if path.parent.name != "__pycache__"}
    assert set(contents(built[1])) == expected
    assert "fedpeft/app_configs/jobs.yml" in expected


@pytest.mark.slow
def test_the_sdist_has_no_link_and_gives_the_same_wheel(built, tmp_path):
    with tarfile.open(built[0]) as archive:
        assert all(member.isfile() or member.isdir() for member in archive)
        names = set(archive.getnames())
        assert not [name for name in names if name.startswith(f"{NAME}/tests")]
        needed = (*BESIDE, *LICENSES, "docs/installation.md", "docs/study.png", "jobs/fedpia_task1/meta.json")
        assert {f"{NAME}/{name}" for name in needed} <= names
        archive.extractall(tmp_path, filter="data")
    assert contents(build("wheel", tmp_path / NAME, tmp_path)) == contents(built[1])


@pytest.mark.slow
def test_the_wheel_works_without_a_clone(built, tmp_path):
    with zipfile.ZipFile(built[1]) as archive:
        archive.extractall(tmp_path / "installed")
    (tmp_path / "empty").mkdir()
    for name in ("normal", "ill"):
        for number in range(16):
            layouts.picture(tmp_path / "scans" / name / f"{number}.png")
    done = subprocess.run(
        [sys.executable, "-c", USE],
        cwd=tmp_path / "empty",
        input=COMMANDS.format(data=tmp_path / "scans"),
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "installed"))
    assert "fedpia_task1" in done.stdout
    job = tmp_path / "empty" / "here" / "jobs" / "own"
    assert json.loads((job / "meta.json").read_text())["deploy_map"] == {"app": ["server", "client-1", "client-2"]}
    executors = json.loads((job / "app" / "config" / "config_fed_client.json").read_text())["executors"]
    settings = executors[0]["executor"]["args"]
    assert (settings["data"]["dataset"], settings["backbone"]["name"]) == ("class_folders", "tiny-vit")
    made = ("tuning/tuning.md", "run/server/simulate_job", "merged/adapter_model.safetensors")
    assert [name for name in made if not (tmp_path / "empty" / name).exists()] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", LICENSES)
def test_the_wheel_has_the_licenses(built, name):
    with zipfile.ZipFile(built[1]) as archive:
        kept = archive.read(f"{NAME}.dist-info/licenses/{name}")
    assert kept == (ROOT / name).read_bytes()


@pytest.mark.slow
def test_the_version_of_the_distribution_is_that_of_the_package(built):
    assert [path.name for path in built] == [f"{NAME}.tar.gz", f"{NAME}-py3-none-any.whl"]


def test_the_version_stands_in_the_package_only():
    assert "version" in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dynamic"]
    assert re.findall(SECTIONS, (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0] == fedpeft.__version__


def test_every_extra_is_on_the_page_of_the_installation():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (ROOT / "docs" / "installation.md").read_text()
    assert set(re.findall(r"^\| `([a-z]+)` \|", page, re.MULTILINE)) == set(extras)


def test_the_notice_names_what_the_pretrained_extra_downloads():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    packages = {re.match(r"[\w-]+", requirement)[0] for requirement in extras["pretrained"]}
    named = re.findall(r"^(\S+) \d+\.\d+\.\d+$", (ROOT / "NOTICE").read_text(), re.MULTILINE)
    assert set(named) == packages


def test_the_citation_names_this_version_and_the_three_papers():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["cff-version"], str(citation["version"])) == ("1.2.0", fedpeft.__version__)
    papers = citation["references"]
    assert [paper["url"].rpartition("/")[2] for paper in papers] == ["2412.14424", "2411.11912", "2407.11573"]
    assert all(paper["authors"] and paper["title"] and paper["year"] for paper in papers)
