# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Check the versions of Python, the plugin and its libraries: those required, and those tested with the release."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import fedpeft
from fedpeft.doctor.context import Context
from fedpeft.doctor.finding import Finding, failed, passed, warned
from fedpeft.doctor.kit import SERVER

DISTRIBUTION, TENSORBOARD = "flare-fedpeft", "tensorboard"
CONSTRAINTS = Path(fedpeft.__file__).parents[2] / "constraints.txt"


def check(context: Context) -> Iterator[Finding]:
    """Check Python and libraries against the package's requirements and, in a clone, against constraints.txt."""
    try:
        package = metadata.metadata(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        yield failed(
            f"{DISTRIBUTION} is not installed in this environment: pip install -c constraints.txt -e . in a clone."
        )
        return
    installed: dict[str, str] = {canonicalize_name(d.name): d.version for d in metadata.distributions() if d.name}
    yield python(package["Requires-Python"] or "", platform.python_version())
    yield required(package.get_all("Requires-Dist") or [], installed)
    if CONSTRAINTS.is_file():
        yield tested(CONSTRAINTS.read_text(), installed)
    if context.kit and context.kit.role == SERVER and TENSORBOARD not in installed:
        yield warned(f"no live metrics, TensorBoard is not installed: pip install '{DISTRIBUTION}[{TENSORBOARD}]'.")


def python(required: str, installed: str) -> Finding:
    """Check the interpreter's version."""
    if installed in SpecifierSet(required, prereleases=True):
        return passed(f"Python {installed}, fedpeft {fedpeft.__version__}.")
    return failed(f"Python is {installed}, fedpeft {fedpeft.__version__} needs {required}: use another environment.")


def required(requirements: Iterable[str], installed: Mapping[str, str]) -> Finding:
    """Check that every required library is installed in an accepted version."""
    parsed = [Requirement(text) for text in requirements]
    needed = [one for one in parsed if one.marker is None or one.marker.evaluate({"extra": ""})]
    wrong = []
    for one in needed:
        version = installed.get(canonicalize_name(one.name))
        if version is None:
            wrong.append(f"{one.name} is missing")
        elif not one.specifier.contains(version, prereleases=True):
            wrong.append(f"{one.name} is {version}, {one.specifier} is needed")
    if wrong:
        return failed(f"{'; '.join(wrong)}: pip install -c constraints.txt -e . in a clone.")
    return passed(f"all {len(needed)} required libraries are installed in accepted versions.")


def tested(constraints: str, installed: Mapping[str, str]) -> Finding:
    """Check for libraries whose version is not the tested one; local labels such as +cpu are ignored."""
    lines = (line.partition("#")[0].strip() for line in constraints.splitlines())
    pinned = {canonicalize_name(one.name): one.specifier for one in map(Requirement, filter(None, lines))}
    present = {name: installed[name] for name in pinned if name in installed}
    other = [f"{name} {version} ({pinned[name]})" for name, version in present.items() if version not in pinned[name]]
    if other:
        return warned(
            f"not the versions that this release was tested with: {', '.join(other)}; if a job fails, "
            f"pip install -c constraints.txt -e ."
        )
    return passed(f"{len(present)} libraries have exactly the tested versions.")
