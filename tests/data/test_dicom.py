# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""DICOM images of a manifest: rescaled, windowed, and nothing of a patient in any text."""

from __future__ import annotations

import io
import struct
import sys
import tracemalloc

import numpy as np
import pytest
from grids import each
from layouts import lines
from PIL import Image

from fedpeft.core.errors import UnreadableImage
from fedpeft.data import DataError, DataSettings, dicom_grays, load
from fedpeft.data import dicom as dicom_file
from fedpeft.data.chosen_image import image_of
from fedpeft.data.images import as_array, check_header
from fedpeft.data.settings import Window

pydicom = pytest.importorskip("pydicom")
encapsulate = pydicom.encaps.encapsulate
SECRET = "Doe^Jane"
CT = np.arange(64, dtype=np.int16).reshape(8, 8) * 60
UNSIGNED = CT.astype(np.uint16)
GRAY = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
COLORS = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
LUNG, SHARES = Window(-1350, 150), Window(1, 99, percentiles=True)


def saved(path, pixels=CT, *, kind="MONOCHROME2", bits=16, frames=0, syntax=None, **more):
    from pydicom.dataset import FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

    made = pydicom.Dataset()
    made.file_meta = FileMetaDataset()
    made.file_meta.TransferSyntaxUID = syntax or ExplicitVRLittleEndian
    made.file_meta.MediaStorageSOPClassUID = made.SOPClassUID = CTImageStorage
    made.file_meta.MediaStorageSOPInstanceUID = made.SOPInstanceUID = generate_uid()
    made.PatientName, made.PatientID, made.StudyDate = SECRET, SECRET, "20200101"
    made.Rows, made.Columns = pixels.shape[1:3] if frames else pixels.shape[:2]
    made.SamplesPerPixel = 3 if kind.startswith(("RGB", "YBR")) else 1
    if made.SamplesPerPixel == 3:
        made.PlanarConfiguration = 0
    made.PhotometricInterpretation = kind
    made.BitsAllocated, made.BitsStored, made.HighBit = bits, bits, bits - 1
    made.PixelRepresentation = int(pixels.dtype.kind == "i")
    if frames:
        made.NumberOfFrames = frames
    made.PixelData = pixels.tobytes()
    for name, value in more.items():
        setattr(made, name, value)
    made.save_as(path, enforce_file_format=True)
    return path


def table(entries, first=0, *, bits=16, count=None, words=None, signed=False):
    """A sequence of one lookup table; its entries are words of the file, or numbers."""
    entries = np.asarray(entries, np.uint16)
    made = pydicom.Dataset()
    made.add_new("LUTDescriptor", "SS" if signed else "US", [count or len(entries), first, bits])
    made.add_new("LUTData", "OW" if words else "US", entries.astype(words).tobytes() if words else entries.tolist())
    return [made]


def palette(count=256, first=0, *, bits=8, words=np.uint8):
    """Three tables of colors."""
    made = {}
    for number, name in enumerate(dicom_grays.PALETTES.values()):
        entries = (np.arange(256) * (number + 1) % 256) * (257 if bits == 16 else 1)
        made |= {f"{name}Descriptor": [count, first, bits], f"{name}Data": entries.astype(words).tobytes()}
    return made


def shown(path, part="", window=None):
    image = image_of(path.parent, path.name + part, window, where="line 2")[0]
    pixels = as_array(image)
    assert check_header(image)[:2] == pixels.shape[1::-1], "the header says the size"
    return pixels


def test_values_are_rescaled_and_the_window_of_the_settings_is_applied(tmp_path):
    path = saved(tmp_path / "ct.dcm", RescaleSlope=2, RescaleIntercept=-1024, WindowCenter=0, WindowWidth=10)
    rgb = shown(path, window=LUNG)
    assert rgb.shape == (8, 8, 3)
    expected = np.round((np.clip(CT * 2.0 - 1024, -1350, 150) + 1350) * 255 / 1500)
    assert (rgb == expected[..., None]).all()


