# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Ways to answer a question by name (`training.answering`). A new one is one file and one registration here.

Images with labels instead of a question are answered by `classification.Multilabel`, whatever the job names.

Each is an `Answering` (`fedpeft.answering.answering`): a backbone with a head or decoder, which is private to the site.
It makes the targets of a batch and the loss, and decides which answers are right.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedpeft.backbones.backbone import FEATURES, LIKELIHOODS, TEXT
from fedpeft.backbones.registry import BACKBONES
from fedpeft.core.errors import FedpeftError
from fedpeft.core.registry import Registry, imported

if TYPE_CHECKING:
    import torch

    from fedpeft.answering.answering import Answering
    from fedpeft.answering.training_settings import TrainingSettings
    from fedpeft.backbones.backbone import Backbone
    from fedpeft.data.answers import AnswerVocabulary

    Build = Callable[[Backbone, AnswerVocabulary, TrainingSettings, torch.Generator], Answering]


@dataclass(frozen=True, kw_only=True)
class WayToAnswer:
    """The registration of a way to answer, which imports no torch.

    Args:
        home: function from a backbone, a vocabulary, the section `training` and a generator to an `Answering`, or its
            import path "package.module:object".
        reads: output of the backbone that it needs, see `fedpeft.backbones.Pretrained.makes`.
        first_head: import path of the function from a key and a shape of its head to the first values
            (`fedpeft.methods.first_values`); empty: only their size is known.
    """

    home: Build | str
    reads: str = FEATURES
    first_head: str = ""

    @property
    def head(self) -> bool:
        """Whether a head of the site makes the answers, from features."""
        return self.reads == FEATURES

    def build(
        self,
        backbone: Backbone,
        vocabulary: AnswerVocabulary,
        settings: TrainingSettings,
        generator: torch.Generator,
    ) -> Answering:
        """Call `home`; see `build` below."""
        make = imported(self.home) if isinstance(self.home, str) else self.home
        return make(backbone, vocabulary, settings, generator)


ANSWERING: Registry[WayToAnswer] = Registry("answering", "fedpeft.answering", WayToAnswer)
ANSWERING.register(
    "classification",
    WayToAnswer(
        home="fedpeft.answering.classification:build", first_head="fedpeft.answering.classification:first_values"
    ),
)
ANSWERING.register("generation", WayToAnswer(home="fedpeft.answering.decoders:build_generation", reads=TEXT))
ANSWERING.register("ranking", WayToAnswer(home="fedpeft.answering.decoders:build_ranking", reads=LIKELIHOODS))

register, names, get = ANSWERING.register, ANSWERING.names, ANSWERING.get


def ways_that_read(makes: Collection[str]) -> list[str]:
    """Return fedpeft's own ways to answer that a backbone with these `Pretrained.makes` allows."""
    return [name for name in ANSWERING.own_names() if get(name).reads in makes]


def check_backbone(name: str, backbone: str) -> None:
    """Refuse a way to answer whose input a backbone does not make."""
    reads, makes = get(name).reads, BACKBONES.get(backbone).makes
    if reads in makes:
        return
    able = [other for other in BACKBONES.own_names() if reads in BACKBONES.get(other).makes]
    ways = ways_that_read(makes)
    raise FedpeftError(
        f"answering is {name!r}, and backbone {backbone!r} answers only by {' or '.join(ways)}: set "
        f"training.answering to {' or '.join(map(repr, ways))}, or backbone.name to one that answers so "
        f"({', '.join(able)}).",
        setting="training.answering",
    )


def build(
    backbone: Backbone,
    vocabulary: AnswerVocabulary,
    settings: TrainingSettings,
    generator: torch.Generator,
    *,
    labelled: bool = False,
) -> Answering:
    """Build the way to answer that `training.answering` names; for images with labels always `Multilabel`."""
    only = getattr(backbone, "answering", None)
    if labelled:
        if only:
            raise FedpeftError(
                f"these images have labels, and this backbone answers only by {only}: choose another backbone.",
                setting="backbone.name",
            )
        from fedpeft.answering import classification

        return classification.build_labels(backbone, vocabulary, settings, generator)
    if only not in (None, settings.answering):
        raise FedpeftError(
            f"answering is {settings.answering!r}, and this backbone answers only by {only}: set training.answering "
            f"to {only!r}.",
            setting="training.answering",
        )
    return get(settings.answering).build(backbone, vocabulary, settings, generator)
