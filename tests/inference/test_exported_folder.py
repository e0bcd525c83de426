# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""An exported folder is loaded by the lines of its card, and gives the figures of the run."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from small_models import llava
from trained_sites import table, trained
from transformers import ViltModel

from fedpeft.backbones import BackboneSettings, build
from fedpeft.core.errors import FedpeftError
from fedpeft.inference import export as export_module
from fedpeft.inference import exported
from fedpeft.inference.examples import read_split
from fedpeft.inference.export import export
from fedpeft.inference.kept_model import find
from fedpeft.inference.predictor import Predictor
from fedpeft.job.composing import compose
from fedpeft.site.learner import Learner
from fedpeft.site.site_state import load_before

pytestmark = pytest.mark.slow

CONFIGS = Path(__file__).parents[2] / "app_configs"
FROZEN = "method.pia.integration=two_branches"
WITH_GLOBAL = (  # settings that compare with what the sites have in common, which full weights have not
    ["method.name=bias", "training.proximal_mu=0.1"],
    ["method.name=bias", "training.scaffold=true"],
    ["method.name=full", "training.moon_mu=1"],
    ["method.name=full", "training.personalization=ditto"],
    ["method.name=bias", "training.personalization=fedala"],
)
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)


def site(sections, folder, *overrides):
    """What a site keeps after two rounds, and the metrics of the last."""
    kept, metrics = trained(sections(*overrides), folder / "state")["slake"]
    return find(kept, site=None), metrics


def figures(kept, examples):
    measure, predictor = Predictor(kept).measure(0), Predictor(kept)
    known = [True] * len(examples)
    return [*predictor.predictions(examples, known, max_answers=3, measure=measure)], measure.figures()["overall"]


def run_card(folder, monkeypatch):
    """Execute the lines of the card in its folder; what they define."""
    Image.fromarray(np.zeros((32, 32, 3), dtype=np.uint8)).save(folder / "scan.png")
    (code,) = CODE.findall((folder / "README.md").read_text())
    monkeypatch.chdir(folder)
    namespace = {}
    exec(code, namespace)
    lines = [line for line in code.splitlines() if line and not line.startswith(("import", "from", "image ="))]
    assert len(lines) <= 10
    return namespace


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        [FROZEN, "method.pia.share=[1, 0.3]"],
        ["method.name=lora", "training.learning_rate=0.05"],
        ["method.name=ia3", "method.aggregation=fedavg", "training.head=mlp"],
    ],
    ids=" ".join,
)
def test_the_lines_of_the_card_give_the_accuracy_of_the_run(sections, tmp_path, tiny_source, monkeypatch, overrides):
    kept, metrics = site(sections, tmp_path, *overrides)
    export(kept, tmp_path / "out")
    card = run_card(tmp_path / "out", monkeypatch)
    backbone, head, answers = (card[name] for name in ("backbone", "head", "answers"))
    examples = read_split("test", kept).examples
    images, questions = [e.image for e in examples], [e.question for e in examples]
    with torch.no_grad():
        chosen = head(backbone(**backbone.collate(images, questions))).argmax(-1)
    right = [answers[number] == example.answer for number, example in zip(chosen, examples, strict=True)]
    assert sum(right) / len(right) == metrics["overall"]
    again = find(tmp_path / "out", site=None, backbone=tiny_source)
    assert figures(again, examples)[1] == metrics["overall"]
    assert figures(again, examples)[0] == figures(kept, examples)[0]


def test_plain_peft_loads_it(sections, tmp_path, tiny_source):
    from peft import PeftModel

    kept, _ = site(sections, tmp_path, "training.learning_rate=0.05")
    export(kept, tmp_path / "out")
    model = PeftModel.from_pretrained(ViltModel.from_pretrained(tiny_source), tmp_path / "out").eval()
    predictor = Predictor(kept)
    (batch,) = predictor.batches(read_split("test", kept).examples[:2])
    with torch.no_grad():
        expected = predictor.model.backbone.eval()(**batch.inputs)
        assert torch.allclose(model(**batch.inputs).pooler_output, expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["classes", "labels"])
