# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Every kind of image file becomes 8-bit RGB, or one sentence."""

from __future__ import annotations

import pickle
import struct
import zlib
from contextlib import nullcontext

import numpy as np
import pytest
from grids import each
from layouts import picture
from PIL import ExifTags, Image, PngImagePlugin

from fedpeft.core.errors import UnreadableImage
from fedpeft.data import DataError
from fedpeft.data.chosen_image import image_of
from fedpeft.data.images import MAX_CHUNKS, Header, as_array, check_header, open_image
from fedpeft.data.settings import Window


def _saved(path, pixels, mode=None):
    Image.fromarray(pixels, mode).save(path) if mode else Image.fromarray(pixels).save(path)
    return path


def test_gray_becomes_three_equal_channels(tmp_path):
    gray = np.arange(20, dtype=np.uint8).reshape(4, 5)
    rgb = as_array(_saved(tmp_path / "gray.png", gray))
    assert rgb.dtype == np.uint8
    assert (rgb == gray[:, :, None]).all()


def test_an_opaque_rgba_file_keeps_its_colors_and_transparent_pixels_turn_black(tmp_path):
    pixels = np.full((2, 2, 4), (10, 20, 30, 255), np.uint8)
    pixels[0, 0, 3] = 0
    rgb = as_array(_saved(tmp_path / "rgba.png", pixels))
    assert rgb[1, 1].tolist() == [10, 20, 30]
    assert rgb[0, 0].tolist() == [0, 0, 0]


def test_a_palette_file_gives_the_colors_not_the_indices(tmp_path):
    image = Image.new("P", (2, 1))
    image.putpalette([200, 100, 50, 1, 2, 3])
    image.putdata([0, 1])
    image.save(tmp_path / "palette.png")
    assert as_array(tmp_path / "palette.png")[0].tolist() == [[200, 100, 50], [1, 2, 3]]


def test_a_palette_with_a_transparent_color_shows_it_black(tmp_path):
    image = Image.new("P", (2, 1))
    image.putpalette([200, 100, 50, 1, 2, 3])
    image.putdata([0, 1])
    image.save(tmp_path / "palette.png", transparency=0)
    assert as_array(tmp_path / "palette.png")[0].tolist() == [[0, 0, 0], [1, 2, 3]]


def test_a_cmyk_jpeg_and_an_array_are_rgb(tmp_path):
    assert open_image(picture(tmp_path / "print.jpg", mode="CMYK")).mode == "RGB"
    pixels = np.random.default_rng(0).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    assert (as_array(pixels) == pixels).all()
    assert open_image(pixels[:, ::-1]).size == (4, 3)


@pytest.mark.parametrize("name", ["deep.png", "deep.tif"])
def test_16_bit_files_are_refused_because_somebody_must_choose_the_window(tmp_path, name):
    path = _saved(tmp_path / name, np.full((3, 3), 40_000, np.uint16))
    with pytest.raises(
        DataError,
        match=rf"{name} has more than 8 bits per channel \(mode I;16.*; save it with 8 bits .* data.window",
    ):
        open_image(path)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _png(path, *, size: tuple[int, int], depth: int, color: int, rows: bytes):
    """A PNG that Pillow does not write: 16 bits in colors, or declared dimensions without pixels."""
    head = _chunk(b"IHDR", struct.pack(">IIBBBBB", *size, depth, color, 0, 0, 0))
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + head + _chunk(b"IDAT", zlib.compress(rows) if rows else b"") + _chunk(b"IEND", b"")
    )
    return path


@pytest.mark.parametrize(("color", "channels"), [(2, 3), (4, 2), (6, 4)])
def test_16_bits_in_colors_or_beside_transparency_are_not_cut_to_8(tmp_path, color, channels):
    rows = (b"\0" + bytes([7] * 4 * channels)) * 2
    for look in (open_image, check_header):
        with pytest.raises(UnreadableImage, match="has more than 8 bits per channel"):
            look(_png(tmp_path / "deep.png", size=(2, 2), depth=16, color=color, rows=rows))


