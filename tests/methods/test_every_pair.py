# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Every method in a small model of every other kind of backbone than ViLT, which test_every_method.py has.

Backbones that classify fit features, the others answers: with a decoder that ranks them, or written token by token.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from copies import copied
from one_client import aggregations, check_identity
from peft import PeftModel
from safetensors.torch import load_file, save_file
from small_albef import albef_folder
from small_models import MODELS, blip2, resnet, vit

from fedpeft import adapters, answering, methods
from fedpeft.alignment import PIASettings, align_global
from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.backbones import BackboneSettings, build
from fedpeft.backbones.slots import SLOTS
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import group_by_place, is_key, layer_of
from fedpeft.data.answers import AnswerVocabulary
from fedpeft.data.schema import Example
from fedpeft.methods.settings import MethodSettings
from fedpeft.methods.trainable import Part, parameter_count
from fedpeft.server.job_run import export_adapter
from fedpeft.site.loop import parts_of

pytestmark = pytest.mark.slow

QUESTIONS = ["where is the nodule ?", "is there an effusion ?", "why ?"]
ANSWERS = ["in the image", "why", "nodule"]


class Small(NamedTuple):
    """A small model.

    Args:
        name: of its backbone in the settings.
        save: makes its folder.
        answering: how it answers; empty: its features are fitted.
        images: makes the folder of its image encoder; None: it has none of its own.
    """

    name: str
    save: Callable[[Path], Path]
    answering: str = ""
    images: Callable[[Path], Path] | None = None


BACKBONES = {
    "vit": Small("vit", vit),
    "albef": Small("albef", albef_folder),
    "mmbt": Small("mmbt", MODELS["bert"], images=resnet),
    "llava": Small("llava", MODELS["llava"]),
    "blip2": Small("blip2", blip2),
    "transformers": Small("transformers", MODELS["clip"]),
    "albef, ranking": Small("albef-decoder", albef_folder, "ranking"),
    "llava, writing": Small("llava", MODELS["llava"], "generation"),
}
OTHERS = {  # of these the fit and two files, which is what a family can break
    "dual encoder": Small("transformers", MODELS["dual_encoder"]),
    "siglip": Small("transformers", MODELS["siglip"]),
    "blip2, writing": Small("blip2", blip2, "generation"),
    "paligemma, writing": Small("transformers", MODELS["paligemma"], "generation"),
    "qwen, writing": Small("transformers", MODELS["qwen_vl"], "generation"),
}
EVERY = BACKBONES | OTHERS
SETTINGS = {
    "houlsby": {"reduction_factor": 8},
    "pfeiffer": {"reduction_factor": 8},
    "parallel": {"reduction_factor": 8},
    "compacter": {"reduction_factor": 4},
    "oft": {"oft_block_size": 8},
    "vera": {"r": 8},
    "fourierft": {"n_frequency": 64},
    "dvpt": {"rank": 4},
    "lora_dvpt": {"dvpt": {"rank": 4}},
    "adapterfusion": {"reduction_factor": 8},
    "feddat_adapterfusion": {"reduction_factor": 8},
    "feddat_houlsby": {"reduction_factor": 8},
    "feddat_parallel": {"reduction_factor": 8},
    "feddat_compacter": {"reduction_factor": 4},
}
TRAINING = [name for name in methods.names() if methods.get(name).exchanges]
NO_PROMPTS = "prompts among the tokens would move their positions"
POSITIONED = ("llava", "blip2", "llava, writing", "blip2, writing", "qwen, writing")
NO_PARALLEL = "an adapter beside it cannot read the residual stream"


def refusal(method, backbone):
    """The reason for which these two do not go together; None: they do."""
    if "vpt" in method and backbone in POSITIONED:
        return NO_PROMPTS
    return NO_PARALLEL if "parallel" in method and backbone.startswith("blip2") else None


PAIRS = [(name, backbone) for backbone in EVERY for name in TRAINING]


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """Function from a backbone's name to a small one, each time the same."""
    built = {}

    def loaded(name):
        if name not in built:
            torch.manual_seed(0)
            small = EVERY[name]
            folder = small.save(tmp_path_factory.mktemp("models") / small.name)
            images = {"image_source": str(small.images(tmp_path_factory.mktemp("images")))} if small.images else {}
            built[name] = build(BackboneSettings(name=small.name, source=str(folder), text_length=16, **images))
        return copied(built[name])

    return loaded


