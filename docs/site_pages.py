# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Pages of the site that are no Markdown in docs/: of the root, of results, notebooks, the API from the docstrings.

A hook of mkdocs (`mkdocs.yml` names it). Nothing of fedpeft is imported: public names are read from the source.
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "custom"
RESULTS = ROOT / "benchmarks" / "results"
AT_ROOT = {"README.md": "start.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
AT_ROOT["CHANGELOG.md"] = "changelog.md"
LAZY = ("fedpeft", "fedpeft.adapters", "fedpeft.alignment", "fedpeft.importance", "fedpeft.scheduling")
NAMED = {
    "fedpeft.job.composing": ("compose", "write_job"),
    "fedpeft.federate": ("federate", "RoundResult"),
    "fedpeft.site.learner": ("Learner",),
    "fedpeft.run.simulate": ("simulate",),
    "fedpeft.run.recipe": ("FedPIARecipe", "F3OCUSRecipe"),
    "fedpeft.report": ("render", "show"),
    "fedpeft.report.history_reader": ("read",),
    "fedpeft.data": ("load",),
    "fedpeft.data.schema": ("Example", "SiteData"),
}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    for name, page in AT_ROOT.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    for path in sorted(RESULTS.glob("*.md")):
        files.append(File.generated(config, f"results/{path.name}", content=path.read_text()))
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=notebook(path)))
    files.append(File.generated(config, "api.md", content=api()))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Lead links that are made for the repository to pages of the site; a file that is not in it is named only."""
    at_root = {page: name for name, page in AT_ROOT.items()}
    folder = "" if page.file.src_uri in at_root else posixpath.join("docs", posixpath.dirname(page.file.src_uri))
    if folder == "docs/results":
        folder = RESULTS.relative_to(ROOT).as_posix()
    known = {file.src_uri for file in files}

    def led(link: re.Match) -> str:
        image, text, target, anchor = link.groups(default="")
        if not target or re.match(r"[a-z]+:", target):
            return link[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        uri = AT_ROOT.get(path, path.removeprefix("docs/").removeprefix("benchmarks/").replace(".ipynb", ".md"))
        if uri not in known:
            return text
        return f"{image}[{text}]({posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or '.')}{anchor})"

    parts = FENCED.split(markdown)
    return "".join(part if number % 2 else LINK.sub(led, part) for number, part in enumerate(parts))


def notebook(path: Path) -> str:
    """Return an executed notebook as Markdown: its cells, what they print, and their pictures inside the page."""
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            if "text" in output:
                parts.append("```text\n" + "".join(output["text"]).rstrip() + "\n```")
            elif picture := output.get("data", {}).get("image/png"):
                parts.append(f"![](data:image/png;base64,{''.join(picture.split())})")
    return "\n\n".join(parts) + "\n"


def api() -> str:
    """Return the page of the API: a heading for each module, and below it what mkdocstrings makes of each name."""
    lines = ["# API", "", "From the docstrings. [From Python](python.md) shows how the names are used together.", ""]
    for module in LAZY:
        lines += [f"## {module}", "", f"`from {module} import ...`", ""]
        for name, home in public_names(module):
            lines += [f"::: {home}.{name}", ""]
    for module, names in NAMED.items():
        lines += [f"## {module}", ""]
        for name in names:
            lines += [f"::: {module}.{name}", ""]
    return "\n".join(lines)


def public_names(module: str) -> Iterator[tuple[str, str]]:
    """Yield the functions and classes that a package imports when they are first used, and the module of each."""
    assigned = [node for node in parsed(module).body if isinstance(node, ast.Assign)]
    tables = [node for node in assigned if ast.unparse(node.targets[0]) == "_HOME"]
    for name, home in ast.literal_eval(tables[0].value).items():
        full = home if home.startswith("fedpeft.") else f"{module}.{home}"
        if any(getattr(node, "name", "") == name for node in parsed(full).body):
            yield name, full


def parsed(module: str) -> ast.Module:
    """Return the source of a module of the package, parsed."""
    place = SOURCE.joinpath(*module.split("."))
    return ast.parse((place / "__init__.py" if place.is_dir() else place.with_suffix(".py")).read_text())