def test_an_exported_model_of_classes_or_labels_has_the_figures_of_the_run(
    sections, tmp_path, tiny_source, monkeypatch, kind
):
    root = table(tmp_path / "data", kind)
    chosen = sections("method.aggregation=fedavg", "training.thresholds=validation")
    chosen = {**chosen, "data": {"dataset": "manifest", "root": str(root)}}
    folder, metrics = trained(chosen, tmp_path / "state", sites=("slake",))["slake"]
    kept, out = find(folder, site=None), tmp_path / "out"
    export(kept, out)
    assert (
        figures(find(out, site=None, backbone=tiny_source), read_split("test", kept).examples)[1] == metrics["overall"]
    )
    card = run_card(out, monkeypatch)
    total = card["probabilities"].sum().item()
    assert (total == pytest.approx(1)) is (kind == "classes")
    assert ("Labels count as predicted from" in (out / "README.md").read_text()) is (kind == "labels")
    assert str(tmp_path) not in "".join(file.read_text() for file in out.glob("*.json"))


def test_the_folder_has_what_its_own_site_needs_and_no_more(sections, tmp_path, tiny_source):
    kept, _ = site(sections, tmp_path, "method.site_settings={slake: {reduction_factor: 2}, vqa-med-2020: {}}")
    assert kept.record.sections["method"].pop("name") == "houlsby"  # as in a job that leaves it to the default
    export(kept, tmp_path / "out")
    files = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "head.safetensors", "answers.json"} < files
    assert {"model.json", "README.md", "tokenizer.json", "preprocessor_config.json"} < files
    assert (tmp_path / "out").stat().st_mode & 0o077 == 0
    (tmp_path / "new").touch()
    modes = {file.name: file.stat().st_mode for file in (tmp_path / "out").iterdir()}
    assert modes == dict.fromkeys(files, (tmp_path / "new").stat().st_mode)
    text = "".join(file.read_text() for file in (tmp_path / "out").iterdir() if file.suffix in (".json", ".md"))
    assert "vqa-med-2020" not in text
    assert str(tmp_path / "state") not in text
    assert json.loads((tmp_path / "out" / "answers.json").read_text()) == list(kept.record.answers)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "the site's decision" in card
    assert "say nothing about medicine" in card
    assert card.count("\n| 1 |") == card.count("\n| 2 |") == 1
    with pytest.raises(FedpeftError, match="does not say where data are"):
        read_split("test", find(tmp_path / "out", site=None, backbone=tiny_source))
    assert "which these lines leave out" not in card


def test_an_export_names_no_device(sections, tmp_path, tiny_source):
    kept, _ = site(sections, tmp_path, "training.device=cpu")
    export(kept, tmp_path / "out")
    file = tmp_path / "out" / "model.json"
    written = json.loads(file.read_text())
    assert "device" not in written["record"]["sections"]["training"]
    written["record"]["sections"]["training"]["device"] = "cuda"  # of a stranger
    file.write_text(json.dumps(written))
    read = find(tmp_path / "out", site=None, backbone=tiny_source).record.sections["training"]
    assert "device" not in read


def test_patterns_stay_in_the_order_in_which_the_job_has_them(sections, tmp_path):
    """Of those that match a module the first counts."""
    patterns = {"layer.1.attention.attention.query": 40, "attention.query": 3}
    kept, _ = site(
        sections,
        tmp_path,
        "method.name=lora",
        "method.aggregation=fedavg",
        f"method.settings.lora.alpha_pattern={json.dumps(patterns)}",
    )
    export(kept, tmp_path / "out")
    for folder in (kept.folder, tmp_path / "out"):
        record = json.loads((folder / "model.json").read_text())
        method = record.get("record", record)["sections"]["method"]
        assert [*method["settings"]["lora"]["alpha_pattern"].items()] == [*patterns.items()]
    written = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert [*written["alpha_pattern"].items()] == [*patterns.items()]


@pytest.mark.parametrize("more", [0, 1])
def test_an_export_has_no_size_that_is_too_large_to_be_read(sections, tmp_path, tiny_source, more):
    kept, _ = site(sections, tmp_path, "training.rounds=1")
    training = {"evaluation_batch_size": 4096 + more, "threads": 256 + more}
    changed = {**kept.record.sections, "training": {**kept.record.sections["training"], **training}}
    export(replace(kept, record=replace(kept.record, sections=changed)), tmp_path / "out")
    read = find(tmp_path / "out", site=None, backbone=tiny_source).record.sections["training"]
    assert (read["evaluation_batch_size"], read["threads"]) == (4096, 256)


