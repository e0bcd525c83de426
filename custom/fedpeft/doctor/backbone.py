# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Check the backbones' files (in a folder, in the package, in the hub's cache), and that the backbones fit together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fedpeft.backbones import BACKBONES, Backbone, BackboneSettings, hub, skeleton, usual_source, weights
from fedpeft.backbones.config_file import check_config
from fedpeft.core.bounded_files import read_json
from fedpeft.core.errors import LocalError
from fedpeft.core.settings import build
from fedpeft.doctor.context import Context
from fedpeft.doctor.finding import PASS, Finding, failed, passed, warned
from fedpeft.job.federation import several_backbones, site_backbone
from fedpeft.methods.settings import MethodSettings

CONFIG, WEIGHTS = "config.json", (weights.WEIGHTS, weights.INDEX)
TOKENIZER = ("tokenizer.json", "vocab.txt")
FILES = ((CONFIG,), WEIGHTS, TOKENIZER)


def check(context: Context) -> Iterator[Finding]:
    """Check that the backbones of the sites here can be loaded without a network, and averaged."""
    if not context.sites:
        return
    sections = context.job.sections
    of_sites = {
        site: build(BackboneSettings, site_backbone(sections["backbone"], site), section="backbone")
        for site in context.sites
    }
    chosen = dict.fromkeys((settings.name, settings.source) for settings in of_sites.values())
    found = [files(name, source, download=context.downloads) for name, source in chosen]
    yield from found
    method = build(MethodSettings, sections["method"], section="method")
    if method.exchanges and several_backbones(sections["backbone"]) and all(f.verdict == PASS for f in found):
        backbones = {site: skeleton(s.name, s.source, download=False) for site, s in of_sites.items()}
        yield compared(backbones, method.matched_layers, all_here=set(backbones) == set(context.job.sites))


def compared(backbones: Mapping[str, Backbone], deepest: int | None, *, all_here: bool) -> Finding:
    """Check that adapters in the backbones of several sites can be averaged.

    Args:
        backbones: by site.
        deepest: layers of the deepest, as the job has it; None: the same at all sites.
        all_here: whether these are all sites of the job.
    """
    facts = {site: (backbone.family, backbone.hidden_size) for site, backbone in backbones.items()}
    layers = {site: backbone.num_layers for site, backbone in backbones.items()}
    listed = ", ".join(
        f"{site} {layers[site]} layers of {family}, {width} wide" for site, (family, width) in facts.items()
    )
    if len(set(facts.values())) > 1:
        return failed(f"{listed}: name backbones of one family and one width in backbone.sites.")
    if max(layers.values()) > (deepest or min(layers.values())) or (
        all_here and deepest not in (None, *layers.values())
    ):
        return failed(f"{listed}: set method.matched_layers to the layers of the deepest.")
    return passed(f"{listed}.")


def files(name: str, named: str | None, *, download: bool) -> Finding:
    """Check the files of one backbone, in a folder or in the hub's cache.

    Args:
        name: registered name.
        named: source of the job; None: the usual one.
        download: whether the job may fetch what the cache lacks.
    """
    source, pretrained = named or usual_source(name), BACKBONES.get(name)
    needed = FILES if pretrained.tokenizer else FILES[:-1]
    try:
        found = hub.folder(source, download=False)
    except hub.NotInCacheError as error:
        if hub.reachable(download=download):
            return warned(f"{source} is not in the hub's cache, or only a part of it: the job begins with a download.")
        return failed(str(error))
    except LocalError as error:
        return failed(str(error))
    return folder(Path(found), needed, pickle=pretrained.pickle)


def folder(path: Path, needed: Sequence[tuple[str, ...]] = FILES, *, pickle: str = "") -> Finding:
    """Check a local folder in the hub's layout.

    Args:
        path: of the folder.
        needed: kinds of files; of each kind one of the names must be there.
        pickle: name of the file that may be there instead of safetensors.
    """
    present = [file.name for file in path.iterdir()]
    try:
        config = read_json(path / CONFIG) if CONFIG in present else {"model_type": None}
        kind = config.get("model_type") or config.get("architecture") or config["model_type"]  # timm's have the second
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return failed(f"{path / CONFIG} names no model_type ({error!r}): copy the file again.")
    try:
        check_config(config)
        weights.check_folder(path, config, pickle=pickle)
    except ValueError as error:
        return failed(f"{path} cannot be used: {error}.")
    present += list(WEIGHTS) if pickle in present else []
    if missing := [kinds[0] for kinds in needed if not set(kinds) & set(present)]:
        return failed(f"{path} lacks {', '.join(missing)}: copy the whole folder of the checkpoint.")
    size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    return passed(f"{path}: {kind}, {size / 1e6:.0f} MB.")