@pytest.mark.parametrize("function", [None, "LINEAR", "LINEAR_EXACT"])
def test_without_one_in_the_settings_the_files_own_window_is_applied_as_pydicom_does(tmp_path, function):
    from pydicom.pixels import apply_modality_lut, apply_windowing

    more = {"VOILUTFunction": function} if function else {}
    windows = {"WindowCenter": [300, 40], "WindowWidth": [1500, 400]}
    path = saved(tmp_path / "ct.dcm", CT.astype(np.uint16), RescaleSlope=1, RescaleIntercept=-1024, **windows, **more)
    dataset = pydicom.dcmread(path)
    reference = apply_windowing(apply_modality_lut(dataset.pixel_array, dataset), dataset)
    reference = np.round((reference - reference.min()) / np.ptp(reference) * 255)
    assert np.abs(shown(path)[..., 0] - reference).max() <= 1


WIDE = {"WindowCenter": 500, "WindowWidth": 900}
CURVE = np.sqrt(np.arange(4096) * 4095).astype(np.uint16)
RESCALED = {"RescaleSlope": 0.5, "RescaleIntercept": -300}
FORMS = {
    "8 bits": (8, 8, 0, {}),
    "8 bits, signed": (8, 8, 1, {}),
    "6 of 8 bits": (8, 6, 0, {}),
    "8 of 16 bits": (16, 8, 0, {}),
    "8 of 16 bits, signed": (16, 8, 1, {}),
    "8 bits, signed and rescaled": (8, 8, 1, RESCALED),
    "8 bits in a window": (8, 8, 0, {"WindowCenter": 90, "WindowWidth": 100}),
    "8 bits in a window of no width": (8, 8, 0, {"WindowCenter": 0, "WindowWidth": 0}),
    "8 bits, signed, in a window": (8, 8, 1, {"WindowCenter": 9, "WindowWidth": 100}),
    "8 bits in a table": (8, 8, 0, {"VOILUTSequence": lambda: table(np.arange(256)[::-1], bits=8)}),
    "10 bits": (16, 10, 0, WIDE),
    "12 bits": (16, 12, 0, WIDE),
    "12 bits, signed": (16, 12, 1, WIDE),
    "12 bits, the highest 15": (16, 12, 0, {**WIDE, "HighBit": 15}),
    "12 bits, the highest 13": (16, 12, 0, {**WIDE, "HighBit": 13}),
    "12 bits, signed, the highest 15": (16, 12, 1, {**WIDE, "HighBit": 15}),
    "16 bits": (16, 16, 0, WIDE),
    "16 bits, signed": (16, 16, 1, WIDE),
    "16 bits, signed and rescaled": (16, 16, 1, {**WIDE, **RESCALED}),
    "32 bits": (32, 32, 0, WIDE),
    "12 bits, exact": (16, 12, 0, {**WIDE, "VOILUTFunction": "LINEAR_EXACT"}),
    "12 bits, sigmoid": (16, 12, 0, {**WIDE, "VOILUTFunction": "SIGMOID"}),
    "12 bits, signed and rescaled, sigmoid": (16, 12, 1, {**WIDE, **RESCALED, "VOILUTFunction": "SIGMOID"}),
    "12 bits in a table": (16, 12, 0, {"VOILUTSequence": lambda: table(CURVE, bits=12)}),
    "12 bits in a table of words": (16, 12, 0, {"VOILUTSequence": lambda: table(CURVE, bits=12, words=np.uint16)}),
    "a table before a window": (16, 12, 0, {**WIDE, "VOILUTSequence": lambda: table(CURVE, bits=12)}),
    "a table from 1000 on": (16, 12, 0, {"VOILUTSequence": lambda: table(CURVE[:2000], 1000, bits=12)}),
    "a signed table": (16, 12, 1, {"VOILUTSequence": lambda: table(CURVE, -2048, bits=12, signed=True)}),
    "a table of the modality": (16, 12, 0, {**WIDE, "ModalityLUTSequence": lambda: table(CURVE, bits=16)}),
    "tables of both": (
        *(16, 12, 0),
        {
            "ModalityLUTSequence": lambda: table(CURVE, bits=16),
            "VOILUTSequence": lambda: table(np.arange(4096)[::-1], bits=12),
        },
    ),
}