def test_the_card_names_every_precision_that_its_lines_leave_out(sections, tmp_path):
    kept, _ = site(sections, tmp_path, "training.precision=bfloat16", "training.frozen_precision=bfloat16")
    export(kept, tmp_path / "out")
    said = "`precision: bfloat16` and `frozen_precision: bfloat16`, which these lines leave out"
    assert said in (tmp_path / "out" / "README.md").read_text()


def test_a_strangers_folder_leads_nowhere_and_fills_no_memory(sections, tmp_path, tiny_source):
    kept, _ = site(sections, tmp_path)
    export(kept, tmp_path / "out")
    file = tmp_path / "out" / "model.json"
    whole = file.read_text()

    def read(section, backbone=None, **values):
        content = json.loads(whole)
        content["record"]["sections"]["backbone"].pop("source")
        content["record"]["sections"][section] |= values
        file.write_text(json.dumps(content))
        return find(tmp_path / "out", site=None, backbone=backbone)

    with pytest.raises(FedpeftError, match=r"names 'stranger/model' as its backbone, .* name with --backbone a folder"):
        read("backbone", source="stranger/model")
    with pytest.raises(FedpeftError, match="names 'stranger/model' as its backbone"):
        read("backbone", sites={"slake": {"source": "stranger/model"}})
    with pytest.raises(FedpeftError, match=r"backbone.image_size = 1000000, at most 4,096"):
        read("backbone", image_size=10**6)
    assert "workers" not in read("training", workers=1000, images_mib=1e9).record.sections["training"]
    with pytest.raises(FedpeftError, match=r"make an adapter of [\d,]+ parameters, it holds [\d,]+: export"):
        Predictor(read("method", tiny_source, settings={"houlsby": {"reduction_factor": 1}}))
    slow = {"houlsby": {"target_modules": r"(\w+|\w|\.)*!"}}
    with pytest.raises(
        FedpeftError, match=r"in target_modules, which is no regular expression, or one that can take hours"
    ):
        Predictor(read("method", tiny_source, settings=slow))
    mmbt = {"name": "mmbt-small", "image_source": "stranger/encoder"}
    with pytest.raises(FedpeftError, match=r"'stranger/encoder' as its image encoder, .* name with --image-backbone"):
        read("backbone", **mmbt)
    (tmp_path / "out" / "adapter_config.json").rename(tmp_path / "kept")
    with pytest.raises(FedpeftError, match="names 'stranger/encoder' as its image encoder"):
        read("backbone", **mmbt)
    (tmp_path / "kept").rename(tmp_path / "out" / "adapter_config.json")
    chosen = read("backbone", backbone=tiny_source, source="stranger/model")
    assert Predictor(chosen).model.backbone.num_layers == 2
    with pytest.raises(FedpeftError, match="is no exported folder: leave it out"):
        find(kept.folder.parent, site=None, backbone=tiny_source)
    with pytest.raises(FedpeftError, match=r"--image-backbone is 'x', and the backbone of .* has no image encoder"):
        find(tmp_path / "out", site=None, backbone=tiny_source, image_backbone="x")
    with pytest.raises(FedpeftError, match=r"--image-backbone is 'x', and .* is no exported folder: leave it out"):
        find(kept.folder.parent, site=None, image_backbone="x")


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        ({}, "Apache-2.0 (both encoders)"),
        ({"image_source": "microsoft/rad-dino"}, "Apache-2.0, see the page of microsoft/rad-dino"),
        ({"source": "/data/bert"}, "a folder of the site's own, Apache-2.0"),
    ],
)
def test_the_licenses_are_those_of_the_encoders_that_were_used(sources, said):
    assert said in exported._license({"name": "mmbt-small", **sources})


