# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Checks of what a job names: the backbones' files, the data of the sites that train here, and the tracker."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from fedpeft.alignment.settings import VALIDATION, PIASettings
from fedpeft.answering import ANSWERING
from fedpeft.answering.training_settings import BEST
from fedpeft.backbones import BACKBONES, Backbone, skeleton, weights
from fedpeft.backbones.backbone import LITE0_FILE, NotInCacheError, hub_reachable, source_folder
from fedpeft.backbones.checkpoint import check_config
from fedpeft.core.errors import FedpeftError, LocalError
from fedpeft.core.files import read_json
from fedpeft.core.metrics import ACCURACY
from fedpeft.core.workspace import DATA_VARIABLE, SERVER
from fedpeft.data.answer_space import UNLISTED, vocabulary_of
from fedpeft.data.answers import AnswerVocabulary
from fedpeft.data.duplicates import fingerprints
from fedpeft.data.readable import images_of, refusal, unreadable
from fedpeft.data.registry import DATASETS
from fedpeft.data.remarks import baseline, cut_texts_of, remarks, remarks_on_variety, unread_questions
from fedpeft.data.schema import SiteData
from fedpeft.doctor.context import PASS, Context, DataFacts, Finding, failed, passed, warned
from fedpeft.job.federation import NONE, SETTING, several_backbones, usable
from fedpeft.job.folder import check_path, check_root, check_shared
from fedpeft.job.settings import SiteJob
from fedpeft.job.site_policy import SitePolicy
from fedpeft.protocol.job_against_policy import load_data
from fedpeft.report.data_summary import Overlap

CONFIG, WEIGHTS = "config.json", (weights.WEIGHTS, weights.INDEX)
TOKENIZER = ("tokenizer.json", "vocab.txt")
FILES = ((CONFIG,), WEIGHTS, TOKENIZER)


def check_backbone(context: Context) -> Iterator[Finding]:
    """Check that the backbones of the sites here can be loaded without a network, and averaged."""
    if not context.sites:
        return
    sections = context.job.sections
    of_sites = {site: context.at(site).backbone for site in context.sites}
    for setting in ("source", "image_source") if context.kit is None else ():
        for path in dict.fromkeys(getattr(settings, setting) for settings in of_sites.values()):
            if path and Path(path).is_dir():
                check_path(f"backbone.{setting}", path)
    chosen = dict.fromkeys((settings.name, settings.source, settings.image_source) for settings in of_sites.values())
    found = [finding for one in chosen for finding in _check_sources(*one, download=context.downloads)]
    yield from found
    method = context.at(context.sites[0]).method
    if method.exchanges and several_backbones(sections["backbone"]) and all(f.verdict == PASS for f in found):
        backbones = {site: skeleton(s.name, s.source, download=False) for site, s in of_sites.items()}
        yield compared(backbones, method.matched_layers, all_here=set(backbones) == set(context.job.sites))


def compared(backbones: Mapping[str, Backbone], deepest: int | None, *, all_here: bool) -> Finding:
    """Check that adapters in the backbones of several sites can be averaged."""
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


def _check_sources(name: str, source: str | None, image_source: str | None, *, download: bool) -> Iterator[Finding]:
    yield files(name, source, download=download)
    if BACKBONES.get(name).image_encoder:
        yield files(name, image_source, download=download, image=True)


def files(name: str, named: str | None, *, download: bool, image: bool = False) -> Finding:
    """Check the files of a backbone, or of its image encoder, in a folder or in the hub's cache."""
    pretrained = BACKBONES.get(name)
    source = named or (pretrained.default_image_source if image else pretrained.default_source)
    needed = FILES if pretrained.tokenizer and not image else FILES[:-1]
    setting = "image_source" if image else "source"
    try:
        found = source_folder(source, download=False, setting=setting)
    except NotInCacheError as error:
        if hub_reachable(download=download):
            return warned(f"{source} is not in the hub's cache, or only a part of it: the job begins with a download.")
        return failed(str(error))
    except LocalError as error:
        return failed(str(error))
    if image and (Path(found) / LITE0_FILE).is_file():
        return passed(f"{found}: EfficientNet-Lite0.")
    return folder(Path(found), needed, pickle=pretrained.pickle)


def folder(path: Path, needed: Sequence[tuple[str, ...]] = FILES, *, pickle: str = "") -> Finding:
    """Check a local folder in the hub's layout."""
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


MAX_OPENED = 2000  # images of all sites together; `fedpeft data` opens all
MAX_BYTES = 2**30  # of these images, so that opening them takes a minute at most