@pytest.mark.parametrize(("largest", "deep"), [(255, False), (4095, True), (65535, True)])
def test_16_bits_in_colors_of_a_ppm_are_not_cut_to_8(tmp_path, largest, deep):
    path = tmp_path / "colors.ppm"
    path.write_bytes(b"P6\n2 2\n%d\n" % largest + np.full((2, 2, 3), 7, ">u2" if deep else np.uint8).tobytes())
    for look in (open_image, check_header):
        if deep:
            with pytest.raises(UnreadableImage, match="has more than 8 bits per channel"):
                look(path)
        else:
            look(path)


def test_a_plain_bitmap_and_plain_grays_are_read(tmp_path):
    (tmp_path / "a.pbm").write_bytes(b"P1\n2 1\n1 0\n")
    assert np.asarray(open_image(tmp_path / "a.pbm"))[..., 0].tolist() == [[0, 255]]
    (tmp_path / "b.pgm").write_bytes(b"P2\n2 1\n65535\n0 65535\n")
    chosen = image_of(tmp_path, "b.pgm", Window(0, 65535), where="line 2")[0]
    assert as_array(chosen)[..., 0].tolist() == [[0, 255]]


UPRIGHT = {  # what a viewer shows of pixels (H, W, 3) with an orientation; EXIF 2.3, 4.6.4
    0: lambda a: a,  # no orientation
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
    8: lambda a: np.rot90(a),
    9: lambda a: a,
}
CODECS = {"jpg": {"quality": 95, "subsampling": 0}, "png": {}, "tif": {}, "webp": {"lossless": True}}
PIXELS = np.random.default_rng(0).integers(0, 256, (16, 24, 3), dtype=np.uint8)


def _photo(path, pixels, orientation, **more):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    Image.fromarray(pixels).save(path, exif=exif, **more)
    return path


@pytest.mark.slow
@each("window", [None, Window(0, 255)])
@each("part", ["", "#0", "#1"])
@each("orientation", UPRIGHT)
@each("suffix", CODECS)
def test_the_orientation_of_a_photograph_counts(tmp_path, suffix, orientation, part, window):
    more = CODECS[suffix]
    if part == "#1":
        if suffix == "jpg":
            return  # it has one frame
        more = {**more, "save_all": True, "append_images": [Image.fromarray(255 - PIXELS)]}
    path = _photo(tmp_path / f"photo.{suffix}", PIXELS, orientation, **more)
    chosen = image_of(tmp_path, f"{path.name}{part}", window, where="line 2")[0]
    if part == "#1":
        _photo(tmp_path / f"second.{suffix}", 255 - PIXELS, orientation, **CODECS[suffix])
        path = tmp_path / f"second.{suffix}"
    _photo(path.with_stem("plain"), 255 - PIXELS if part == "#1" else PIXELS, 1, **CODECS[suffix])
    assert (as_array(chosen) == UPRIGHT[orientation](as_array(path.with_stem("plain")))).all()
    assert check_header(chosen) == Header(*open_image(chosen).size, turned=2 <= orientation <= 8)


@each("orientation", UPRIGHT)
@each(("suffix", "kind"), [("png", np.uint16), ("tif", np.uint16), ("tif", ">u2"), ("tif", np.int32)])
def test_the_orientation_of_an_image_of_more_than_8_bits_counts(tmp_path, suffix, kind, orientation):
    path = _photo(tmp_path / f"deep.{suffix}", (PIXELS[..., 0] * 100.0).astype(kind), orientation)
    chosen = image_of(tmp_path, path.name, Window(0, 25500), where="line 2")[0]
    assert (as_array(chosen) == UPRIGHT[orientation](PIXELS[..., [0, 0, 0]])).all()
    assert check_header(chosen) == Header(*open_image(chosen).size, turned=2 <= orientation <= 8)


@pytest.mark.parametrize("largest", [4095, 65535])
def test_grays_of_a_pgm_that_its_reader_scales_are_refused(tmp_path, largest):
    values = np.arange(6).reshape(2, 3) * 500
    (tmp_path / "deep.pgm").write_bytes(b"P5\n3 2\n%d\n" % largest + values.astype(">u2").tobytes())
    chosen = image_of(tmp_path, "deep.pgm", Window(0, 2500), where="line 2")[0]
    if largest == 65535:
        assert (as_array(chosen)[..., 0] == Window(0, 2500).grays(values)).all()
    else:
        with pytest.raises(UnreadableImage, match="has a largest gray below 65,535, to which Pillow scales"):
            as_array(chosen)


