# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Files that a stranger made, read as a site reads them: Parquet and Arrow tables, XML, DICOM, PNG, and safetensors.

Each is written and then read in a process of its own, which may take 4 GB: a copy of one that has imported everything.
The largest memory is that of the reading process, with what was imported; the seconds are those of the processor.
Hostile ONNX is not among them: fedpeft writes ONNX and reads none.
"""

from __future__ import annotations

import functools
import io
import json
import random
import signal
import struct
import subprocess
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from PIL import Image

READER = """
import json, os, resource, signal, sys
from pathlib import Path
from fedpeft.data import DataSettings, load
from fedpeft.data.images import open_image
from fedpeft.core.errors import FedpeftError
from fedpeft.methods.adapters import read_config, read_state

def read(kind, folder):
    if kind == "adapter":
        return f"read: {len(read_state(folder, read_config(folder), 'vilt')):,} tensors"
    site = load(DataSettings(dataset=kind, root=folder))
    examples = [*site.train, *site.validation, *site.test]
    for example in examples:
        open_image(example.image)
    return f"read: {len(examples):,} examples, {sum(n for _, n in site.left_out):,} left out"

def say(kind, folder):
    resource.setrlimit(resource.RLIMIT_DATA, (4 * 10**9, 4 * 10**9))
    end = "read"
    try:
        what = read(kind, folder)
    except FedpeftError as error:
        end, what = "refused", str(error)
    except MemoryError:
        end, what = "MemoryError", "MemoryError: more than 4 GB"
    except Exception as error:
        end, what = type(error).__name__, f"{type(error).__name__}: {error}"
    peak = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
    print(json.dumps({"end": end, "what": what, "peak": int(peak) / 1e6}), flush=True)

for line in sys.stdin:
    seconds, kind, folder = json.loads(line)
    child = os.fork()
    if not child:
        signal.alarm(seconds)
        say(kind, folder)
        os._exit(0)
    _, status, used = os.wait4(child, 0)
    print(json.dumps({"code": os.waitstatus_to_exitcode(status), "seconds": used.ru_utime + used.ru_stime}), flush=True)
