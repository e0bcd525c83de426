# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""No image processor of a stranger's folder reads another file, fetches one, or starts a program."""

import importlib
import json
import re
from pathlib import Path

import pytest
import transformers as hf
from small_models import MODELS

from fedpeft.backbones import BackboneSettings, build
from fedpeft.backbones.checkpoint import REACHING_OUT, check_config
from fedpeft.core.errors import FedpeftError

IMAGES, BOTH = "preprocessor_config.json", "processor_config.json"
ONE = {"repo_path": "of-a-stranger/data", "class_info_file": "classes.json"}
OCR = {"tesseract_config": "-c debug_file=/tmp/written", "apply_ocr": True, "do_center_crop": False}
REFUSED = r"it is of kind '\w+', whose image processor reads a file or starts a program that its settings name: give"


@pytest.fixture
def folder(tmp_path):
    """A small CLIP that does not yet say which image processor it has."""
    MODELS["clip"](tmp_path)
    content = json.loads((tmp_path / IMAGES).read_text())
    del content["image_processor_type"]
    (tmp_path / IMAGES).write_text(json.dumps(content))
    return tmp_path


@pytest.fixture
def reached(monkeypatch):
    """With what the hub and tesseract were called."""
    calls = []
    outside = {"oneformer": "hf_hub_download", "layoutlmv2": "apply_tesseract", "layoutlmv3": "apply_tesseract"}
    for kind, name in outside.items():
        module = importlib.import_module(f"transformers.models.{kind}.image_processing_pil_{kind}")
        monkeypatch.setattr(module, name, lambda *arguments, **_: calls.append(arguments) or ([], []))
        monkeypatch.setattr(module, "requires_backends", lambda *_: None, raising=False)
    return calls


def load(folder):
    return build(BackboneSettings(name="transformers", source=str(folder)))


@pytest.mark.parametrize(
    ("file", "entries"),
    [
        (IMAGES, {"image_processor_type": "OneFormerImageProcessor", **ONE}),
        (IMAGES, {"image_processor_type": "OneFormerImageProcessorFast", **ONE}),
        (IMAGES, {"feature_extractor_type": "OneFormerFeatureExtractor", **ONE}),
        (BOTH, {"image_processor": {"image_processor_type": "OneFormerImageProcessorPil", **ONE}}),
        (IMAGES, {"image_processor_type": "LayoutLMv2ImageProcessor", **OCR}),
        (IMAGES, {"image_processor_type": "LayoutLMv3ImageProcessor", **OCR}),
        (IMAGES, {"feature_extractor_type": "LayoutLMv3FeatureExtractor", **OCR}),
        ("config.json", {"image_processor_type": "LayoutLMv3ImageProcessor"}),
        ("config.json", {"model_type": "layoutlmv3"}),
        ("config.json", {"vision_config": {"model_type": "oneformer"}}),
    ],
)
def test_no_image_processor_fetches_a_file_or_starts_a_program(file, entries, folder, reached):
    content = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
    (folder / file).write_text(json.dumps(content | entries))
    with pytest.raises(FedpeftError, match=REFUSED) as refused:
        load(folder)
    assert "\n" not in str(refused.value)
    assert not reached


def test_no_other_image_processor_of_transformers_reaches_out():
    names = re.compile(rb"hub_download\(|cached_file\(|pytesseract\.|subprocess|urlopen\(|requests\.get\(")
    files = (Path(hf.__file__).parent / "models").glob("*/image_processing_*.py")
    found = {file.parent.name for file in files if names.search(file.read_bytes())} - {"auto"}
    assert {kind for kind in found if not REACHING_OUT.search(kind)} == {"pix2struct"}  # for a header, never given
    assert found >= {"oneformer", "layoutlmv2", "layoutlmv3"}


@pytest.mark.slow
def test_a_kind_with_the_image_processor_of_a_refused_one_is_refused(folder, reached, monkeypatch):
    module = importlib.import_module("transformers.models.layoutlmv3.image_processing_pil_layoutlmv3")
    processor = module.LayoutLMv3ImageProcessorPil()  # which udop has
    monkeypatch.setattr(hf.AutoImageProcessor, "from_pretrained", lambda *_, **__: processor)
    with pytest.raises(FedpeftError, match=REFUSED):
        load(folder)
    assert not reached


def test_a_kind_without_images_is_not_refused():
    check_config({"model_type": "layoutlm"})