@pytest.mark.parametrize(
    ("overrides", "exact"),
    [
        (["method.name=lora", "training.learning_rate=0.05"], False),
        (["method.name=lora", "method.aggregation=stack", "training.learning_rate=0.05"], False),
        (["method.name=full", "method.aggregation=fedavg"], True),
        *(([*settings, "method.aggregation=fedavg"], True) for settings in WITH_GLOBAL),
    ],
    ids=str,
)
def test_merged_weights_are_a_backbone(sections, tmp_path, overrides, exact):
    kept, metrics = site(sections, tmp_path, *overrides)
    difference = export(kept, tmp_path / "out", merged=True)["merged"]
    assert difference <= (0 if exact else 1e-4)
    assert ViltModel.from_pretrained(tmp_path / "out" / "model").config.num_hidden_layers == 2
    if (tmp_path / "out" / "adapter_config.json").is_file():
        export(
            find(tmp_path / "out", site=None, backbone=kept.record.sections["backbone"]["source"]), tmp_path / "again"
        )
        weights = [(tmp_path / name / "adapter_model.safetensors").read_bytes() for name in ("out", "again")]
        assert weights[0] == weights[1]
    (tmp_path / "out" / "adapter_config.json").unlink(missing_ok=True)  # now the weights are read
    with pytest.raises(FedpeftError, match="is an export of full weights without an adapter"):
        export(find(tmp_path / "out", site=None), tmp_path / "more", merged=True)
    predictions, overall = figures(find(tmp_path / "out", site=None), read_split("test", kept).examples)
    assert overall == metrics["overall"]
    for one, other in zip(predictions, figures(kept, read_split("test", kept).examples)[0], strict=True):
        assert one.answers[0].probability == pytest.approx(other.answers[0].probability, abs=1e-4)


def test_the_backbone_of_one_center_without_its_head_is_that_of_the_others(tmp_path):
    small = ["training.rounds=1", "data.train_size=12", "data.validation_size=4", "data.test_size=6"]
    alone = ["federation.sites=[mskcc]", "method.name=full", "method.aggregation=none", "method.head=private"]
    first, rest = (compose(CONFIGS, "vit_fed_isic2019", [*small, *chosen]) for chosen in (alone, []))
    folder, _ = trained(first, tmp_path / "first", ["mskcc"])["mskcc"]
    export(find(folder, site=None), tmp_path / "out", merged=True)
    rest["backbone"]["source"] = str(tmp_path / "out" / "model")
    learner = Learner.from_sections(rest, site="bcn", folder=tmp_path / "bcn")
    received = {name: tensor for name, tensor in learner.backbone.model.state_dict().items() if "lora" not in name}
    tuned = {key.replace("backbone.", ""): tensor for key, tensor in load_before(folder, 2).adapter.items()}
    default = build(BackboneSettings(name="tiny-vit")).model.state_dict()
    assert {name.replace("base_layer.", "") for name in received} == tuned.keys() == default.keys()
    for name, tensor in received.items():
        assert torch.equal(tensor, tuned[name.replace("base_layer.", "")])
    assert not all(torch.equal(tensor, default[name]) for name, tensor in tuned.items())
    assert not any("head" in key for key in load_file(tmp_path / "out" / "model" / "model.safetensors"))


@pytest.mark.parametrize(
    ("overrides", "merged", "sentence"),
    [
        ([], True, "bottleneck is not linear: leave --merged out"),
        (["method.name=promptfl", "method.aggregation=fedavg"], False, "'promptfl' trains is no adapter that PEFT"),
        (["method.name=promptfl", "method.aggregation=fedavg"], True, "no change of the backbone's weights"),
        (["method.name=feddat_houlsby"], False, "'feddat_houlsby' trains is no adapter"),
    ],
)
def test_what_a_method_does_not_have_is_refused_and_nothing_is_left(sections, tmp_path, overrides, merged, sentence):
    kept, _ = site(sections, tmp_path, *overrides)
    with pytest.raises(FedpeftError, match=sentence):
        export(kept, tmp_path / "out", merged=merged)
    assert {path.name for path in tmp_path.iterdir()} == {"state"}


def test_full_weights_that_nothing_reads_are_refused_and_nothing_is_left(sections, tmp_path):
    full = ["method.name=full", "method.aggregation=fedavg"]
    albef = ["backbone.name=tiny-albef-decoder", "training.answering=ranking", "training.rounds=1"]
    chosen = compose(CONFIGS, "fedpia_task1", [*full, *albef, "data.train_size=4", "data.test_size=4"])
    writing = [f"backbone.source={llava(tmp_path / 'llava')}", "training.answering=generation", "backbone.name=llava"]
    for job, sentence in (
        (chosen, r"^a source of a backbone of family 'albef_decoder' has tensors by other names than full weights "),
        (sections(*full, *writing), r"^the merged weights could not be read again \('model' has no output layer"),
    ):
        folder, _ = trained(job, tmp_path / str(len(sentence)), sites=("slake",))["slake"]
        with pytest.raises(FedpeftError, match=f"{sentence}.*: leave --merged out.$"):
            export(find(folder, site=None), tmp_path / "out", merged=True)
        assert not list(tmp_path.glob("*out*"))


