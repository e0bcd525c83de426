# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The answers that a federated head distinguishes: one sorted list for all sites, independent of any site's data.

The job names it (`data.answers`), or the data set itself declares it. So its length, which the server learns from the
head's shape, says nothing about a site, and no site has to reveal or compare its own answers.

A training row with another answer is left out, and a test question with one counts as wrong; only the site's own log
and `fedpeft doctor` there say how many. If such a row ended the job, authors of jobs could try one list after another
to learn which answers a site has. If it were only left out, a list could choose the few rows that a site trains on. So
a site of a consortium takes part only with a list that its site policy names (`answers`), and leaves the same rows out
of every job with that data set. Then neither a refusal nor a number of samples depends on somebody else's list.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedpeft.core.errors import DataError, FedpeftError
from fedpeft.data.answers import AnswerVocabulary, normalize
from fedpeft.data.registry import DATASETS
from fedpeft.data.schema import added

if TYPE_CHECKING:
    from fedpeft.data.schema import SiteData
    from fedpeft.data.settings import DataSettings

UNLISTED = "their answers are not in the list (data.answers), test questions with such answers count as wrong"


def shared_answers(settings: DataSettings, of_sites: Mapping[str, Any], *, federated: bool) -> tuple[str, ...] | None:
    """Return the answers of all sites of a job, sorted; None where every site has those of its own data."""
    if not federated:
        if settings.answers:
            raise FedpeftError(
                "answers is one list for all sites, which only a head that is federated needs: leave it out, or set "
                "method.head to 'federated'.",
                setting="data.answers",
            )
        return None
    named = {"dataset": [settings.dataset], "answers": []}
    for own in of_sites.values():
        for name, values in named.items():
            values += [own[name]] if isinstance(own, Mapping) and name in own else []
    if named["answers"]:
        raise FedpeftError(
            "answers is set for single sites, but a federated head has one list: set data.answers for all sites.",
            setting="data.answers",
        )
    if settings.answers:
        return tuple(sorted(settings.answers))
    if len(datasets := sorted(set(map(str, named["dataset"])))) > 1:
        raise FedpeftError(
            f"sites have the data sets {', '.join(datasets)}, and a federated head needs the same answers at all of "
            f"them: set data.answers, or leave method.head out.",
            setting="data.answers",
        )
    declared = DATASETS.get(settings.dataset).answers
    if declared is None:
        raise FedpeftError(
            f"dataset={settings.dataset!r} declares no answers, and a federated head needs the same at all sites: set "
            f"data.answers, or leave method.head out.",
            setting="data.answers",
        )
    return tuple(sorted({normalize(answer) for answer in declared()}))


def keep_listed_answers(data: SiteData, answers: Collection[str]) -> SiteData:
    """Return a site's data without the training rows whose answer is not in a list; they are counted in `left_out`.

    Validation and test rows stay: such a question counts as wrong. Images with any number of labels stay as well.
    """
    if data.labels:
        return data
    known = frozenset(answers)
    kept = tuple(example for example in data.train if normalize(example.answer) in known)
    if len(kept) == len(data.train):
        return data
    gone = len(data.train) - len(kept)
    return replace(data, train=kept, left_out=added(data.left_out, [(UNLISTED, gone)]))


def vocabulary_of(data: SiteData, answers: tuple[str, ...] | None) -> AnswerVocabulary:
    """Return the classes of a site's head: its labels, `answers` of all sites, or those of its own training data."""
    if data.labels:
        if answers not in (None, data.labels):
            raise DataError(
                f"Site {data.site!r} has {len(data.labels)} labels, which are not the {len(answers or ())} answers of "
                f"the federated head: let all sites have the labels of one data set, or leave method.head out."
            )
        return AnswerVocabulary(data.labels)
    if answers is None:
        return AnswerVocabulary.from_examples(data.train)
    vocabulary = AnswerVocabulary(answers)
    if others := {normalize(example.answer) for example in data.train if vocabulary.index(example.answer) < 0}:
        raise DataError(
            f"Site {data.site!r} has {len(others)} training answers that are not among the {len(answers)} of the "
            f"federated head: add them to data.answers, or leave method.head out."
        )
    return vocabulary