"""
SECONDS = 600  # for the slowest, on a busy machine
FUZZED = 300
Row = tuple[str, str, str]


def _png(seed: int = 0) -> bytes:
    content = io.BytesIO()
    Image.frombytes("RGB", (8, 8), random.Random(seed).randbytes(192)).save(content, "png")
    return content.getvalue()


def _sound(count: int = 12, **changes: object) -> list[dict]:
    return [
        {"image": {"bytes": _png(n), "path": ""}, "question": f"Question {n}?", "answer": "yes", **changes}
        for n in range(count)
    ]


def _write(folder: Path, columns: dict, name: str = "data.parquet", **options: object) -> None:
    import pyarrow
    import pyarrow.parquet

    table = columns if isinstance(columns, pyarrow.Table) else pyarrow.table(columns)
    pyarrow.parquet.write_table(table, folder / name, compression="zstd", **options)


def _of_rows(folder: Path, rows: list[dict], **options: object) -> None:
    import pyarrow

    _write(folder, pyarrow.Table.from_pylist(rows), **options)


def _repeated(folder: Path, megabytes: int, rows: int) -> None:
    """One long text, written once in a dictionary and repeated by its number."""
    import pyarrow

    texts = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array([0] * rows, pyarrow.int32()), pyarrow.array(["x" * megabytes * 10**6])
    )
    image = pyarrow.array([_png()] * rows)
    _write(folder, {"image": image, "question": texts, "answer": pyarrow.array(["yes"] * rows)})


def _zeros(folder: Path, megabytes: int, rows: int) -> None:
    """Images of nothing but zeros, which are packed to a ten-thousandth."""
    cells = [b"\0" * megabytes * 10**6] * rows
    _write(folder, {"image": cells, "question": ["?"] * rows, "answer": ["yes"] * rows}, use_dictionary=False)


def _nulls(folder: Path, rows: int) -> None:
    """Rows without a value, of which a file needs a few bytes for a million."""
    import pyarrow

    part = pyarrow.table({name: pyarrow.nulls(10**6, pyarrow.string()) for name in ("image", "question", "answer")})
    import pyarrow.parquet

    with pyarrow.parquet.ParquetWriter(folder / "data.parquet", part.schema, compression="zstd") as writer:
        for _ in range(rows // 10**6):
            writer.write_table(part)


def _arrow_nulls(folder: Path) -> None:
    """An Arrow file of rows of type null, which take no bytes at all."""
    import pyarrow

    names = ["image", "question", "answer"]
    rows = pyarrow.Array.from_buffers(pyarrow.null(), 2**31 - 1, [None])
    table = pyarrow.Table.from_batches([pyarrow.RecordBatch.from_arrays([rows] * 3, names)])
    with pyarrow.ipc.new_stream(folder / "data.arrow", table.schema) as stream:
        stream.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}], "_split": "train"}))


def _nested(folder: Path, depth: int) -> None:
    import pyarrow

    kind = pyarrow.string()
    for _ in range(depth):
        kind = pyarrow.list_(kind)
    rows = 8
    columns = {"image": pyarrow.array([_png()] * rows), "question": pyarrow.nulls(rows, kind)}
    _write(folder, {**columns, "answer": pyarrow.array(["yes"] * rows)})


def _wide(folder: Path, columns: int) -> None:
    import pyarrow

    extra = {f"{'c' * 50}{n}": pyarrow.nulls(8, pyarrow.int8()) for n in range(columns)}
    table = pyarrow.Table.from_pylist(_sound(8))
    _write(folder, pyarrow.table({**{name: table.column(name) for name in table.column_names}, **extra}))


def _bomb(folder: Path) -> None:
    """A PNG of 30,000 x 30,000 pixels in 1 MB."""
    content = io.BytesIO()
    Image.new("1", (30_000, 30_000)).save(content, "png", optimize=True)
    _of_rows(folder, [{**row, "image": {"bytes": content.getvalue(), "path": ""}} for row in _sound()])


def _path(text: str) -> Callable[[Path], None]:
    return lambda folder: _of_rows(folder, [{**row, "image": {"bytes": None, "path": text}} for row in _sound()])


def _link(folder: Path) -> None:
    (folder / "data.parquet").symlink_to("/dev/zero")


PARQUET: dict[str, Callable[[Path], None]] = {
    "nothing wrong": lambda folder: _of_rows(folder, _sound()),
    "a text of 100 MB once in the dictionary, in 1,000 rows": lambda folder: _repeated(folder, 100, 1000),
    "40 images of 50 MB of zeros in one row group": lambda folder: _zeros(folder, 50, 40),
    "an image of 500 MB of zeros": lambda folder: _zeros(folder, 500, 1),
    "a hundred million rows without a value": lambda folder: _nulls(folder, 10**8),
    "2**31 - 1 rows of type null in an Arrow file": _arrow_nulls,
    "questions that are lists, 200 deep": lambda folder: _nested(folder, 200),
    "20,000 columns": lambda folder: _wide(folder, 20_000),
    "images of 30,000 x 30,000 pixels": _bomb,
    "/etc/passwd as an image's path": _path("/etc/passwd"),
    "../../../../etc/passwd as an image's path": _path("../../../../etc/passwd"),
    "a path with a zero byte": _path("a\0b.png"),
    "a path of 1 MB": _path("a/" * 500_000),
    "a link to /dev/zero": _link,
}
REPORT = (
    '<eCitation><AbstractText Label="FINDINGS">Clear lungs.</AbstractText><MeSH><major>normal</major></MeSH>'
    '<parentImage id="{}"><caption>Xray Chest PA and Lateral</caption></parentImage></eCitation>'
)
ENTITIES = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10 if n else "ha"}">' for n in range(10))
XML: dict[str, str] = {
    "entities that expand to 10**10 letters": f"<!DOCTYPE r [{ENTITIES}]><r>&e9;</r>",
    "an entity of the file /etc/passwd": '<!DOCTYPE r [<!ENTITY e SYSTEM "file:///etc/passwd">]><r>&e;</r>',
    "a document type at an address": '<!DOCTYPE r SYSTEM "http://127.0.0.1:9/r.dtd"><r/>',
    "a parameter entity": '<!DOCTYPE r [<!ENTITY % p SYSTEM "file:///etc/passwd"> %p;]><r/>',
    "elements 100,000 deep": "<a>" * 100_000 + "</a>" * 100_000,
    "a text of 100 MB": f"<r><AbstractText Label='FINDINGS'>{'x' * 10**8}</AbstractText></r>",
    "60,000 attributes": "<r " + " ".join(f'a{n}="1"' for n in range(60_000)) + "/>",
    "an attribute of 100 MB": f"<r a='{'x' * 10**8}'/>",
    "100,000 elements": f"<r>{'<a/>' * 100_000}</r>",
    "an undeclared entity": "<r>&nothing;</r>",
    "an unknown encoding": '<?xml version="1.0" encoding="x-unheard-of"?><r/>',
    "UTF-16 with a document type": "\ufeff<!DOCTYPE r [<!ENTITY e 'x'>]><r>&e;</r>",
    "an image of the name ../../../etc/passwd": REPORT.format("../../../etc/passwd"),
    "nothing wrong": REPORT.format("CXR1_IM-0001-1001"),
}
REPORTS = 12  # of which the first is the stranger's


def _rle(segment: bytes, *, segments: int = 1) -> bytes:
    """A frame of DICOM's RLE whose segments are all the same."""
    starts = [64 + number * len(segment) for number in range(segments)]
    return struct.pack("<16I", segments, *starts, *[0] * (15 - segments)) + segment * segments


