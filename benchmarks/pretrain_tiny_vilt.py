# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Pre-train the tiny ViLT that ships with fedpeft, on a fresh stream of procedural images and plain words.

    python benchmarks/pretrain_tiny_vilt.py --out DIR [--steps 3200]

No image is seen twice and none of the sites' clinical words is used. Per image one question; the losses are
    answer      cross-entropy of the pooled output over all answers of the plain language
    relevance   per patch: does it belong to what the question asks for?
    anatomy     per patch: which kind of finding covers it, and is it bright?
The heads are thrown away, the pooler is kept. An interrupted run goes on from its last checkpoint.
"""

import argparse
import json
import math
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from pretraining import as_float16
from safetensors.torch import save_file
from torch import Tensor, distributed, multiprocessing, nn
from transformers import BertTokenizerFast
from transformers.models.vilt.configuration_vilt import ViltConfig
from transformers.models.vilt.modeling_vilt import ViltModel

from fedpeft.backbones.images import SquareImages
from fedpeft.backbones.vilt import Vilt
from fedpeft.data.phantom_scene import (
    CLINICAL,
    KINDS,
    MODALITIES,
    NOTHING,
    PLACES,
    PLAIN,
    QUESTION_TYPES,
    REGIONS,
    SIZE,
    TEMPLATES,
    ask,
    draw_look,
    draw_scene,
    render,
)

SEED = 20260101
SHARDS = 2  # processes with one thread each, which share every batch
PATCH = 12
GRID = SIZE // PATCH
ANSWERS = ("yes", "no", NOTHING, *KINDS, *PLACES, "bright", "dark", *REGIONS, *MODALITIES, "1", "2", "3", "4")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SHARES = np.array([3, 3, 2, 3, 3, 2, 1, 1, 2]) / 20  # of QUESTION_TYPES in the stream
CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
PUNCTUATION = "?!.,;:'\"()/-+%&"
# Frequent words of radiology questions: tokens with untrained embeddings, so that real questions are not spelt out.
RADIOLOGY = """
abdomen abdominal abnormal abnormalities abnormality above abscess air airway all an and aneurysm anterior any aorta
aortic appear are arteries artery as ascites at atelectasis axial be been being below between bilateral bilaterally
bladder blood bone bones bowel brain brainstem brighter by can cancer cardiac cardiomegaly carotid cavity cerebellum
cerebral chest clavicle colon colour commonly condition consolidation contain contrast coronal cortex cortical ct
cystic darker deviated diagnosis diaphragm dilatation disease diseases displaced do does dose due edema effusions
elevated emphysema enhanced enhancement enlarged enlargement esophagus evidence evident exist extremity eye fat female
femur film flair fluid following for foreign found fracture fractures free from function gallbladder gallstones
ganglia gas gastric grey gyri has have heart hemisphere hemorrhage hepatic hernia herniation high hilar hilum horn how
hydrocephalus identified if image images imaging in indicate infarction infection infiltrate infiltrates inflammation
intestine into is ischemia it kidney kidneys large largest lateral layer left lesion lesions level liver lobe lobes
located location low lower lung lungs lymph main male many mass matter mediastinum medical metastasis midline modality
more most mr mri muscle narrowing near neck nerve no node nodes normal not object occipital of on one opacity open or
orbit organ organs pa pancreas parietal part pathology patient pelvis picture plane pleural pneumonia pneumothorax
position posterior present primary problem process pulmonary radiograph ray rectum region renal rib ribs right
sagittal scan seen shadow shape show shown side sign signs sinus size skull smaller spinal spine spleen splenic
stomach structure structures suggest symmetric symptoms system t1 t2 taken temporal that the their there these
thickening this thoracic tissue to trachea treat tumor tumors type ultrasound upper used vascular vein ventricle
ventricles vertebra vertebrae vertebral vessel vessels view visible visualized was weighted were what when where which
white who why wider width with x
"""


def vocabulary() -> list[str]:
    """List all tokens: special ones, characters (nothing is unknown), the words of both languages, radiology words."""
    words = {*PLAIN.values(), *CLINICAL.values()}
    for templates in TEMPLATES.values():
        words |= {word for template in templates for word in template.split() if word[0] not in "{?"}
    pieces = [*PUNCTUATION, *CHARACTERS, *(f"##{c}" for c in CHARACTERS), "##es", "##ed", "##ing"]
    return list(dict.fromkeys([*SPECIAL, *pieces, *sorted(words), *sorted(RADIOLOGY.split())]))


def write_configuration(folder: Path) -> None:
    """Write vocabulary, tokenizer and model configuration, as transformers reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = vocabulary()
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")
    BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    ViltConfig(
        vocab_size=len(tokens),
        hidden_size=96,
        num_hidden_layers=12,
        num_attention_heads=4,
        intermediate_size=192,
        image_size=SIZE,
        patch_size=PATCH,
        max_position_embeddings=40,
        layer_norm_eps=1e-6,
        dtype="float32",  # in which the weights compute; the file has them in float16
    ).save_pretrained(folder)