def prepared(name, backbone):
    return methods.get(name).tuning().prepare(backbone, SETTINGS.get(name, {}), seed=0)


def parts(backbone, way):
    """A batch: with a way of answering its answers, without one the features, whose targets are random."""
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, size=(20, 24, 3), dtype=np.uint8) for _ in QUESTIONS]
    backbone.eval()  # without dropout, so that the loss falls in every step
    if way:
        settings = TrainingSettings(rounds=1, answering=way)
        model = answering.build(backbone, AnswerVocabulary(ANSWERS), settings, torch.Generator()).eval()
        rows = zip(pictures, QUESTIONS, ANSWERS, strict=True)
        return parts_of(model.collate(pictures, [Example(*row, closed=False, image_id="") for row in rows]), model)
    batch = backbone.collate(pictures, QUESTIONS)
    goal = torch.randn(3, backbone.hidden_size, generator=torch.Generator().manual_seed(5))
    return [Part(lambda: backbone(**batch), lambda features: (features - goal).square().mean())]


def fit(backbone, trainable, steps, way):
    """Losses of a fit of one batch with the method's own step."""
    batch = parts(backbone, way)
    optimizer = torch.optim.Adam([p for p in trainable.parameters().values() if p.requires_grad], lr=1e-2)
    torch.manual_seed(0)
    return [trainable.step(batch, optimizer).item() for _ in range(steps)]


@pytest.fixture(scope="module")
def counted(load):
    """Function: the numbers of a method's parameters in a small backbone, whichever way it answers."""
    known = {}

    def counts(name, backbone_name):
        small = EVERY[backbone_name]
        key = name, small.name, small.save
        if key not in known:
            known[key] = parameter_count(load(backbone_name), methods.get(name).tuning(), SETTINGS.get(name, {}))
        return known[key]

    return counts


@pytest.mark.parametrize(("name", "backbone_name"), [pair for pair in PAIRS if not refusal(*pair)])
def test_it_learns_what_it_declares_and_nothing_else(name, backbone_name, load, counted, tmp_path):
    backbone, way = load(backbone_name), EVERY[backbone_name].answering
    count = counted(name, backbone_name)
    trainable = prepared(name, backbone)
    first, private = trainable.state(), trainable.private_state()
    assert all(map(is_key, first))
    assert sum(map(torch.numel, first.values())) == count.exchanged
    assert sum(map(torch.numel, (first | private).values())) == count.trained
    trained = {id(parameter) for parameter in trainable.parameters().values()}
    frozen = {key: p for key, p in backbone.named_parameters() if id(p) not in trained}
    before = {key: p.detach().clone() for key, p in frozen.items()}

    losses = fit(backbone, trainable, 4, way)
    assert losses[-1] < losses[0]
    assert all(torch.equal(p, before[key]) for key, p in frozen.items())
    learned = trainable.state()
    assert any(not torch.equal(tensor, first[key]) for key, tensor in learned.items())

    for aggregation in aggregations(name):
        check_identity(name, aggregation, SETTINGS.get(name, {}), learned)
    if methods.get(name).exports and (backbone_name in BACKBONES or name in ("houlsby", "lora")):
        check_that_peft_reads(name, backbone, trainable, load(backbone_name), tmp_path / "exported")
    if backbone_name in BACKBONES and methods.get(name).neurons:
        check_that_neurons_can_change_places(name, backbone, trainable, way)
    save_file(first | private, tmp_path / "kept.safetensors")
    kept = load_file(tmp_path / "kept.safetensors")
    trainable.load({key: kept[key] for key in first})
    trainable.load_private({key: kept[key] for key in private})
    assert all(torch.equal(t, (first | private)[k]) for k, t in (trainable.state() | trainable.private_state()).items())