def _dicom(*, frame: bytes = b"", syntax: str = "ExplicitVRLittleEndian", depth: int = 0, **values: Any) -> bytes:
    """8x8 gray values, or one compressed frame; and a sequence in a sequence, so deep."""
    import pydicom

    made = pydicom.Dataset()
    made.file_meta = pydicom.dataset.FileMetaDataset()
    made.file_meta.TransferSyntaxUID = getattr(pydicom.uid, syntax)
    made.file_meta.MediaStorageSOPClassUID = made.SOPClassUID = pydicom.uid.CTImageStorage
    made.file_meta.MediaStorageSOPInstanceUID = made.SOPInstanceUID = "1.2.3"
    made.Rows = made.Columns = 8
    made.SamplesPerPixel, made.PhotometricInterpretation, made.PixelRepresentation = 1, "MONOCHROME2", 0
    made.BitsAllocated, made.BitsStored, made.HighBit = 8, 8, 7
    made.PixelData = pydicom.encaps.encapsulate([frame]) if frame else bytes(range(64))
    for name, value in values.items():
        setattr(made, name, value)
    content = io.BytesIO()
    made.save_as(content, enforce_file_format=True)
    # sequences and items of undefined length, of which nothing has to end
    sequence = struct.pack("<HH2sHI", 0x0008, 0x1140, b"SQ", 0, 2**32 - 1) + struct.pack(
        "<HHI", 0xFFFE, 0xE000, 2**32 - 1
    )
    head, mark, rest = content.getvalue().partition(struct.pack("<HH", 0x0028, 0x0002))
    return head + sequence * depth + mark + rest


def _jpeg(side: int) -> bytes:
    content = io.BytesIO()
    Image.new("L", (side, side)).save(content, "jpeg")
    return content.getvalue()


def _png_of_chunks(count: int, size: int = 0) -> bytes:
    """A PNG with so many more chunks behind its pixels."""
    begin, mark, end = (sound := _png()).rpartition(sound[-12:])
    body = b"teSt" + bytes(size)
    return begin + (struct.pack(">I", size) + body + struct.pack(">I", zlib.crc32(body))) * count + mark + end


