# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Words for the phantom's concepts: PLAIN, used to pre-train the tiny backbone, and CLINICAL, used by the sites.

Every CLINICAL word is absent from pre-training, so its embedding is random, and its meaning has to be learned inside
the layers. All sites share the words, and each site alone has few questions with each of them.
"""

from collections.abc import Iterable, Mapping

Language = Mapping[str, str]  # concept -> word

PLAIN: Language = {
    "disc": "disc",
    "ring": "ring",
    "cross": "cross",
    "stripes": "stripes",
    "bar": "bar",
    "column": "column",
    "wedge": "wedge",
    "crescent": "crescent",
    "top": "top",
    "bottom": "bottom",
    "left": "left",
    "right": "right",
    "bright": "bright",
    "dark": "dark",
}

CLINICAL: Language = {
    "disc": "nodule",
    "ring": "cyst",
    "cross": "calcification",
    "stripes": "fibrosis",
    "bar": "effusion",
    "column": "stenosis",
    "wedge": "infarct",
    "crescent": "hematoma",
    "top": "cranial",
    "bottom": "caudal",
    "left": "dextral",
    "right": "sinistral",
    "bright": "hyperdense",
    "dark": "hypodense",
}

# concepts whose words a site may use the other way round: left of the patient or left of the picture
PAIRS = (
    ("left", "right"),
    ("disc", "ring"),
    ("bright", "dark"),
    ("top", "bottom"),
    ("cross", "stripes"),
    ("bar", "column"),
    ("wedge", "crescent"),
)


def dialect(language: Language, pairs: Iterable[tuple[str, str]]) -> Language:
    """The language of a site that uses the words of some pairs of concepts the other way round.

    Args:
        language: concept -> word.
        pairs: of concepts.
    """
    other = {concept: partner for pair in pairs for concept, partner in (pair, pair[::-1])}
    return {concept: language[other.get(concept, concept)] for concept in language}


# question type -> wordings; {finding}, {place}, {density} are filled from a language
TEMPLATES: Mapping[str, tuple[str, ...]] = {
    "presence": (
        "is there evidence of {finding} ?",
        "does the image show {finding} ?",
        "can {finding} be seen in this image ?",
    ),
    "placement": (
        "is the {finding} in the {place} part ?",
        "does the {finding} lie in the {place} part of the image ?",
        "is the {finding} seen at the {place} ?",
    ),
    "density": (
        "is the {finding} {density} ?",
        "does the {finding} look {density} ?",
        "is the {finding} in this image {density} ?",
    ),
    "location": (
        "where is the {finding} ?",
        "in which part of the image is the {finding} ?",
        "where does the {finding} lie ?",
    ),
    "abnormality": (
        "what is in the {place} part ?",
        "what is seen at the {place} of the image ?",
        "what does the {place} part show ?",
    ),
    "shade": (
        "what is the shade of the {finding} ?",
        "which shade does the {finding} have ?",
        "how does the {finding} look ?",
    ),
    "count": (
        "how many findings are there ?",
        "how many findings does the image show ?",
        "what is the number of findings ?",
    ),
    "organ": (
        "what part of the body is this ?",
        "which body part does the image show ?",
        "what organ region is seen ?",
    ),
    "modality": (
        "what kind of image is this ?",
        "how was this image taken ?",
        "which modality is this ?",
    ),
}
QUESTION_TYPES = tuple(TEMPLATES)
CLOSED_TYPES = frozenset({"presence", "placement", "density"})