def load_untrained(folder: Path) -> Vilt:
    """Make a tiny ViLT with random weights from the configuration in `folder`."""
    model = ViltModel(ViltConfig.from_pretrained(folder))
    return Vilt(model, BertTokenizerFast.from_pretrained(folder), SquareImages(SIZE), 40)


def make_batch(number: int, size: int, tokenizer: BertTokenizerFast) -> dict[str, Tensor]:
    """Draw shard `number` of the stream; it depends on nothing but SEED and the number."""
    rng = np.random.default_rng([SEED, number])
    out = defaultdict(list)
    for _ in range(size):
        scene = draw_scene(rng, modality=MODALITIES[rng.integers(len(MODALITIES))])
        question = ask(scene, QUESTION_TYPES[rng.choice(len(QUESTION_TYPES), p=SHARES)], rng, languages=(PLAIN,))
        kinds, shades = np.zeros((2, 2), np.int64), np.zeros((2, 2), np.int64)
        asked = np.zeros((2, 2), np.int64)
        for finding in scene.findings:
            kinds[divmod(finding.quadrant, 2)] = 1 + KINDS.index(finding.kind)
            shades[divmod(finding.quadrant, 2)] = 1 + finding.bright
        for quadrant in question.quadrants:
            asked[divmod(quadrant, 2)] = 1
        out["image"].append(render(scene, draw_look(scene.modality, rng), rng))
        out["text"].append(question.text)
        out["answer"].append(ANSWERS.index(question.answer))
        out["type"].append(QUESTION_TYPES.index(question.question_type))
        for name, value in (("kinds", kinds), ("shades", shades), ("asked", asked)):
            out[name].append(value.repeat(GRID // 2, 0).repeat(GRID // 2, 1).reshape(-1))
    text = tokenizer(out.pop("text"), padding=True, return_tensors="pt")
    batch = {name: torch.from_numpy(np.asarray(value)) for name, value in out.items()}
    return batch | {"input_ids": text["input_ids"], "attention_mask": text["attention_mask"]}


class Heads(nn.Module):
    """The linear heads of pre-training, thrown away afterwards."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.answer = nn.Linear(width, len(ANSWERS))
        self.asked = nn.Linear(width, 2)
        self.kinds = nn.Linear(width, 1 + len(KINDS))
        self.shades = nn.Linear(width, 3)


def losses(backbone: Vilt, heads: Heads, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Return the total loss, its parts, and per question whether it was answered rightly."""
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    inputs["pixel_values"] = batch["image"].permute(0, 3, 1, 2).float().div(127.5).sub(1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = backbone.model(**backbone.with_ordered_patches(inputs))
    patches = output.last_hidden_state[:, -GRID * GRID :].float()
    logits = heads.answer(output.pooler_output.float())
    parts = {"answer": nn.functional.cross_entropy(logits, batch["answer"])}
    for name in ("asked", "kinds", "shades"):
        parts[name] = nn.functional.cross_entropy(getattr(heads, name)(patches).flatten(0, 1), batch[name].flatten())
    total = parts["answer"] + parts["asked"] + 0.5 * parts["kinds"] + 0.3 * parts["shades"]
    return total, parts, logits.argmax(1) == batch["answer"]


def redraw_unseen(model: nn.Module, seen: Tensor) -> None:
    """Give words that pre-training never used random embeddings of the same spread as the learned ones."""
    table = model.embeddings.text_embeddings.word_embeddings.weight.data
    learned = table[seen]
    generator = torch.Generator().manual_seed(SEED)
    fresh = torch.randn(table.shape, generator=generator) * learned.std(0) + learned.mean(0)
    table[~seen] = fresh[~seen]


def save(folder: Path, model: nn.Module) -> None:
    """Write the weights as float16 safetensors in transformers' layout."""
    save_file(as_float16(model.state_dict()), folder / "model.safetensors", metadata={"format": "pt"})


def train(rank: int, args: argparse.Namespace, rendezvous: str) -> None:
    """Train as one of SHARDS processes, which average their gradients at every step; process 0 logs and saves."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=SHARDS)
    backbone = load_untrained(args.out)
    heads = Heads(backbone.hidden_size)
    modules = nn.ModuleDict({"backbone": backbone, "heads": heads})
    parameters = list(modules.parameters())
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.02},
            {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0},
        ],
        lr=args.lr,
        betas=(0.9, 0.98),
    )
    seen = torch.zeros(backbone.model.config.vocab_size, dtype=torch.long)
    checkpoint, step = args.out / "checkpoint.pt", 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        modules.load_state_dict(state["modules"])
        optimizer.load_state_dict(state["optimizer"])
        step, seen = state["step"], state["seen"]
    start, window = time.time(), defaultdict(list)
    while step < args.steps:
        batch = make_batch(step * SHARDS + rank, args.batch // SHARDS, backbone.tokenizer)
        seen[batch["input_ids"].unique()] = 1
        warm = min(1.0, (step + 1) / 200)
        for group in optimizer.param_groups:
            group["lr"] = args.lr * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / args.steps)))
        total, parts, right = losses(backbone, heads, batch)
        optimizer.zero_grad(set_to_none=False)
        total.backward()
        average_gradients(parameters)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        step += 1
        for name, value in parts.items():
            window[name].append(value.item())
        for kind, ok in zip(batch["type"].tolist(), right.tolist(), strict=True):
            window[f"right {QUESTION_TYPES[kind]}"].append(ok)
        if step % 100 == 0 and rank == 0:
            line = {"step": step, "images": step * args.batch, "seconds": round(time.time() - start)}
            line |= {name: round(float(np.mean(values)), 3) for name, values in window.items()}
            print(json.dumps(line), flush=True)
            with (args.out / "log.jsonl").open("a") as log:
                log.write(json.dumps(line) + "\n")
            window.clear()
        if step % 400 == 0 or step == args.steps:
            distributed.all_reduce(seen, op=distributed.ReduceOp.MAX)
            if rank == 0:
                state = {"modules": modules.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state | {"step": step, "seen": seen}, checkpoint)
    if rank == 0:
        redraw_unseen(backbone.model, seen.bool())
        save(args.out, backbone.model)
    distributed.destroy_process_group()


def average_gradients(parameters: list[nn.Parameter]) -> None:
    """Replace every gradient by its mean over the processes."""
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    distributed.all_reduce(flat)
    for parameter, mean in zip(parameters, (flat / SHARDS).split([g.numel() for g in gradients]), strict=True):
        parameter.grad = mean.view_as(parameter)


def main() -> None:
    """Run or resume pre-training."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the backbone, its checkpoint and log")
    parser.add_argument("--steps", type=int, default=3200)
    parser.add_argument("--batch", type=int, default=64, help="images a step, over all processes")
    parser.add_argument("--lr", type=float, default=1.5e-3)
    args = parser.parse_args()
    write_configuration(args.out)
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(train, (args, f"{folder}/rendezvous"), nprocs=SHARDS)


if __name__ == "__main__":
    main()