IMAGES: dict[str, Callable[[], bytes]] = {
    "DICOM, nothing wrong": _dicom,
    "DICOM of 8x8 pixels whose RLE makes 512 MB": lambda: _dicom(
        frame=_rle(b"\x81\x00" * 4_000_000), syntax="RLELossless"
    ),
    "DICOM with three segments of RLE for one": lambda: _dicom(
        frame=_rle(b"\x81\x00", segments=3), syntax="RLELossless"
    ),
    "DICOM of 8x8 pixels whose JPEG has 9000x9000": lambda: _dicom(frame=_jpeg(9000), syntax="JPEGBaseline8Bit"),
    "DICOM that says 60,000x60,000 pixels": lambda: _dicom(Rows=60_000, Columns=60_000),
    "DICOM that says 10**9 frames": lambda: _dicom(NumberOfFrames=10**9),
    "DICOM with 100,000 sequences in sequences": lambda: _dicom(depth=100_000),
    "PNG of 300,000 chunks": lambda: _png_of_chunks(300_000),
    "PNG of 1000 chunks": lambda: _png_of_chunks(1000),
    "PNG that says 2**31 - 1 pixels a side": lambda: (
        _png()[:16] + struct.pack(">II", 2**31 - 1, 2**31 - 1) + _png()[24:]
    ),
}


def image_rows() -> Iterator[Row]:
    """Images of a stranger, listed in a manifest."""
    for name, make in IMAGES.items():

        def write(folder: Path, name: str = name, content: bytes = make()) -> None:
            first = "0.dcm" if name.startswith("DICOM") else "0.png"
            (folder / first).write_bytes(content)
            lines = ["image,question,answer,split", f"{first},why,yes,train"]
            for number in range(1, REPORTS):
                (folder / f"{number}.png").write_bytes(_png(number))
                lines.append(f"{number}.png,why,{('yes', 'no')[number % 2]},{'train' if number < 8 else 'test'}")
            (folder / "manifest.csv").write_text("\n".join(lines) + "\n")

        yield name, *_read("manifest", write)


def _tensors(header: bytes | dict, values: bytes = b"", length: int | None = None) -> Callable[[Path], None]:
    """An adapter whose weights have this header."""

    def write(folder: Path) -> None:
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        (folder / "adapter_config.json").write_text(
            json.dumps({"peft_type": "LORA", "r": 2, "target_modules": ["query"], "base_model_name_or_path": "x"})
        )
        size = struct.pack("<Q", len(text) if length is None else length)
        (folder / "adapter_model.safetensors").write_bytes(size + text + values)

    return write


def _zero_link(folder: Path) -> None:
    _tensors({})(folder)
    (folder / "adapter_model.safetensors").unlink()
    (folder / "adapter_model.safetensors").symlink_to("/dev/zero")


