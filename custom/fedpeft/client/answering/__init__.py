# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Ways to answer a question by name (`training.answering`). A new one is one file and one registration here.

Images with labels instead of a question are answered by `multilabel`, whatever the job names.

Each is an `Answering` (`fedpeft.client.answering.answering`): a backbone with what makes answers of its features, which
is private to the site, the targets of a batch, the loss, and which answers are right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fedpeft.errors import FedpeftError
from fedpeft.registry import Registry

if TYPE_CHECKING:
    import torch

    from fedpeft.backbones.backbone import Backbone
    from fedpeft.client.answering.answering import Answering
    from fedpeft.data.answers import AnswerVocabulary
    from fedpeft.training_settings import TrainingSettings

    Build = Callable[[Backbone, AnswerVocabulary, TrainingSettings, torch.Generator], Answering]

ANSWERING: Registry[Build] = Registry("answering", "fedpeft.answering")
ANSWERING.register("classification", "fedpeft.client.answering.classification:build")
ANSWERING.register("generation", "fedpeft.client.answering.generation:build")
ANSWERING.register("ranking", "fedpeft.client.answering.ranking:build")

register, names = ANSWERING.register, ANSWERING.names


def build(
    backbone: Backbone,
    vocabulary: AnswerVocabulary,
    settings: TrainingSettings,
    generator: torch.Generator,
    *,
    labelled: bool = False,
) -> Answering:
    """Build what `training.answering` names, or for images with labels what gives these.

    Args:
        backbone: with the method's adapters in it.
        vocabulary: the site's answers or labels, or those of a federated head.
        settings: the section `training`.
        generator: for initial values.
        labelled: whether the site's images have labels (`fedpeft.data.schema.SiteData.labels`).

    Raises:
        FedpeftError: the backbone cannot answer in this way.
    """
    only = getattr(backbone, "answering", None)
    if labelled:
        if only:
            raise FedpeftError(
                f"these images have labels, and this backbone answers by {only} alone: choose another backbone.",
                setting="backbone.name",
            )
        from fedpeft.client.answering import multilabel

        return multilabel.build(backbone, vocabulary, settings, generator)
    if only not in (None, settings.answering):
        raise FedpeftError(
            f"answering is {settings.answering!r}, and this backbone answers by {only} alone: set training.answering "
            f"to {only!r}.",
            setting="training.answering",
        )
    return ANSWERING.get(settings.answering)(backbone, vocabulary, settings, generator)
