# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Images that a backbone cannot take are named before training, by the same verdict as the model's own."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image
from small_models import MODELS, blip2, qwen_vl

from fedpeft.backbones import BACKBONES, BackboneSettings, build, prepared
from fedpeft.backbones.registry import TINY_FOLDER
from fedpeft.cli import main
from fedpeft.core.errors import LocalError
from fedpeft.data import DataError, DataSettings, load
from fedpeft.data.images import EncodedImage
from fedpeft.data.readable import TAKEN, fitting, misfits, refused_sizes, takes

pytestmark = pytest.mark.slow

ODD = [(1000, 3), (3, 1000), (40, 1), (1, 40), (1, 1), (2, 2), (5000, 1), (1, 30_000), (1592, 8), (200, 60), (60, 200)]
TINY = {"tiny-vilt": None, "tiny-vit": None, "tiny-albef": None, "vilt": str(TINY_FOLDER)}
OF_IMAGES = [*TINY, "blip2", *(name for name in MODELS if name not in ("bert", "distilbert"))]


@pytest.mark.parametrize("name", OF_IMAGES)
def test_an_odd_image_is_refused_where_the_model_would_end_in_an_error_and_nowhere_else(name, tmp_path):
    source = TINY[name] if name in TINY else str((blip2 if name == "blip2" else MODELS[name])(tmp_path))
    registered = name if name in (*TINY, "blip2", "llava") else "transformers"
    settings = BackboneSettings(name=registered, source=source)
    whole, bare = build(settings).eval(), prepared(settings)
    default = np.zeros((20, 24, 3), np.uint8)
    for size in ODD:
        try:
            with torch.no_grad():
                features = whole(**whole.collate([Image.new("RGB", size), default], ["why ?"] * 2))
            works = bool(torch.isfinite(features).all())
        except ValueError:
            works = False
        assert (BACKBONES.get(registered).any_size or takes(bare, size)) is works, size


def test_an_image_that_would_be_scaled_to_a_huge_one_is_refused_before_it_is(tmp_path):
    bare = prepared(BackboneSettings(name="transformers", source=str(MODELS["clip"](tmp_path))))
    assert not takes(bare, (2**20, 1))


@pytest.mark.parametrize(
    "raised", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory"), torch.OutOfMemoryError()]
)
def test_where_memory_runs_out_the_image_is_not_blamed(raised):
    def collate(*_):
        raise raised

    with pytest.raises(LocalError, match="memory ran out when an image of 60 x 20 pixels") as refused:
        takes(SimpleNamespace(image_size=32, collate=collate), (60, 20))
    assert refused.value.code == "out-of-memory"


def test_of_many_sizes_the_extreme_ones_are_tried_until_enough_are_taken():
    sizes, tried = [(1000, height) for height in range(1, 1000)], []

    def taken(size):
        tried.append(size)
        return size[1] > 30

    assert refused_sizes(sizes, taken) == sizes[:30]
    assert len(tried) == 30 + 2 * TAKEN


@pytest.fixture
def strips(tmp_path):
    """A folder with a table of twenty images, of which two are strips, one of them by its orientation."""
    root = tmp_path / "site"
    root.mkdir()
    rows = ["image,question,answer,split"]
    for number in range(20):
        size, chosen = (1000, 3) if number in (4, 5) else (20, 24), {}
        if number == 5:
            exif = Image.Exif()
            exif[ExifTags.Base.Orientation] = 6
            chosen = {"exif": exif}
        Image.new("RGB", size).save(root / f"{number}.png", **chosen)
        rows.append(f"{number}.png,why,{('yes', 'no')[number % 2]},{'train' if number < 12 else 'test'}")
    (root / "manifest.csv").write_text("\n".join(rows) + "\n")
    return root


@pytest.fixture
def qwen(tmp_path):
    return BackboneSettings(name="transformers", source=str(qwen_vl(tmp_path / "qwen")))


def test_they_are_named_or_left_out_like_other_images_that_cannot_be_read(strips, qwen):
    data = load(DataSettings(dataset="manifest", root=strips))
    problems = misfits({e.image_id: e.image for e in data.train}, prepared(qwen), "transformers")
    assert [problem.why for problem in problems.values()] == [
        "is of 1000 x 3 pixels, which backbone 'transformers' cannot take",
        "is of 3 x 1000 pixels, which backbone 'transformers' cannot take",
    ]
    with pytest.raises(DataError, match=r"2 of 20 images cannot be read.*4\.png is of 1000 x 3 pixels.*crop or pad it"):
        fitting(data, qwen, 0.05)
    left = fitting(data, qwen, 0.1)
    assert len(left.train) == 9  # one is validation
    assert fitting(data, BackboneSettings(name="vilt", source=str(TINY_FOLDER)), 0) is data


def test_files_inside_tables_are_read_for_it(strips, qwen):
    image = EncodedImage("row 1", (strips / "4.png").read_bytes)
    (problem,) = misfits({"a": image, "b": np.zeros((8, 8, 3), np.uint8)}, prepared(qwen), "transformers").values()
    assert str(problem).startswith("The image row 1 is of 1000 x 3 pixels")


def test_the_commands_name_them_before_training(strips, qwen, capsys, monkeypatch):
    monkeypatch.chdir(strips.parent)
    assert main(["new", "own", "--data", "site", "--backbone", "tiny_vilt"]) == 0
    chosen = ["--set", "backbone.name=transformers", "--set", f"backbone.source={qwen.source}"]
    for command in (["new", "other", "--data", "site"], ["data", "jobs/own"], ["doctor", "jobs/own"]):
        assert main([*command, *chosen]) == 1
        printed = capsys.readouterr()
        assert "4.png is of 1000 x 3 pixels" in printed.out + printed.err