def _of(name: str, shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict:
    return {name: {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}}


KEY = "base_model.model.encoder.layer.{}.attention.attention.query.lora_A.weight"
FIRST, SECOND = KEY.format(0), KEY.format(1)
TENSORS: dict[str, Callable[[Path], None]] = {
    "nothing wrong": _tensors(_of(FIRST, [2, 4], 0, 32), bytes(32)),
    "a header of 2**63 bytes": _tensors({}, length=2**63),
    "a header of 200 MB of blanks": _tensors(b" " * 2 * 10**8),
    "a header that is a list, 100,000 deep": _tensors(b"[" * 10**5 + b"]" * 10**5),
    "a header that is no text": _tensors(b"\xff\xfe{}"),
    "a million tensors without a value": _tensors(
        {key: value for n in range(10**6) for key, value in _of(KEY.format(n), [0, 4], 0, 0).items()}
    ),
    "a shape of 2**62 x 2**62": _tensors(_of(FIRST, [2**62, 2**62], 0, 32), bytes(32)),
    "a shape larger than its bytes": _tensors(_of(FIRST, [2**30, 4], 0, 32), bytes(32)),
    "a shape of -1 rows": _tensors(_of(FIRST, [-1, 4], 0, 32), bytes(32)),
    "bytes beyond the end": _tensors(_of(FIRST, [2, 4], 0, 32)),
    "bytes before the beginning": _tensors(_of(FIRST, [2, 4], -32, 0), bytes(32)),
    "two tensors of the same bytes": _tensors(_of(FIRST, [2, 4], 0, 32) | _of(SECOND, [2, 4], 0, 32), bytes(32)),
    "bytes that belong to no tensor": _tensors(_of(FIRST, [2, 4], 0, 32), bytes(32 + 10**6)),
    "an unknown kind of number": _tensors(_of(FIRST, [2, 4], 0, 32, "F128"), bytes(32)),
    "a path for a tensor's name": _tensors(_of("../../etc/passwd", [2, 4], 0, 32), bytes(32)),
    "a pickle in place of the file": _tensors(b"", b"cos\nsystem\n(S'id'\ntR.", length=0x80),
    "a link to /dev/zero": _zero_link,
}


def tensor_rows() -> Iterator[Row]:
    """Adapters of a stranger, as `fedpeft predict` and `fedpeft.adapters` read them."""
    for name, write in TENSORS.items():
        yield name, *_read("adapter", write)


def parquet_rows() -> Iterator[Row]:
    """Tables of a stranger."""
    for name, write in PARQUET.items():
        yield name, *_read("hugging_face", write)
    yield f"{FUZZED} sound files with up to 20 bytes changed", *_fuzzed()


def xml_rows() -> Iterator[Row]:
    """Reports of a stranger, in the layout of Open-I's publisher."""
    for name, text in XML.items():

        def write(folder: Path, text: str = text) -> None:
            (folder / "ecgen-radiology").mkdir()
            encoding = "utf-16" if text.startswith("\ufeff") else "utf-8"
            (folder / "ecgen-radiology" / "1.xml").write_bytes(text.removeprefix("\ufeff").encode(encoding))
            (folder / "images").mkdir()
            for number in range(1, REPORTS + 1):
                name = f"CXR{number}_IM-{number:04}-1001"
                (folder / "images" / f"{name}.png").write_bytes(_png(number))
                if number > 1:
                    (folder / "ecgen-radiology" / f"{number}.xml").write_text(REPORT.format(name))

        yield name, *_read("open_i", write)


@functools.cache
def _reader() -> subprocess.Popen:
    """The process of which every reader is a copy."""
    command = [sys.executable, "-c", READER]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _ended(dataset: str, folder: Path) -> dict[str, Any]:
    """What one reader said, how it ended, and what it took."""
    reader, said = _reader(), {}
    assert reader.stdin
    assert reader.stdout
    print(json.dumps([SECONDS, dataset, str(folder)]), file=reader.stdin, flush=True)
    while "code" not in said:
        said |= json.loads(reader.stdout.readline())
    return said


def _read(dataset: str, write: Callable[[Path], None]) -> tuple[str, str]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write(folder)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
        said = _ended(dataset, folder)
    if said["code"] == -signal.SIGALRM:
        return "no end", f"more than {SECONDS} s, of a file of {size / 1e6:.1f} MB"
    if said["code"]:
        return f"the process ended with {said['code']}", "the training process"
    what = " ".join(said["what"].replace(scratch, "…").replace(folder.name, "north").split())[:400]
    return what, f"{said['peak']:.1f} GB, {said['seconds']:.1f} s, of a file of {size / 1e6:.1f} MB"


def _fuzzed() -> tuple[str, str]:
    """Sound files with changed bytes."""
    ends: Counter[str] = Counter()
    peak = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        _of_rows(folder, _sound())
        sound = (folder / "data.parquet").read_bytes()
        for number in range(FUZZED):
            changed, rng = bytearray(sound), random.Random(number)
            for _ in range(rng.randint(1, 20)):
                changed[rng.randrange(len(changed))] = rng.randrange(256)
            (folder / "data.parquet").write_bytes(changed)
            said = _ended("hugging_face", folder)
            if said["code"]:
                ends[f"ended with {said['code']}"] += 1
                continue
            peak = max(peak, said["peak"])
            ends[said["end"]] += 1
    kept = not any(end.startswith("ended with") for end in ends)
    summary = ", ".join(f"{number} {end}" for end, number in sorted(ends.items()))
    return summary, f"nothing; {peak:.1f} GB" if kept else "the training process"
