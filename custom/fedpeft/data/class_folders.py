# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A site's own images in one folder for each class.

    <class>/*.png, ...                                  two classes at least; any number of images
    {train,validation,test}/<class>/*.png, ...          with a split; validation may be missing

The name of a folder is the class, with blanks for underscores. Images in a folder inside a class folder belong
together, as those of one patient do, also with those in a folder of that name in another class: they are never in two
splits that are made here, nor at two sites. Deeper folders, such as a patient's series, belong to that folder; `_level`
finds folders around those of the patients (`images`, years). Without the split, or where train or test is missing,
everything is split by `test_fraction` and `validation_fraction`. Files that are no images are counted and left out.
Without `root` the folder is FEDPEFT_DATA/<site>.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedpeft.core.errors import DataError
from fedpeft.core.metrics import BALANCED_ACCURACY
from fedpeft.data.answers import clean_text
from fedpeft.data.folders import Listing, Recognized, dataset_folder, files_below, tree
from fedpeft.data.loaders import TAKES, class_example, class_folders, site_of
from fedpeft.data.partition import SPELLINGS, across_splits, named_like_splits
from fedpeft.data.registry import DATASETS, DataSet
from fedpeft.data.schema import Example, SiteData
from fedpeft.data.settings import DataSettings

# what sets of images call folders that are no classes
NO_CLASSES = frozenset({"annotations", "image", "images", "imgs", "label", "labels", "mask", "masks", "scans"})
MAX_ENDINGS = 5  # that one message names
TRAIN, VALIDATION, TEST = "train", "validation", "test"


def load(settings: DataSettings) -> SiteData:
    """Load a site's own folder, or its part of it."""
    root = dataset_folder(settings, (settings.site or "class_folders",))
    parts: dict[str, list[Example]] = {TRAIN: [], VALIDATION: [], TEST: []}
    names = class_folders(root)
    if not _are_splits(names) and named_like_splits(names):
        beside = ", ".join(sorted(name for name in names if name.lower() not in SPELLINGS))
        raise DataError(
            f"{root} has folders of splits and others beside them ({beside:.200}): move those elsewhere, or name each "
            f"like its split."
        )
    classes = {inner for name in names for inner in class_folders(root / name)} if _are_splits(names) else {*names}
    if _are_splits(names):
        for name in names:
            parts[SPELLINGS[name.lower()]] += _examples(root / name, root)
    else:
        parts[TRAIN] = _examples(root, root)
    train, validation, test = parts.values()
    split = bool(train and test)
    loaded_files = {example.image for examples in parts.values() for example in examples}
    others = [file for file in files_below(root) if file not in loaded_files]
    inside = [file for file in others if file.relative_to(root).parts[0] in names]
    site = settings.site or root.resolve().name
    loaded = site_of(
        settings,
        site,
        f"the site's own data ({site}), real data as its class folders have them",
        train=train if split else [*train, *validation, *test],
        validation=validation or None if split else None,
        test=test if split else None,
        left_out=[
            (f"its ending is that of no image that is read ({_endings(inside)})", len(inside)),
            ("it is in no class folder", len(others) - len(inside)),
        ],
        notes=[*_twins(classes), *_notes(parts, stay=split and settings.split == "published")],
    )
    return replace(loaded, own_ids=True)


def recognized(seen: Listing) -> bool:
    """Return whether a folder holds class folders, and no several folders of them or another data set's folder.

    The outer folders are the classes where no name inside them occurs twice; otherwise each of them has its own
    classes, as the sites of a federation do.
    """
    paths = _passed_over(seen.images)
    tops = {path.split("/")[1] for path in paths if path.count("/") > 1}
    if not tops or any(path.count("/") == 1 for path in paths):
        return False
    if any(name.lower() in NO_CLASSES for path in paths for name in path.split("/")[1:3]):
        return False
    others = _others()
    if any(other(inner) for inner in _below(seen) for other in others):
        return False
    inside = [(path.split("/")[1], path.split("/")[2]) for path in paths if path.count("/") > 2]
    if inside and _are_splits(tops):
        return len({name for _, name in inside}) > 1
    names = [name for _, name in set(inside)]
    return len(tops) > 1 and len(names) == len(set(names)) and not _are_splits(tops)


def _passed_over(paths: Collection[str]) -> Collection[str]:
    """Return paths without a folder such as `images` that is in every class, around the patients' folders."""
    parts = [path.split("/") for path in paths]
    around = {names[2].lower() if len(names) > 4 else "" for names in parts}
    return ["/".join((*names[:2], *names[3:])) for names in parts] if len(around & NO_CLASSES) == len(around) else paths


def _examples(folder: Path, root: Path) -> list[Example]:
    """Return the examples of class folders; the group is the folder of a patient."""
    examples = []
    found = {
        name: [(file, file.parent.relative_to(folder / name).parts) for file in files]
        for name, files in class_folders(folder).items()
    }
    level = _level({(name, inside) for name, placed in found.items() for _, inside in placed})
    for name, placed in found.items():
        for file, inside in placed:
            place = clean_text(file.relative_to(root).as_posix())
            group = clean_text("/".join(inside[: level + 1]))  # with what is in it, such as series
            examples.append(class_example(file, name.replace("_", " "), image_id=place, group=group))
    return examples


def _level(placed: Iterable[tuple[str, tuple[str, ...]]]) -> int:
    """Return how many folders are between those of the classes and the patients', from class and folders of each image.

    Such a folder is the only one in each class (`images`), or a year: several classes have it, and all of them together
    hold more folders than there are of them, with no name twice, as series would have.
    """
    level = 0
    while True:
        heads = {(name, inside[: level + 1]) for name, inside in placed if len(inside) > level}
        below = {(name, inside[: level + 2]) for name, inside in placed if len(inside) > level + 1}
        if not heads or {(name, inside[:-1]) for name, inside in below} != heads:
            return level
        classes = len({name for name, _ in heads})
        shared = len({inside for _, inside in heads}) < len(heads)
        apart = len({(name, inside[-1]) for name, inside in below}) == len(below)
        if not (len(heads) == classes or (shared and apart and len(below) * classes > len(heads) ** 2)):
            return level
        level += 1


def _endings(files: Iterable[Path]) -> str:
    counts = Counter(file.suffix[:10].strip().lower() or "no ending" for file in files)
    return ", ".join(name for name, _ in counts.most_common(MAX_ENDINGS))


def _twins(names: Iterable[str]) -> Iterator[str]:
    """Yield a sentence where names of class folders differ only by letter case, `_` or blanks."""
    alike = Counter(" ".join(name.casefold().replace("_", " ").split()) for name in names)
    if several := sum(count for count in alike.values() if count > 1):
        yield (
            f"The names of {several:,} folders of classes differ from another one's by letter case, _ or blanks alone: "
            f"where they are one class, move their images into one folder."
        )


def _notes(parts: Mapping[str, Sequence[Example]], *, stay: bool) -> Iterator[str]:
    """Yield a sentence on folders that count as patients, and on patients in several splits that stay."""
    placed = [(split, example) for split, examples in parts.items() for example in examples]
    classes: dict[str, set[str]] = {}
    for _, example in placed:
        if example.group:
            classes.setdefault(example.group, set()).add(example.answer)
    if classes:
        several = sum(len(of_one) > 1 for of_one in classes.values())
        yield (
            f"The folders in those of the classes count as {len(classes):,} patients, {several:,} of them in two "
            f"classes or more{'' if stay else '; the images of each stay together'}."
        )
    if stay:
        yield from across_splits(placed)


def _below(seen: Listing) -> Iterator[Listing]:
    for inner in seen.folders.values():
        yield inner
        yield from _below(inner)


def _others() -> list[Recognized]:
    """Return the functions that recognize the other data sets."""
    known = [data_set.recognized for _, data_set in DATASETS.usable()]
    return [each for each in known if each and each is not recognized]


def _are_splits(names: Iterable[str]) -> bool:
    return all(name.lower() in SPELLINGS for name in names)


DATASET = DataSet(
    load=load,
    takes=TAKES,
    metric=BALANCED_ACCURACY,
    recognized=recognized,
    layout=tree(__doc__),
    folders=("{site}",),
    allowed_by_default=False,  # any folder of folders with images would do, also one kept for something else
    as_sites="Each folder is a site, and the folders in it ({inside}) are its classes; if they are patients, and the "
    "outer folders the classes, add --set data.dataset=class_folders.",
)