def _patched(path, size):
    """Let a JPEG 2000 file say another size of its components' values."""
    content = bytearray(path.read_bytes())
    start = content.index(b"\xff\x4f\xff\x51") + 40
    for component in range(int.from_bytes(content[start : start + 2])):
        content[start + 2 + 3 * component] = size
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(("size", "read"), [(15, True), (11, False), (0x80 | 15, False)])
def test_grays_of_a_jpeg_2000_that_its_reader_scales_are_refused(tmp_path, size, read):
    values = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000
    _patched(_saved(tmp_path / "deep.jp2", values), size)
    chosen = image_of(tmp_path, "deep.jp2", Window(0, 63000), where="line 2")[0]
    if read:
        assert (as_array(chosen)[..., 0] == Window(0, 63000).grays(values)).all()
    else:
        with pytest.raises(UnreadableImage, match="to which Pillow scales, or signed ones"):
            as_array(chosen)


def test_colors_of_more_than_8_bits_are_refused_in_jpeg_2000_too(tmp_path):
    path = _saved(tmp_path / "colors.jp2", PIXELS)
    assert as_array(path).shape == PIXELS.shape
    with pytest.raises(UnreadableImage, match="has more than 8 bits per channel"):
        as_array(_patched(path, 15))
    with pytest.raises(UnreadableImage, match="has signed values"):
        as_array(_patched(path, 0x80 | 7))


