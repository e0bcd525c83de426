# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""How many numbers a site sends in a round of federated tuning of a ViT-B/16, counted on the messages of a run.

    python benchmarks/exchanged.py

A ViT-B/16 with random weights, two sites of the embedded skin task, one round of each method with a federated head.
Every reply is encoded as FLARE sends it, decoded as the server does, and its tensors are counted, but not the head:
this task has eight classes, the paper's has seven. Its figures stand beside ours without its head. Two are as its
Table 1 prints them, in millions: that of full fine-tuning has the head, and that of PromptFL is of text prompts, which
are other parameters than the tokens before the first layer here. A dash: the method is not in its table.
"""

import argparse
import tempfile
from pathlib import Path

from measured import ROOT, machine, show

METHODS: dict[str, int | str | None] = {  # the paper's table, numbers with its head
    "attention": 28_353_799,
    "sba": 2_367_751,
    "vpt": 466_183,
    "dvpt": None,
    "lora": 152_839,
    "lora_vpt": 613_639,
    "lora_dvpt": 231_367,
    "attention_vpt": 28_814_599,
    "sba_vpt": 2_828_551,
    "promptfl": "0.026 M",
    "classifier": 5_383,
    "full": "86.0 M",
}
PAPERS_HEAD = 5_383
SMALL = [
    "federation.sites=[bcn, rosendahl]",
    "training.rounds=1",
    "training.local_epochs=1",
    "training.batch_size=7",
    "data.train_size=14",
    "data.validation_size=7",
    "data.test_size=7",
]


def save_backbone(folder: Path) -> None:
    """Write a ViT-B/16 with random weights as transformers does."""
    import torch
    from transformers import ViTConfig, ViTModel

    torch.manual_seed(0)
    ViTModel(ViTConfig(), add_pooling_layer=False).save_pretrained(folder)


def sent(method: str, source: Path, folder: Path) -> tuple[int, int, int]:
    """Numbers in the tensors of one site's reply without the head, those of the head, and bytes of the whole reply."""
    from nvflare.app_common.utils.fl_model_utils import FLModelUtils
    from nvflare.fuel.utils import fobs

    from fedpeft.federate import federate
    from fedpeft.flare.messages import from_model, register_tensors, to_model
    from fedpeft.job.composing import compose
    from fedpeft.protocol.types import TrainReply
    from fedpeft.site.learner import Learner

    register_tensors()
    head = ["method.head=federated", f"method.name={method}", "method.aggregation=fedavg"]
    backbone = ["backbone.name=vit", f"backbone.source={source}", "backbone.image_size=224"]
    sections = compose(ROOT / "app_configs", "vit_fed_isic2019", [*SMALL, *head, *backbone])
    sites = sections["federation"]["sites"]
    learners = {site: Learner.from_sections(sections, site=site, folder=folder / method / site) for site in sites}
    (result,) = federate(learners)
    update = result.updates[sites[0]]
    facts = {"samples": update.samples, "metrics": {}, "scores": [], "seconds": 1.0, "problem": ""}
    message = to_model(TrainReply(round=1, state=update.state, **facts), round=1)
    encoded = fobs.dumps(FLModelUtils.to_shareable(message))
    received = from_model(TrainReply, FLModelUtils.from_shareable(fobs.loads(encoded)))
    head_keys = {key for key in received.state if key.startswith("head.")}
    counts = {key: tensor.numel() for key, tensor in received.state.items()}
    in_head = sum(counts[key] for key in head_keys)
    return sum(counts.values()) - in_head, in_head, len(encoded)


def papers(method: str) -> str:
    """The paper's figure of a method, an exact one without its head."""
    figure = METHODS[method]
    return "-" if figure is None else figure if isinstance(figure, str) else f"{figure - PAPERS_HEAD:,}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), metavar="METHOD")
    chosen = parser.parse_args()
    print(machine(), flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_backbone(folder / "vit-b16")
        for method in chosen.methods:
            numbers, in_head, size = sent(method, folder / "vit-b16", folder)
            rows.append((method, f"{numbers:,}", papers(method), f"{in_head:,}", f"{size / 2**20:.2f}"))
            print("  ".join(rows[-1]), flush=True)
    columns = ("method", "numbers in a reply, head apart", "the paper's", "in the head", "MiB in all")
    show("Sent by a site in a round, ViT-B/16, federated head", columns, rows, "One round, two sites, eight classes.")


if __name__ == "__main__":
    main()
