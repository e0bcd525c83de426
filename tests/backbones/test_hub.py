# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Hub names, in a cache as the hub's library leaves it: one commit is resolved, checked and read, without a network."""

import json
import socket
from pathlib import Path

import pytest
from huggingface_hub import constants

from fedpeft.backbones import BackboneSettings, backbone, build, skeleton
from fedpeft.core.errors import FedpeftError
from fedpeft.doctor import content as doctor
from fedpeft.job.site_policy import SitePolicy
from fedpeft.site.learner import Learner

OLD, NEW = "a" * 40, "b" * 40
NAME = "owner/vilt"


@pytest.fixture
def cache(tiny_source, tmp_path, monkeypatch) -> Path:
    """The repository in the cache: `main` is the newer of two commits, `v1` the older; the network is an error."""
    repository = tmp_path / "hub" / "models--owner--vilt"
    for folder in ("blobs", "refs", f"snapshots/{OLD}", f"snapshots/{NEW}"):
        (repository / folder).mkdir(parents=True)
    for file in Path(tiny_source).iterdir():
        (repository / "blobs" / file.name).write_bytes(file.read_bytes())
        for commit in (OLD, NEW):
            (repository / "snapshots" / commit / file.name).symlink_to(f"../../blobs/{file.name}")
    (repository / "refs" / "main").write_text(NEW)
    (repository / "refs" / "v1").write_text(OLD)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)

    def refused(*address, **options):
        raise AssertionError(f"a connection to {address}")

    monkeypatch.setattr(socket, "getaddrinfo", refused)
    monkeypatch.setattr(socket.socket, "connect", refused)
    return repository


@pytest.mark.parametrize(("source", "commit"), [(NAME, NEW), (f"{NAME}@v1", OLD), (f"{NAME}@{OLD}", OLD)])
def test_a_name_is_the_folder_of_one_commit(source, commit, cache):
    assert backbone.source_folder(source, download=False) == str(cache / "snapshots" / commit)


def test_a_backbone_is_built_from_the_cache_without_a_network(cache):
    built = build(BackboneSettings(source=f"{NAME}@v1"), download=False)
    assert built.num_layers == skeleton("tiny-vilt", NAME, download=False).num_layers == 2
    assert doctor.files("tiny-vilt", NAME, download=False).verdict == doctor.PASS


def replaced(name: str, content: str):
    """Let a file of the newest commit be another one."""

    def change(repository: Path) -> None:
        file = repository / "snapshots" / NEW / name
        file.unlink(missing_ok=True)
        file.write_text(content)

    return change


def without_weights(repository: Path) -> None:
    (repository / "snapshots" / NEW / "model.safetensors").unlink()


def pickled(repository: Path) -> None:
    (repository / "snapshots" / NEW / "model.safetensors").rename(repository / "snapshots" / NEW / "pytorch_model.bin")


def indexed(part: str):
    """Let an index name the file of the weights."""

    def change(repository: Path) -> None:
        without_weights(repository)
        replaced("model.safetensors.index.json", json.dumps({"weight_map": {"weight": part}}))(repository)

    return change


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (replaced("adapter_config.json", "{}"), "it has an adapter_config.json"),
        (replaced("config.json", '{"model_type": "vilt", "transformers_weights": "x.bin"}'), "transformers_weights"),
        (replaced("config.json", '{"model_type": "vilt", "intermediate_size": 1000000}'), "describes a model of"),
        (indexed("weights.bin"), "index.json names 'weights.bin'"),
        (indexed("../model.safetensors"), "index.json names '../model.safetensors'"),
        (pickled, "a pickle, pytorch_model.bin"),
        (without_weights, "it has no model.safetensors"),
    ],
)
def test_a_snapshot_is_checked_as_any_folder(change, expected, cache):
    change(cache)
    with pytest.raises(FedpeftError, match=expected):
        build(BackboneSettings(source=NAME), download=False)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("owner/other", r"download is false in local/fedpeft.json: .*\(hf download owner/other\)"),
        (f"{NAME}@v2", r"owner/vilt@v2 is not in .*\(hf download owner/vilt --revision v2\)"),
        (f"{NAME}@../../v1", "neither a folder here nor a hub name"),
        ("/nowhere", "neither a folder here nor a hub name"),
        ("no name at all", "neither a folder here nor a hub name"),
    ],
)
def test_what_is_not_there_is_refused_with_the_remedy(source, expected, cache):
    with pytest.raises(FedpeftError, match=expected) as caught:
        build(BackboneSettings(source=source), download=False)
    assert caught.value.code == "backbone-unusable"
    assert str(caught.value) in str(doctor.files("tiny-vilt", source, download=False))


@pytest.mark.parametrize("policy", [SitePolicy(sources=("owner/other",)), None])
def test_a_learner_downloads_only_what_the_sites_file_allows(cache, tmp_path, monkeypatch, policy):
    asked = []

    def missing(name, *, local_files_only, **options):
        asked.append(local_files_only)
        raise FileNotFoundError(name)

    monkeypatch.setattr("huggingface_hub.snapshot_download", missing)
    sections = {"backbone": {"source": "owner/other"}, "method": {}, "training": {"rounds": 1}, "schedule": {}}
    job = sections | {"data": {"dataset": "phantom"}}
    with pytest.raises(FedpeftError, match="download is false in local/fedpeft.json" if policy else "cannot be downl"):
        Learner.from_sections(job, site="slake", folder=tmp_path / "slake", policy=policy)
    assert set(asked) == {policy is not None}


def test_without_a_site_that_forbids_it_the_hub_is_asked(cache, monkeypatch):
    asked = {}
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **options: asked.update(options) or name)
    backbone.source_folder("owner/other@v1")
    assert (asked["revision"], asked["local_files_only"]) == ("v1", False)
    assert not any(name.endswith((".bin", ".pth", ".py")) for name in asked["allow_patterns"])
    asked.clear()
    backbone.source_folder("owner/other", weights=False)
    assert "model.safetensors" not in asked["allow_patterns"]