@pytest.mark.parametrize(("name", "backbone_name"), [pair for pair in PAIRS if refusal(*pair)])
def test_what_does_not_go_together_is_refused_with_the_reason(name, backbone_name, load):
    with pytest.raises(FedpeftError, match=refusal(name, backbone_name)) as caught:
        prepared(name, load(backbone_name))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("ia3", ["k_proj", "v_proj"]),
        ("hra", ["q_proj"]),
        ("layernorm", ["layernorm_before"]),
        ("fourierft", ["mlp.fc1"]),
        ("houlsby", r".*\.attention\.v_proj"),
    ],
)
def test_the_server_writes_an_adapter_of_modules_that_a_list_or_a_pattern_selects(name, targets, load, tmp_path):
    backbone, settings = load("vit"), {**SETTINGS.get(name, {}), "target_modules": targets}
    trainable = methods.get(name).tuning().prepare(backbone, settings, seed=0)
    assert trainable.slots()
    check_that_peft_reads(name, backbone, trainable, load("vit"), tmp_path / "exported", settings)


IN_LAYERS = ("lora", "dora", "oft", "hra", "vera", "fourierft", "miss")


@pytest.mark.parametrize("backbone_name", ["vit", "albef", "llava"])
@pytest.mark.parametrize("name", IN_LAYERS)
def test_some_layers_get_an_adapter_and_peft_reads_them(name, backbone_name, load, tmp_path):
    backbone, settings = load(backbone_name), {**SETTINGS.get(name, {}), "layers_to_transform": [1]}
    trainable = methods.get(name).tuning().prepare(backbone, settings, seed=0)
    assert {layer_of(key) for key in trainable.state()} == {1}
    assert trainable.state().keys() < prepared(name, load(backbone_name)).state().keys()
    folder = tmp_path / "exported"
    chosen = MethodSettings(name=name, settings={name: settings})
    export_adapter(folder, trainable.state(), chosen, family=backbone.family, slots=trainable.slots())
    for read in (PeftModel.from_pretrained, adapters.load_adapter):
        assert adapters.adapter_state(read(load(backbone_name).model, folder)).keys() == trainable.state().keys()


@pytest.mark.parametrize(
    ("layers", "sentence"), [([], "is empty: name"), ([0, 9], "names layer 9, but .* has layers 0")]
)
@pytest.mark.parametrize("name", IN_LAYERS)
def test_layers_that_are_not_there_are_refused(name, layers, sentence, load):
    with pytest.raises(FedpeftError, match=f"layers_to_transform {sentence}"):
        methods.get(name).tuning().prepare(
            load("vit"), {**SETTINGS.get(name, {}), "layers_to_transform": layers}, seed=0
        )


@pytest.mark.parametrize("name", ["lora", "hra"])
def test_no_layers_of_modules_by_role_are_refused_too(name):
    settings = {"target_modules": {"query": "layers.{layer}.attention.q_proj"}, "layers_to_transform": []}
    with pytest.raises(FedpeftError, match="layers_to_transform is empty: name"):
        methods.get(name).tuning().check(settings)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("lora", {"bias": "all"}),
        ("lora", {"lora_bias": True}),
        ("lora", {"trainable_token_indices": [1]}),
        ("lora", {"layer_replication": [[0, 40]]}),
        ("miss", {"bias": "all"}),
        ("vera", {"modules_to_save": ["pooler"]}),
    ],
)
def test_what_peft_would_train_beside_an_adapter_is_refused_because_nothing_exchanges_it(name, settings):
    with pytest.raises(FedpeftError, match=rf"has {next(iter(settings))}=.*adapter's own tensors: leave"):
        methods.get(name).check_settings(settings)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("lora", {"lora_dropout": -1}), ("lora", {"lora_dropout": 1}), ("vera", {"vera_dropout": 1.5})],
)
def test_a_dropout_is_a_share(name, settings):
    with pytest.raises(FedpeftError, match=rf"has {next(iter(settings))}=.*, it must be from 0 to below 1\."):
        methods.get(name).check_settings(settings)