NOT_AS_RLE = ("8 of 16 bits", "8 of 16 bits, signed", "32 bits")  # pydicom does not write them so
WRITTEN = [
    (syntax, form)
    for syntax in ("ExplicitVRLittleEndian", "ImplicitVRLittleEndian", "RLELossless")
    for form in FORMS
    if syntax != "RLELossless" or form not in NOT_AS_RLE
]


def stored_pixels(allocated, stored, signed, high):
    """All values of so many bits (of 32 some), with other bits set around them, and the values."""
    ends = -(2 ** (stored - 1)) * signed
    values = np.linspace(ends, ends + 2**stored - 1, 4096).astype(np.int64).reshape(64, 64)
    below = high + 1 - stored
    around = (2**allocated - 1) ^ ((2**stored - 1) << below)
    raw = ((values & (2**stored - 1)) << below) | (around & 0x5555_5555)
    return raw.astype(f"uint{allocated}").view(f"{'int' if signed else 'uint'}{allocated}"), values


def as_pydicom_shows(path, values):
    """Grays by pydicom's functions, of values whose range is that of what they are mapped to."""
    from pydicom.pixels import apply_modality_lut, apply_voi_lut

    made = pydicom.dcmread(path)
    if made.get("WindowWidth") == 0:
        del made.WindowWidth
    out = apply_voi_lut(apply_modality_lut(values, made), made)
    tables = [made.get(name) for name in ("VOILUTSequence", "ModalityLUTSequence") if name in made]
    least = -(2 ** (made.BitsStored - 1)) if made.PixelRepresentation else 0
    ends = np.array([least, least + 2**made.BitsStored - 1])
    low, high = (0, 2 ** tables[0][0].LUTDescriptor[2] - 1) if tables else apply_modality_lut(ends, made)
    grays = (out.astype(float) - low) * 255 / (high - low)
    return 255 - grays if made.PhotometricInterpretation == "MONOCHROME1" else grays


@pytest.mark.slow
@each("kind", ["MONOCHROME1", "MONOCHROME2"])
@each(("syntax", "form"), WRITTEN)
def test_each_form_is_shown_as_pydicom_shows_it(tmp_path, syntax, form, kind):
    allocated, stored, signed, more = FORMS[form]
    more = {name: value() if callable(value) else value for name, value in more.items()}
    pixels, values = stored_pixels(allocated, stored, signed, more.get("HighBit", stored - 1))
    more = {"BitsStored": stored, "HighBit": stored - 1, **more}
    compressed = syntax == "RLELossless"
    path = saved(
        tmp_path / "scan.dcm",
        pixels,
        bits=allocated,
        kind=kind,
        syntax=None if compressed else pydicom.uid.UID(getattr(pydicom.uid, syntax)),
        **more,
    )
    expected = as_pydicom_shows(path, values)
    if compressed:
        made = pydicom.dcmread(path)
        made.compress(pydicom.uid.RLELossless, generate_instance_uid=False)
        made.save_as(path)
    assert np.abs(shown(path)[..., 0] - expected).max() <= 1


@pytest.mark.parametrize("window", [None, LUNG])
def test_a_window_of_the_settings_goes_before_those_of_the_file_where_there_are_more_than_8_bits(tmp_path, window):
    more = {"VOILUTSequence": table(CURVE, bits=12), **RESCALED, "BitsStored": 12, "HighBit": 11}
    rgb = shown(saved(tmp_path / "scan.dcm", UNSIGNED, **more), window=window)[..., 0]
    values = UNSIGNED * 0.5 - 300
    expected = window.grays(values) if window else np.round(CURVE[np.clip(values, 0, 4095).astype(int)] * (255 / 4095))
    assert (rgb == expected).all()