def check_data(context: Context) -> Iterator[Finding]:
    """Count the samples of every site, decode its images or a part of them, and compare the images of all sites."""
    folder = os.environ.get(DATA_VARIABLE, "")
    if context.kit and context.sites and folder and not Path(folder).is_absolute():
        yield warned(
            f"{DATA_VARIABLE} is {folder!r}, and FLARE runs in another folder: use an absolute path when you start the "
            f"site."
        )
    whole: list[SiteData] = []
    try:
        check_shared(map(context.at, context.sites))
    except FedpeftError as error:
        yield failed(str(error))
    for site in context.sites:
        try:
            job = context.admitted_at(site)
            for part in job.parts if context.kit is None else ():
                check_root(job, part)
            loaded = load_data(context.policy, job)
            opened = _open_images(loaded, decoded=job.data.unreadable > 0, sites=len(context.sites))
            answers = vocabulary_of(loaded, job.answers)
        except FedpeftError as error:
            yield failed(f"site {site}: {error}")
            continue
        context.data[site] = DataFacts(bool(loaded.labels), loaded.metric)
        counts = ", ".join(f"{name} {len(examples)}" for name, examples in loaded.splits().items())
        yield passed(f"site {site}: {counts}; {_answers(loaded, answers)}; {opened}.")
        policy = context.policy
        measured = not (policy and loaded.validation) or _is_validated(loaded, policy, answers.answers)
        kept = policy and (policy.sum_with or not policy.metrics or not measured)
        if job.training.patience and kept:
            why = f"training.patience is {job.training.patience}, and this site's file keeps its figures here"
            yield warned(f"site {site}: {why}: others decide when the job ends, or set it to 0.")
        if job.training.keep == BEST and not measured and loaded.metric != ACCURACY:
            why = "training.keep is 'best', and its validation split has too few samples for a figure"
            yield warned(f"site {site}: {why}: raise validation_fraction, or set training.keep to 'last'.")
        if not loaded.validation:
            found = _validation_problems(job, context)
            yield from (finding(f"site {site}: {sentence}") for finding, sentence in found)
        whole += [replace(loaded, site=site)] * opened.startswith("all")
        least: dict[str, Any] = {"answers": answers.answers}
        least |= {"min_images": policy.min_class_images, "min_samples": policy.min_test_samples} if policy else {}
        serious = set(remarks_on_variety(loaded, **least))
        for remark in (*unread_questions(loaded, job.backbone.name), *_cut_texts(loaded, job, context.downloads)):
            yield warned(f"site {site}: {remark}")
        for remark in remarks(loaded, **least):
            yield (warned if remark in serious or UNLISTED in remark else passed)(f"site {site}: {remark}")
    if len(whole) == len(context.sites) and any(map(images_of, whole)):
        for remark in Overlap([mark for loaded in whole for mark in fingerprints(loaded)]).remarks():
            yield warned(remark)


def _is_validated(loaded: SiteData, policy: SitePolicy, answers: Collection[str]) -> bool:
    """Return whether the site has a figure of its validation split, of as many samples as its policy asks for."""
    least = policy.min_validation_samples
    enough = len(loaded.validation) >= least
    split = replace(loaded, test=loaded.validation)
    figure = baseline(split, min_images=policy.min_class_images, min_samples=least, answers=answers)
    return enough and figure is not None


def _validation_problems(job: SiteJob, context: Context) -> Iterator[tuple[Callable[[str], Finding], str]]:
    """Yield what a job cannot do at a site without a validation split, each with its verdict."""
    setting = "data.validation_size" if DATASETS.get(job.dataset).procedural else "data.validation_fraction"
    if context.policy and not DATASETS.get(job.dataset).procedural:
        setting = f"validation_fraction in {context.policy_file}"
    pia = cast(PIASettings, job.method.pia)
    if job.method.aligns and pia.client and pia.share == VALIDATION:
        why = "method.pia.share is 'validation', and no sample is in a validation split"
        yield failed, f"{why}: set {setting}, or a number as share."
    if job.training.patience:
        why = (
            f"training.patience is {job.training.patience}, and without a validation split this site ends no job early"
        )
        yield warned, f"{why}: set {setting}, or training.patience to 0."
    if job.training.keep == BEST:
        why = "training.keep is 'best', and without a validation split no round is"
        yield warned, f"{why}: set {setting}, or training.keep to 'last'."


def _cut_texts(loaded: SiteData, job: SiteJob, download: bool) -> list[str]:
    answers = not ANSWERING.get(job.training.answering).head
    try:
        return list(cut_texts_of(loaded, job.backbone, answers=answers, download=download))
    except FedpeftError as error:
        return [f"Whether the backbone reads all of each text cannot be said: {error}"]


def _answers(loaded: SiteData, vocabulary: AnswerVocabulary) -> str:
    if loaded.labels:
        return f"{loaded.answers_in_training} of {len(vocabulary)} labels in training"
    return f"{len(vocabulary)} answers, {loaded.unseen(vocabulary)} test questions with none of them"


def _open_images(loaded: SiteData, *, decoded: bool, sites: int = 1) -> str:
    """Decode the images, or of many a part that is spread evenly over all splits."""
    images = images_of(loaded)
    if not images:
        return "all images drawn by program"
    if decoded:
        return f"all {len(images):,} images opened"
    chosen = dict(list(images.items())[:: _image_step(list(images.values()), sites)])
    if problems := unreadable(chosen):
        raise refusal(loaded.site, problems.values(), of=len(chosen))
    if len(chosen) == len(images):
        return f"all {len(images):,} images opened"
    return f"{len(chosen):,} of {len(images):,} images opened, `fedpeft data` opens the others"


def _image_step(images: list[Any], sites: int) -> int:
    step = -(-len(images) * sites // MAX_OPENED)
    files = (getattr(image, "file", image) for image in images[::step])
    size = sum(file.stat().st_size for file in files if isinstance(file, Path))
    return step * max(1, -(-size * sites // MAX_BYTES))


def check_tracking(context: Context) -> Iterator[Finding]:
    """Check `federation.tracking` with a server's kit, or if all sites are on this machine."""
    here = context.kit.role == SERVER if context.kit else context.job and context.sites == context.job.sites
    if context.job is None or not here:
        return
    name = context.job.server_sections["federation"].get("tracking", NONE)
    if name != NONE:
        yield passed(f"{SETTING}: {usable(name).title} is installed and configured.")