@pytest.mark.parametrize(
    ("name", "settings", "problem"),
    [
        ("lora", {"lora_alpha": 0}, "adds nothing and never trains: give another number"),
        ("parallel", {"scaling": 0}, "adds nothing and never trains"),
        ("fourierft", {"scaling": 0.0}, "adds nothing and never trains"),
        ("vera", {"d_initial": 0}, "adds nothing and never trains"),
        ("lora", {"use_dora": True}, "use_dora=True, which makes it another method: set method.name to dora"),
        ("dora", {"use_dora": False}, "use_dora=False, which makes it another method"),
        ("lora", {"init_lora_weights": "pissa_niter_4"}, "draws anew whenever it loads the adapter: use 'pissa'"),
        ("oft", {"module_dropout": 0.5}, "has module_dropout=0.5, it must be 0.0"),
        ("miss", {"mini_r": 4}, "has mini_r=4, it must be 1"),
        ("lora", {"inference_mode": True}, "has inference_mode, and a job trains it: leave it out"),
        ("lora", {"alpha_pattern": {"query": 0}}, "has query=0, with which it adds nothing"),
    ],
)
def test_settings_by_which_nothing_trains_or_another_method_would_are_refused(name, settings, problem):
    with pytest.raises(FedpeftError, match=problem):
        methods.get(name).check_settings(settings)


def test_blocks_of_oft_divide_the_width(tmp_path):
    def prepare(**settings):
        backbone = build(BackboneSettings(name="vit", source=str(vit(tmp_path))))
        return methods.get("oft").tuning().prepare(backbone, settings, seed=0)

    assert prepare(oft_block_size=4).state()
    for settings in ({"oft_block_size": 5}, {"r": 3, "oft_block_size": 0}):
        with pytest.raises(FedpeftError, match=r"does not divide the 32 inputs of .*: use for instance \d\."):
            prepare(**settings)


def check_that_peft_reads(name, backbone, trainable, other, folder, settings=None):
    """PEFT reads into another backbone what the server writes of the method."""
    folder.mkdir()
    learned, settings = trainable.state(), settings or SETTINGS.get(name, {})
    chosen = MethodSettings(name=name, settings={name: settings})
    export_adapter(folder, learned, chosen, family=backbone.family, slots=trainable.slots())
    assert bool(trainable.slots()) == (backbone.family not in SLOTS or "target_modules" in settings)
    read = adapters.adapter_state(PeftModel.from_pretrained(other.model, folder))
    assert read.keys() == learned.keys()
    assert all(torch.equal(tensor, learned[key]) for key, tensor in read.items())


def check_that_neurons_can_change_places(name, backbone, trainable, way):
    """They do so without a trace in the output, and PIA finds their order back."""
    learned = trainable.state()
    layout = methods.get(name).neuron_layout()
    shared = {key: tensor for key, tensor in learned.items() if key.startswith("shared.")}
    moved = dict(shared)
    for place, keys in group_by_place(learned).items():
        if layout.needs <= keys.keys():
            tensors = {part: learned[key] for part, key in keys.items()}
            moved |= {f"{place}.{part}": tensor for part, tensor in in_another_order(layout, tensors).items()}
    assert moved.keys() == learned.keys()
    expected = outputs(backbone, way)
    trainable.load(moved)
    assert any(not torch.equal(tensor, learned[key]) for key, tensor in moved.items())
    torch.testing.assert_close(outputs(backbone, way), expected, atol=1e-5, rtol=1e-4)

    aligned, report = align_global(learned, moved, settings=PIASettings(support="weights"))
    assert report["sites"]["here"]["moved"] > 0.5
    trainable.load(aligned)
    torch.testing.assert_close(outputs(backbone, way), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(aligned, moved)


def in_another_order(layout, tensors):
    blocks, width = layout.blocks(tensors), layout.width(tensors)
    order = torch.arange(width).flip(0)
    in_blocks = (torch.arange(blocks)[:, None] * width + order).flatten()
    axes = {**layout.incoming, **layout.outgoing}
    return {
        part: tensor.index_select(axes[part], in_blocks if part in layout.blocked else order)
        if part in axes
        else tensor
        for part, tensor in tensors.items()
    }


def outputs(backbone, way):
    (batch,) = parts(backbone, way)
    with torch.no_grad():
        return batch.forward()