def test_a_table_with_more_entries_than_an_entry_has_numbers_is_looked_up_whole(tmp_path):
    entries = np.arange(4096) // 16
    more = {"VOILUTSequence": table(entries, bits=8), "BitsStored": 12, "HighBit": 11}
    assert (shown(saved(tmp_path / "scan.dcm", UNSIGNED, **more))[..., 0] == entries[UNSIGNED]).all()


@pytest.mark.parametrize("packed", [False, True])
def test_bytes_of_a_table_are_read_whether_or_not_each_fills_a_word(tmp_path, packed):
    made = table(np.arange(256)[::-1], bits=8, words=np.uint8 if packed else np.uint16)
    assert (shown(saved(tmp_path / "scan.dcm", GRAY, bits=8, VOILUTSequence=made))[..., 0] == 255 - GRAY).all()


def test_a_negative_slope_turns_grays_over(tmp_path):
    path = saved(tmp_path / "scan.dcm", GRAY, bits=8, RescaleSlope=-1, RescaleIntercept=255)
    assert (shown(path)[..., 0] == 255 - GRAY).all()


@pytest.mark.parametrize("kind", ["MONOCHROME1", "MONOCHROME2"])
def test_an_inverse_presentation_is_inverted_once(tmp_path, kind):
    path = saved(tmp_path / "scan.dcm", GRAY, bits=8, kind=kind, PresentationLUTShape="INVERSE")
    assert (shown(path)[..., 0] == 255 - GRAY).all()


@each("planar", [0, 1])
@each("frames", [0, 2])
@each("kind", ["RGB", "YBR_FULL", "YBR_FULL_422"])
def test_colors_are_those_of_pydicom(tmp_path, kind, frames, planar):
    pixels = np.random.default_rng(0).integers(0, 256, (frames or 1, 8, 8, 3), np.uint8)
    if planar and kind != "YBR_FULL_422":
        pixels = pixels.transpose(0, 3, 1, 2)
    more = {"PlanarConfiguration": planar, "Rows": 8, "Columns": 8}
    if kind == "YBR_FULL_422":
        more = {**more, "PlanarConfiguration": 0, "PixelData": pixels.tobytes()[: (frames or 1) * 128]}
    path = saved(tmp_path / "us.dcm", pixels if frames else pixels[0], bits=8, kind=kind, frames=frames, **more)
    reference = pydicom.pixels.pixel_array(path)
    for number in range(frames or 1):
        part = f"#{number}" if frames else ""
        assert (shown(path, part) == (reference[number] if frames else reference)).all()


