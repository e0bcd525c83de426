# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Read an XML file that somebody else wrote: small, flat, and without declarations of its own.

A document type declares entities, which can expand without end or name other files. None of the files that are read
here has one, so it is refused where it begins; what is left to expand are characters.
"""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from fedpeft.data.errors import DataError
from fedpeft.data.records import text_bytes

MOST_BYTES = 2**20
MOST_LEVELS = 50


def xml_root(path: Path) -> Element:
    """Return the root element of a file.

    Raises:
        DataError: it is missing, larger than 1 MiB, no XML, nested deeper than 50 elements, or has a document type.
    """
    builder, level = TreeBuilder(), 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal level
        level += 1
        if level > MOST_LEVELS:
            raise DataError(f"{path} is nested deeper than {MOST_LEVELS} elements; download it again.")
        builder.start(name, attributes)

    def end(name: str) -> None:
        nonlocal level
        level -= 1
        builder.end(name)

    def refuse(*_: object) -> NoReturn:
        raise DataError(f"{path} has a document type, which the owners' files do not have; download it again.")

    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, builder.data
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    content = text_bytes(path, MOST_BYTES)
    try:
        parser.Parse(content, True)
    except DataError:
        raise
    except (expat.ExpatError, ValueError, LookupError) as error:
        line = f", line {error.lineno}" if isinstance(error, expat.ExpatError) else ""
        raise DataError(f"{path}{line}: it is not valid XML; download it again.") from error
    return builder.close()
