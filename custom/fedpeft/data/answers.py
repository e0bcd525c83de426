# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Answers as classes: their normal form, whether a question is open or closed, and one vocabulary per site.

Normal form: text (a whole number becomes its digits) in Unicode's composed form without characters that have no width,
lower case, every run of white space one blank, none at the ends. Punctuation stays: `t1-weighted` and `l2/3` mean
something. "Yes", "yes " and "YES" are one class, "4" and 4 are one.

A vocabulary is made from the site's own training answers and stays on the site, like the head whose classes it names:
its order, size and words differ from site to site, and no message carries it.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fedpeft.core.errors import DataError

if TYPE_CHECKING:
    from fedpeft.data.schema import Example

YES_NO = frozenset({"yes", "no"})
MISSING = frozenset(  # as programs write a cell without value: pandas, R, Excel
    {
        *("", "nan", "-nan", "na", "n/a", "#n/a", "#n/a n/a", "#na", "<na>", "nat", "null"),
        *("1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan"),
        *("#value!", "#ref!", "#div/0!", "#name?", "#num!", "#null!"),
    }
)
MAYBE_MISSING = ("none", "-1", "-9", "-99", "999", "?", "??", ".", "-", "--")  # as people write it; can be answers

# joiners, marks of direction, soft hyphens, byte order marks: nobody sees them, and two texts differ by them
_NO_WIDTH = dict.fromkeys(
    (0x00AD, 0x2060, 0xFEFF, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
)
_SAME_LETTER = ("<wide>", "<narrow>", "<compat>")  # other forms, such as raised or circled ones, are other letters


def clean_text(text: str) -> str:
    """Return a text in Unicode's composed form (NFC), without characters that have no width.

    Letters and digits of full or half width, and ligatures, become plain ones.
    """
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", "".join(map(_plain, text.translate(_NO_WIDTH))))


def _plain(letter: str) -> str:
    same = letter.isalnum() and unicodedata.decomposition(letter).startswith(_SAME_LETTER)
    return unicodedata.normalize("NFKC", letter) if same else letter


def whole_text(text: str) -> str:
    """Return a text, cleaned; refuse half of a character, which JSON may hold and no file of UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError("a text has half of a character (a lone surrogate)") from error
    return clean_text(text)


def clean_values(value: Any) -> Any:
    """Return a parsed value with every text in it cleaned, see `whole_text`."""
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, list):
        return [clean_values(one) for one in value]
    if isinstance(value, dict):
        return {clean_values(key): clean_values(one) for key, one in value.items()}
    return value


def normalize(answer: str | int) -> str:
    """Return the normal form of an answer; refuse an empty one, and any value but text and whole numbers."""
    if isinstance(answer, bool) or not isinstance(answer, str | int):
        raise DataError(f"an answer is {type(answer).__name__}, not text or a whole number")
    normal = clean_text(" ".join(clean_text(str(answer)).lower().split()))  # lower case of İ is decomposed
    if not normal:
        raise DataError("an answer is empty")
    return normal


def is_missing(cell: object, *, or_none: bool = False) -> bool:
    """Return whether a cell of a table is empty, or holds what programs write where there is no value.

    With `or_none` the word none counts as well; as an answer it is a value, e.g. to "Which abnormality is there?".
    """
    if cell is None or isinstance(cell, list):
        return cell is None
    text = " ".join(clean_text(str(cell)).lower().split())
    return text in MISSING or (or_none and text == "none")


def closed_by_type(answer_type: str) -> bool:
    """Return True for a publisher's `CLOSED`, False for `OPEN`, in any case and with blanks around it (`"CLOSED "`)."""
    kind = answer_type.strip().upper() if isinstance(answer_type, str) else answer_type
    if kind not in ("OPEN", "CLOSED"):
        raise DataError(f"answer_type is {answer_type!r}, neither OPEN nor CLOSED")
    return kind == "CLOSED"


def closed_by_answer(answer: str) -> bool:
    """Return whether a normalized answer is yes or no: the rule where the publisher gives no answer type."""
    return answer in YES_NO


def images_of_classes(pairs: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Count the different images of each class; `pairs` are a class and the id of an image, of each example."""
    return dict(Counter(name for name, _ in set(pairs)))


class AnswerVocabulary:
    """The classes of one site's head: its answers, sorted, numbered from 0.

    Args:
        answers: normalized answers, each once; their order is the numbering.

    Raises:
        DataError: there is none, or one occurs twice.
    """

    def __init__(self, answers: Iterable[str]) -> None:
        self._answers = tuple(answers)
        self._index = {answer: number for number, answer in enumerate(self._answers)}
        if not self._answers:
            raise DataError("An answer vocabulary needs at least one answer; the training split has none.")
        if len(self._index) != len(self._answers):
            raise DataError("An answer vocabulary holds an answer twice; build it with AnswerVocabulary.from_examples.")

    @classmethod
    def from_examples(cls, examples: Iterable[Example]) -> AnswerVocabulary:
        """Build the vocabulary of a site: the answers of its training examples, sorted."""
        return cls(sorted({normalize(example.answer) for example in examples}))

    def __len__(self) -> int:
        return len(self._answers)

    @property
    def answers(self) -> tuple[str, ...]:
        """All answers; the class number is the position."""
        return self._answers

    def index(self, answer: str | int) -> int:
        """Return the class number of an answer; -1 if training does not have it: the question counts as wrong."""
        return self._index.get(normalize(answer), -1)

    def index_of_label(self, label: str) -> int:
        """Return the number of a label; refuse an unknown one, because -1 would be the last label."""
        if (number := self.index(label)) < 0:
            raise DataError(f"the label {normalize(label)!r:.80} is not one of this model's {len(self)}")
        return number

    def accepted(self, example: Example) -> tuple[int, ...]:
        """Return the class numbers of all accepted answers that occur in training; empty: none can be right."""
        numbers = (self.index(answer) for answer in (example.answer, *example.alternatives))
        return tuple(dict.fromkeys(number for number in numbers if number >= 0))

    def class_of(self, example: Example) -> str:
        """Return the accepted answer that an example counts for: the first in the vocabulary, or else its own."""
        numbers = self.accepted(example)
        return self._answers[numbers[0]] if numbers else normalize(example.answer)

    def unseen(self, examples: Iterable[Example]) -> int:
        """Count the examples without an accepted answer in the vocabulary; they limit the accuracy."""
        return sum(not self.accepted(example) for example in examples)

    def unseen_classes(self, examples: Iterable[Example], *, min_images: int = 1) -> int:
        """Count the answers outside the vocabulary that examples of at least `min_images` images have."""
        images = images_of_classes((self.class_of(example), example.image_id) for example in examples)
        return sum(count >= min_images for name, count in images.items() if self.index(name) < 0)

    def rare_classes(self, examples: Iterable[Example], *, min_images: int) -> frozenset[int]:
        """Return the numbers of the answers that examples of fewer than `min_images` images have."""
        images = images_of_classes((self.class_of(example), example.image_id) for example in examples)
        return frozenset(self.index(name) for name, count in images.items() if count < min_images)