@pytest.mark.parametrize(
    ("bits", "first", "words"),
    [(8, 0, np.uint8), (8, 0, np.uint16), (8, 10, np.uint8), (8, 10, np.uint16), (16, 0, np.uint16)],
)
def test_colors_of_a_palette_are_those_of_pydicom(tmp_path, words, bits, first):
    path = saved(
        tmp_path / "pet.dcm", GRAY, bits=8, kind="PALETTE COLOR", **palette(first=first, bits=bits, words=words)
    )
    reference = pydicom.pixels.apply_color_lut(GRAY, pydicom.dcmread(path))
    assert (shown(path) == (reference // 257 if bits == 16 else reference)).all()


def test_monochrome1_is_inverted(tmp_path):
    kinds = ("MONOCHROME1", "MONOCHROME2")
    one, two = (saved(tmp_path / f"{k}.dcm", kind=k, WindowCenter=1800, WindowWidth=3600) for k in kinds)
    assert (shown(one) == 255 - shown(two)).all()


def test_8_bit_gray_values_and_colors_need_no_window(tmp_path):
    gray = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
    assert (shown(saved(tmp_path / "gray.dcm", gray, bits=8), window=LUNG) == gray[..., None]).all()
    colors = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    assert (shown(saved(tmp_path / "us.dcm", colors, bits=8, kind="RGB")) == colors).all()


def test_a_frame_is_named_behind_the_file_and_has_its_own_rescaling(tmp_path):
    frames = np.stack([CT, CT + 1])
    path = saved(tmp_path / "cine", frames.astype(np.uint16), frames=2, WindowCenter=1800, WindowWidth=3600)
    assert (shown(path, "#1") >= shown(path, "#0")).all()
    for part, why in (("", "has 2 frames; name one of #0 to #1"), ("#2", "has no frame 2"), ("#axial", "no axial")):
        with pytest.raises(UnreadableImage, match=why):
            shown(path, part)
    groups = [pydicom.Dataset() for _ in range(2)]
    for number, group in enumerate(groups):
        item = pydicom.Dataset()
        item.RescaleSlope, item.RescaleIntercept = 1, -1000 * number
        group.PixelValueTransformationSequence = [item]
    saved(path, frames.astype(np.uint16), frames=2, PerFrameFunctionalGroupsSequence=groups)
    window = Window(0, 4000)
    assert (shown(path, "#0", window) == window.grays(CT)[..., None]).all()
    assert (shown(path, "#1", window) == window.grays(CT + 1.0 - 1000)[..., None]).all()


def deflated(path):
    saved(path, syntax=pydicom.uid.DeflatedExplicitVRLittleEndian)


def cut_off(path):
    content = saved(path, WindowCenter=0, WindowWidth=10).read_bytes()
    path.write_bytes(content[:-20])


def rle(segment, *, segments=1):
    """A frame of RLE whose segments are all the same."""
    starts = [64 + number * len(segment) for number in range(segments)]
    return struct.pack("<16I", segments, *starts, *[0] * (15 - segments)) + segment * segments


def coded(frame, syntax):
    """Saves 8x8 pixels of 8 bits whose compressed frame is another one."""
    gray = np.zeros((8, 8), np.uint8)
    return lambda path: saved(path, gray, bits=8, syntax=syntax, PixelData=encapsulate([frame]))


def jpeg(size, kind="JPEG"):
    written = io.BytesIO()
    Image.new("L", size).save(written, kind)
    return written.getvalue()


JPEG_FILE = {"syntax": pydicom.uid.JPEGBaseline8Bit, "PixelData": encapsulate([jpeg((8, 8))])}
BOMB = rle(b"\x81\x00" * 4_000_000)  # 128 bytes for every two: 512 MB in a file of 8
OTHER_SIZE = "holds compressed pixels of another size than its header says"
REFUSED = {
    "a bomb of RLE": (coded(BOMB, pydicom.uid.RLELossless), OTHER_SIZE),
    "RLE of more segments": (coded(rle(b"\x81\x00", segments=3), pydicom.uid.RLELossless), OTHER_SIZE),
    "a JPEG of another size": (coded(jpeg((2000, 2000)), pydicom.uid.JPEGBaseline8Bit), OTHER_SIZE),
    "a JPEG 2000 of another size": (coded(jpeg((64, 8), "JPEG2000"), pydicom.uid.JPEG2000Lossless), OTHER_SIZE),
    "no window": (saved, "has more than 8 bits per pixel and no window of its own; set data.window"),
    "an unknown function": (
        lambda p: saved(p, WindowCenter=1, WindowWidth=9, VOILUTFunction="LOG"),
        "window of a function that is not known",
    ),
    "a window of no width": (lambda p: saved(p, WindowCenter=1, WindowWidth=0), "no window of its own"),
    "no palette": (lambda p: saved(p, CT.astype(np.uint16), kind="PALETTE COLOR"), "palette in segments.* incomplete"),
    "a short palette": (lambda p: saved(p, GRAY, bits=8, kind="PALETTE COLOR", **palette(count=300)), "lookup table"),
    "a short table": (
        lambda p: saved(p, UNSIGNED, VOILUTSequence=table(range(9), count=10)),
        "lookup table other than the file says",
    ),
    "a table beyond its bits": (
        lambda p: saved(p, UNSIGNED, VOILUTSequence=table([4096] * 9, bits=12)),
        "lookup table",
    ),
    "bits that end below": (lambda p: saved(p, UNSIGNED, BitsStored=12, HighBit=9), "12 of 16 bits end at bit 9"),
    "bits that end above": (lambda p: saved(p, UNSIGNED, BitsStored=12, HighBit=16), "12 of 16 bits end at bit 16"),
    "shifted bits in a JPEG": (
        lambda p: saved(p, GRAY, bits=8, **JPEG_FILE, BitsStored=7, HighBit=7),
        "7 of 8 bits end at bit 7; save it with HighBit one below BitsStored",
    ),
    "a rescaling to nothing": (
        lambda p: saved(p, RescaleSlope=0, RescaleIntercept=0, WindowCenter=1, WindowWidth=9),
        "rescale slope of 0",
    ),
    "a presentation table": (lambda p: saved(p, GRAY, bits=8, PresentationLUTShape="LIN OD"), "presentation table"),
    "grays with colors": (lambda p: saved(p, GRAY, bits=8, PixelPresentation="COLOR"), "grays and colors in one image"),
    "grays of three": (lambda p: saved(p, GRAY, bits=8, SamplesPerPixel=3), "several gray values"),
    "video colors": (lambda p: saved(p, COLORS, bits=8, kind="YBR_PARTIAL_422"), "colors of a kind that is not read"),
    "JPEG 2000 colors": (lambda p: saved(p, COLORS, bits=8, kind="YBR_RCT"), "colors of a kind that is not read"),
    "deep colors": (lambda p: saved(p, COLORS.astype(np.uint16), kind="RGB"), "colors of a kind that is not read"),
    "deflated": (deflated, "is deflated DICOM"),
    "cut off": (cut_off, "cannot be decoded as DICOM"),
    "no DICOM": (lambda p: p.write_bytes(b"\0" * 200), "cannot be decoded as DICOM"),
    "empty": (lambda p: p.write_bytes(b""), "cannot be decoded as DICOM"),
    "too large": (lambda p: saved(p, Rows=60_000, Columns=60_000), "has more than 89 million pixels"),
    "of words": (lambda p: saved(p, WindowCenter=1, WindowWidth=1, Rows=9), "cannot be decoded as DICOM"),
    "another coding": (
        lambda p: saved(p, syntax=pydicom.uid.HEVCMP51, WindowCenter=1, WindowWidth=9, PixelData=encapsulate([b"ab"])),
        "is compressed as HEVC",
    ),
}


def test_a_bomb_is_refused_before_it_grows(tmp_path):
    path = coded(BOMB, pydicom.uid.RLELossless)(tmp_path / "scan.dcm")
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableImage, match=OTHER_SIZE):
            shown(path)
        assert tracemalloc.get_traced_memory()[1] < 5 * len(BOMB)
    finally:
        tracemalloc.stop()


def test_compressed_pixels_of_the_declared_size_are_read(tmp_path):
    gray = np.random.default_rng(0).integers(0, 256, (37, 53), np.uint8)
    path = saved(tmp_path / "rle.dcm", gray, bits=8)
    dataset = pydicom.dcmread(path)
    dataset.compress(pydicom.uid.RLELossless, generate_instance_uid=False)
    dataset.save_as(path)
    assert (shown(path) == gray[..., None]).all()
    written = io.BytesIO()
    Image.fromarray(gray).save(written, "JPEG2000", no_jp2=True)
    more = {"syntax": pydicom.uid.JPEG2000Lossless, "PixelData": encapsulate([written.getvalue()])}
    assert (shown(saved(tmp_path / "jpeg.dcm", gray, bits=8, **more)) == gray[..., None]).all()


@pytest.mark.parametrize(("make", "sentence"), REFUSED.values(), ids=list(REFUSED))
def test_what_is_not_read_is_named_and_nothing_of_a_patient_is(tmp_path, make, sentence, caplog, capfd, recwarn):
    make(tmp_path / "scan.dcm")
    with pytest.raises(UnreadableImage, match=rf"scan\.dcm .*{sentence}") as error:
        shown(tmp_path / "scan.dcm")
    texts = [str(error.value), caplog.text, *capfd.readouterr(), *(str(one.message) for one in recwarn)]
    assert not any(SECRET in text or "Doe" in text for text in texts)
    assert error.value.__cause__ is None


def test_the_header_alone_is_checked_before_training(tmp_path, monkeypatch):
    image = image_of(tmp_path, saved(tmp_path / "ct.dcm").name, None, where="line 2")[0]
    with pytest.raises(UnreadableImage, match="no window of its own"):
        check_header(image)
    saved(tmp_path / "ct.dcm", WindowCenter=0, WindowWidth=100)
    monkeypatch.setattr(pydicom.pixels, "pixel_array", lambda *_, **__: pytest.fail("pixels were read"))
    assert check_header(image) == (8, 8, False)


def test_nothing_of_a_patient_is_even_parsed(tmp_path, monkeypatch):
    read, seen = pydicom.dcmread, []
    monkeypatch.setattr(pydicom, "dcmread", lambda *a, **k: seen.append(read(*a, **k)) or seen[-1])
    shown(saved(tmp_path / "ct.dcm", WindowCenter=0, WindowWidth=100))
    assert {element.keyword for header in seen for element in header} <= {*dicom_file.READ, "SpecificCharacterSet"}


def test_a_manifest_of_dicom_and_its_slices(tmp_path):
    frames = np.stack([CT + n for n in range(4)]).astype(np.uint16)
    saved(tmp_path / "cine.dcm", frames, frames=4)
    rows = [f"cine.dcm#{n},Is it?,{('yes', 'no')[n % 2]}" for n in range(4)]
    for number in range(8):
        saved(tmp_path / f"{number}.dcm")
        rows.append(f"{number}.dcm,Is it?,{('yes', 'no')[number % 2]}")
    lines(tmp_path / "manifest.csv", ["image,question,answer", *rows])
    chosen = {"dataset": "manifest", "root": tmp_path, "site": "north"}
    site = load(DataSettings(**chosen, window={"center": 1800, "width": 3600}))
    places = {split: {e.image_id for e in examples} for split, examples in site.splits().items()}
    assert sum(any("cine" in name for name in names) for names in places.values()) == 1, (
        "frames of a file stay together"
    )
    assert as_array(site.train[0].image).shape == (8, 8, 3)
    with pytest.raises(DataError, match="12 of 12 images cannot be read"):
        load(DataSettings(**chosen))


def test_without_pydicom_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    saved(tmp_path / "ct.dcm")
    dicom_file._pydicom.cache_clear()
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(DataError, match=r"DICOM images need pydicom.*pip install 'flare-fedpeft\[medical\]'") as error:
        shown(tmp_path / "ct.dcm")
    assert not isinstance(error.value, UnreadableImage), "images are not skipped because a package is missing"


@pytest.mark.parametrize("kind", ["MONOCHROME2", "MONOCHROME1"])
@pytest.mark.parametrize("written", ["SS", "US"])
def test_padding_is_black_and_in_no_percentile(tmp_path, kind, written):
    """Also where a program wrote the signed value as an unsigned one."""
    pixels = np.arange(64, dtype=np.int16).reshape(8, 8)
    alone = shown(saved(tmp_path / "a.dcm", pixels[1:], kind=kind, PixelRepresentation=1), window=SHARES)
    pixels[0] = -2000
    padded = saved(tmp_path / "b.dcm", pixels, kind=kind, PixelRepresentation=1)
    again = pydicom.dcmread(padded)
    again.add_new("PixelPaddingValue", written, -2000 if written == "SS" else 63536)
    again.save_as(padded)
    assert not shown(padded, window=SHARES)[0].any()
    assert (shown(padded, window=SHARES)[1:] == alone).all()
    assert not shown(padded, window=Window(-3000, 100))[0].any()