def test_onnx_computes_the_same_logits(sections, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    kept, _ = site(sections, tmp_path, "training.learning_rate=0.05")
    assert export(kept, tmp_path / "out", onnx=True)["onnx"] < 1e-4
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    predictor = Predictor(kept)
    for example in read_split("test", kept).examples[:3]:
        (batch,) = predictor.batches([example])
        with torch.no_grad():
            expected = predictor.model.answering.eval()(batch.inputs)
        (found,) = session.run(None, {name: tensor.numpy() for name, tensor in batch.inputs.items()})
        assert np.allclose(found, expected.numpy(), atol=1e-4)


@pytest.mark.parametrize("shift", [50, float("nan")])
def test_merged_weights_with_other_logits_are_refused_and_nothing_is_left(sections, tmp_path, monkeypatch, shift):
    kept, _ = site(sections, tmp_path, "method.name=lora", "training.rounds=1")
    shifts, logits = iter([0, shift]), export_module._logits  # before the merge, and read again

    def shifted(model):
        added = next(shifts)
        return [one + added * (number == 1) for number, one in enumerate(logits(model))]  # not the first

    monkeypatch.setattr(export_module, "_logits", shifted)
    with pytest.raises(FedpeftError, match=r"^the logits of the merged weights differ by .*: leave --merged out\.$"):
        export(kept, tmp_path / "out", merged=True)
    assert {path.name for path in tmp_path.iterdir()} == {"state"}


@pytest.mark.parametrize("logit", [50, float("nan")])
def test_an_onnx_file_with_other_logits_is_refused_and_nothing_is_left(of_tables, tmp_path, monkeypatch, logit):
    monkeypatch.setattr(torch.onnx, "export", lambda *_, **__: SimpleNamespace(save=Path.touch))
    wrong = np.full((1, 3), logit, dtype=np.float32)

    def found(file, names, probes):
        model = Predictor(find(of_tables["classes"][0], site=None)).model
        first, *others = export_module._logits(model)
        return [first.numpy(), *(wrong for _ in others)]  # not the first

    monkeypatch.setattr(export_module, "_onnx_logits", found)
    with pytest.raises(FedpeftError, match=r"^the logits of the ONNX file differ by .*: leave --onnx out\.$"):
        export(find(of_tables["classes"][0], site=None), tmp_path / "out", onnx=True)
    assert not list(tmp_path.iterdir())


def test_onnx_of_a_model_that_computes_in_bfloat16_is_refused(of_tables, tmp_path):
    kept = find(of_tables["classes"][0], site=None)
    training = {**kept.record.sections["training"], "precision": "bfloat16"}
    half = replace(kept, record=replace(kept.record, sections={**kept.record.sections, "training": training}))
    with pytest.raises(FedpeftError, match=r"^this model computes in bfloat16 .*: leave --onnx out\.$"):
        export(half, tmp_path / "out", onnx=True)
    assert not (tmp_path / "out").exists()


def test_a_runtime_that_refuses_the_file_is_one_sentence(of_tables, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    kept = find(of_tables["classes"][0], site=None)

    class Program:
        def save(self, file):
            file.write_bytes(b"no model")

    monkeypatch.setattr(torch.onnx, "export", lambda *_, **__: Program())
    with pytest.raises(FedpeftError, match=r"^onnxruntime cannot compute the ONNX file of .*: leave --onnx out\.$"):
        export(kept, tmp_path / "out", onnx=True)
    assert not (tmp_path / "out").exists()


def test_an_exporter_that_refuses_is_one_sentence(sections, tmp_path, monkeypatch):
    pytest.importorskip("onnxscript")
    kept, _ = site(sections, tmp_path)

    def refuse(*_, **__):
        raise RuntimeError("no such operator\nand a page of more")

    monkeypatch.setattr(torch.onnx, "export", refuse)
    with pytest.raises(FedpeftError, match=r"refuses this model \(no such operator\): leave --onnx out\.$"):
        export(kept, tmp_path / "out", onnx=True)
    assert not (tmp_path / "out").exists()