@pytest.mark.parametrize(
    ("bits", "sample_format", "samples", "planar", "sentence"),
    [(16, 1, 3, 2, "has more than 8 bits per channel"), (8, 2, 1, 1, "has signed values"), (8, 1, 1, 1, "")],
)
def test_a_tiff_of_which_pillow_shows_other_values_is_refused(tmp_path, bits, sample_format, samples, planar, sentence):
    plane = 4 * 4 * bits // 8
    planes = samples if planar == 2 else 1
    data, after = bytes(range(16)) * (plane * planes // 16), 8
    place = after + len(data)
    extra = place + 2 + 11 * 12 + 4
    shorts = struct.pack("<3H", bits, bits, bits)
    longs = struct.pack("<6I", *(after + n * plane for n in range(3)), *(plane,) * 3)
    several = samples > 1
    tags = [
        (256, 3, 1, 4),
        (257, 3, 1, 4),
        (258, 3, samples, extra if several else bits),
        (259, 3, 1, 1),
        (262, 3, 1, 2 if several else 1),
        (273, 4, planes, extra + 6 if several else after),
        (277, 3, 1, samples),
        (278, 3, 1, 4),
        (279, 4, planes, extra + 18 if several else plane),
        (284, 3, 1, planar),
        (339, 3, 1, sample_format),
    ]
    entries = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    file = tmp_path / "made.tif"
    file.write_bytes(
        b"II*\0" + struct.pack("<I", place) + data + struct.pack("<H", len(tags)) + entries + b"\0" * 4 + shorts + longs
    )
    if not sentence:
        assert as_array(file)[..., 0].tolist() == np.arange(16).reshape(4, 4).tolist()
        return
    with pytest.raises(UnreadableImage, match=sentence):
        as_array(file)


@pytest.mark.slow
@each("orientation", range(1, 9))
@each("mode", ["L", "P", "1", "RGBA", "CMYK"])
@each("packed", [None, "tiff_lzw"])
def test_the_orientation_of_a_tiff_counts_in_every_mode(tmp_path, mode, packed, orientation):
    image = Image.fromarray(PIXELS).convert(mode)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    image.save(tmp_path / "photo.tif", exif=exif, compression=packed)
    assert (as_array(tmp_path / "photo.tif") == UPRIGHT[orientation](np.asarray(image.convert("RGB")))).all()
    size = open_image(tmp_path / "photo.tif").size
    assert check_header(tmp_path / "photo.tif") == Header(*size, turned=2 <= orientation <= 8)


@pytest.mark.parametrize("packed", [None, "tiff_lzw"])
@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_a_tiff_whose_lowest_value_is_white_is_shown_so(tmp_path, kind, packed):
    gray = PIXELS[..., 0]
    stored = gray if kind == np.uint8 else (255 - gray).astype(kind) * 100  # Pillow inverts bytes on writing
    Image.fromarray(stored).save(tmp_path / "scan.tif", tiffinfo={262: 0}, compression=packed)
    assert Image.open(tmp_path / "scan.tif").tag_v2[262] == 0
    chosen = image_of(tmp_path, "scan.tif", Window(0, 25500), where="line 2")[0]
    assert (as_array(chosen)[..., 0] == gray).all()


@pytest.mark.parametrize("sample_format", [None, 1, 2])
@pytest.mark.parametrize("orientation", [1, 6])
def test_values_of_32_bits_are_unsigned_where_a_tiff_says_so_or_nothing(tmp_path, sample_format, orientation):
    height, width = 3, 5
    stored = np.linspace(0, 2**32 - 1, height * width).round().astype("<u4").reshape(height, width)
    values = [width, height, 32, 1, 1, 8, orientation, 1, height, 4 * height * width]
    tags = dict(zip((256, 257, 258, 259, 262, 273, 274, 277, 278, 279), values, strict=True))
    if sample_format:
        tags[339] = sample_format
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    begin = b"II*\0" + struct.pack("<I", 8 + stored.nbytes)
    directory = struct.pack("<H", len(tags)) + entries + b"\0" * 4
    (tmp_path / "scan.tif").write_bytes(begin + stored.tobytes() + directory)
    meant = (stored.view("<i4") if sample_format == 2 else stored).astype(np.float64)
    low, high = meant.min(), meant.max()
    for window in (Window(low, high), Window(0, 100, percentiles=True)):
        chosen = image_of(tmp_path, "scan.tif", window, where="line 2")[0]
        expected = np.round((meant - low) * 255 / (high - low)).astype(np.uint8)
        assert (as_array(chosen) == UPRIGHT[orientation](expected[..., None])).all()


@pytest.mark.parametrize("orientation", [1, 6])
def test_an_orientation_behind_the_pixels_of_a_png_counts(tmp_path, orientation):
    path = _photo(tmp_path / "photo.png", PIXELS, orientation)
    content = path.read_bytes()
    begin = content.index(b"eXIf") - 4
    end = begin + 12 + int.from_bytes(content[begin : begin + 4], "big")
    last = content.index(b"IEND") - 4
    path.write_bytes(content[:begin] + content[end:last] + content[begin:end] + content[last:])
    assert (as_array(path) == UPRIGHT[orientation](PIXELS)).all()
    assert check_header(path).turned is (orientation == 6)


def test_what_stands_behind_the_end_of_a_png_is_not_its_orientation(tmp_path):
    content = _photo(tmp_path / "turned.png", PIXELS, 6).read_bytes()
    begin = content.index(b"eXIf") - 4
    end = begin + 12 + int.from_bytes(content[begin : begin + 4], "big")
    path = tmp_path / "photo.png"
    path.write_bytes(content[:begin] + content[end:] + content[begin:end])
    assert (as_array(path) == PIXELS).all()
    assert not check_header(path).turned


@pytest.mark.parametrize(("chunks", "usable"), [(1000, True), (MAX_CHUNKS + 1, False)])
def test_a_png_of_more_chunks_than_any_has_is_not_gone_through(tmp_path, chunks, usable):
    path = _photo(tmp_path / "photo.png", PIXELS, 1)
    content = path.read_bytes()
    begin, last = content.index(b"eXIf") - 4, content.index(b"IEND") - 4
    end = begin + 12 + int.from_bytes(content[begin : begin + 4], "big")
    empty = struct.pack(">I4sI", 0, b"teSt", zlib.crc32(b"teSt"))
    path.write_bytes(content[:begin] + content[end:last] + chunks * empty + content[last:])
    with (
        nullcontext() if usable else pytest.raises(UnreadableImage, match="has more than 65,536 chunks; save it again")
    ):
        check_header(path)


@pytest.mark.parametrize("suffix", ["png", "tif", "webp", "jpg"])
def test_an_orientation_in_xmp_counts(tmp_path, suffix):
    xmp = b'<x:xmpmeta><rdf:Description tiff:Orientation="3"/></x:xmpmeta>'
    more = {"xmp": xmp, **CODECS[suffix]}
    if suffix == "tif":
        more = {"tiffinfo": {700: xmp}}
    if suffix == "png":
        info = PngImagePlugin.PngInfo()
        info.add_itxt("XML:com.adobe.xmp", xmp.decode())
        more = {"pnginfo": info}
    path, plain = tmp_path / f"photo.{suffix}", tmp_path / f"plain.{suffix}"
    Image.fromarray(PIXELS).save(path, **more)
    Image.fromarray(PIXELS).save(plain, **CODECS[suffix])
    assert (as_array(path) == as_array(plain)[::-1, ::-1]).all()
    assert check_header(path).turned


def test_a_photograph_with_a_broken_exif_is_read_as_it_lies(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png", exif=b"Exif\0\0no such thing")
    assert (as_array(tmp_path / "photo.png") == pixels).all()


@pytest.mark.parametrize("suffix", ["gif", "tif", "png", "webp"])
def test_of_several_frames_none_is_chosen(tmp_path, suffix):
    frames = [Image.new("RGB", (4, 4), color) for color in ("white", "red", "blue")]
    frames[0].save(tmp_path / f"many.{suffix}", save_all=True, append_images=frames[1:])
    frames[0].save(tmp_path / f"one.{suffix}")
    assert as_array(tmp_path / f"one.{suffix}").min() > 250
    for look in (open_image, check_header):
        with pytest.raises(UnreadableImage, match=rf"many\.{suffix} has 3 frames; save one frame"):
            look(tmp_path / f"many.{suffix}")


def test_a_camera_photograph_with_a_smaller_copy_is_one_picture(tmp_path):
    photo = Image.new("RGB", (8, 8), "white")
    photo.save(tmp_path / "photo.jpg", "MPO", save_all=True, append_images=[photo.resize((4, 4))])
    assert open_image(tmp_path / "photo.jpg").size == (8, 8)


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_an_image_of_which_nothing_is_visible_is_refused(tmp_path, mode):
    Image.new(mode, (4, 4)).save(tmp_path / "clear.png")
    with pytest.raises(UnreadableImage, match=r"clear\.png is fully transparent"):
        open_image(tmp_path / "clear.png")


@pytest.mark.parametrize("size", [(12_000, 12_000), (60_000, 60_000)])
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_huge_declared_dimensions_are_refused_before_a_pixel_is_read(tmp_path, size):
    for look in (open_image, check_header):
        with pytest.raises(UnreadableImage, match=r"bomb\.png has more than 89 million pixels"):
            look(_png(tmp_path / "bomb.png", size=size, depth=8, color=0, rows=b""))


def test_a_file_for_which_pillow_would_start_another_program_is_no_image(tmp_path):
    (tmp_path / "scan.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")
    with pytest.raises(UnreadableImage, match=r"scan\.png cannot be decoded"):
        open_image(tmp_path / "scan.png")


def test_an_error_keeps_its_fields_on_the_way_between_processes():
    error = pickle.loads(pickle.dumps(UnreadableImage.of("a.png", "is missing", "restore it")))
    assert str(error) == "The image a.png is missing; restore it."
    assert (error.image, error.why, error.remedy) == ("a.png", "is missing", "restore it")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"gone\.jpg is missing; restore"):
        open_image(tmp_path / "gone.jpg")


@pytest.mark.parametrize("keep", [0, 10, 0.5])
def test_a_corrupt_or_cut_off_jpeg_is_named(tmp_path, keep):
    path = tmp_path / "scan.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep) if keep < 1 else keep])
    with pytest.raises(DataError, match=r"scan\.jpg cannot be decoded; replace"):
        open_image(path)


def test_a_text_file_is_no_image(tmp_path):
    (tmp_path / "notes.png").write_text("not an image")
    with pytest.raises(DataError, match=r"notes\.png cannot be decoded"):
        open_image(tmp_path / "notes.png")


@pytest.mark.parametrize(
    "array",
    [np.zeros((3, 4), np.uint8), np.zeros((3, 4, 3)), np.zeros((3, 4, 4), np.uint8), np.zeros((0, 4, 3), np.uint8)],
)
def test_an_array_of_another_shape_or_type_is_refused(array):
    with pytest.raises(DataError, match=r"must be \(height, width, 3\), uint8"):
        open_image(array)
