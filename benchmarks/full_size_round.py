# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""One round of one site with a backbone of full size and random weights: seconds of a step, and memory at the peak.

    python benchmarks/full_size_round.py                                 LLaVA-1.5-7B's shape, 32 layers: on a GPU
    python benchmarks/full_size_round.py --backbone blip2                BLIP-2's with OPT-2.7B
    python benchmarks/full_size_round.py --frozen nf4                    frozen layers in four bits (bitsandbytes)
    python benchmarks/full_size_round.py --layers 1 --samples 2 --batch-size 1     to try it out without a GPU

The site's own code trains and measures Houlsby adapters on images and questions of the embedded federation. The weights
are drawn on the device in the precision in which they are kept: nothing is downloaded, and only a tokenizer of a
few words is written, to a temporary folder. Memory is the peak of CUDA's allocator, or of the process.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from measured import machine, memory_mib, sections
from torch import nn

from fedpeft import backbones
from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.backbones.backbone import Backbone, Pretrained
from fedpeft.backbones.matrices import made_in_bfloat16
from fedpeft.backbones.registry import BackboneSettings
from fedpeft.site.computing import device_of
from fedpeft.site.learner import Learner

MIB = 2**20
NAME = "random-weights"
IMAGE = "<image>"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", IMAGE]
LETTERS = [*"abcdefghijklmnopqrstuvwxyz0123456789?'-.,"]


class Shape(NamedTuple):
    """A backbone of full size.

    Args:
        config: from a number of layers, None for all, to transformers' configuration.
        model: from that to the model, on torch's default device.
        wrapped: from model, settings of the job and a folder with the tokenizer to the backbone.
    """

    config: Callable[[int | None], Any]
    model: Callable[[Any], nn.Module]
    wrapped: Callable[[nn.Module, BackboneSettings, Path], Backbone]


def llava_config(layers: int | None) -> Any:
    """LLaVA-1.5-7B: CLIP's ViT-L/14 at 336 pixels, 32 layers of Llama, 4096 wide."""
    from transformers import LlavaConfig

    config = LlavaConfig(image_token_index=SPECIAL.index(IMAGE))
    config.text_config.vocab_size = 32_064
    config.text_config.pad_token_id = 0
    if layers:
        config.text_config.num_hidden_layers = layers
        config.vision_config.num_hidden_layers = max(2, layers)  # the features are those of the last but one
    return config


def llava_model(config: Any) -> nn.Module:
    """LLaVA without its output layer over words, as it is read from its checkpoint."""
    from transformers import LlavaModel

    return LlavaModel(config)


def llava_wrapped(model: nn.Module, settings: BackboneSettings, folder: Path) -> Backbone:
    """LLaVA with its tokenizer and image processor."""
    from transformers import LlavaProcessor
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    from fedpeft.backbones.model_inputs import ModelInputs
    from fedpeft.backbones.transformers_model import LLAVA_PROMPT, TransformersModel

    side = model.config.vision_config.image_size
    images = CLIPImageProcessorPil(size={"shortest_edge": side}, crop_size={"height": side, "width": side})
    LlavaProcessor(
        images,
        tokenizer(),
        patch_size=model.config.vision_config.patch_size,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    ).save_pretrained(folder)
    inputs = ModelInputs(model, str(folder), text_length=settings.text_length, prompt=LLAVA_PROMPT)
    return TransformersModel(model, inputs, str(folder))


def blip2_config(layers: int | None) -> Any:
    """BLIP-2 with OPT-2.7B: a ViT of 39 layers, a Q-Former of 12, 32 layers of OPT, 2560 wide."""
    from transformers import Blip2Config, OPTConfig

    from fedpeft.backbones.blip2 import OPT_2_7B

    text = OPTConfig(**OPT_2_7B, vocab_size=50_304, word_embed_proj_dim=OPT_2_7B["hidden_size"], pad_token_id=0)
    config = Blip2Config(text_config=text, image_token_index=SPECIAL.index(IMAGE))
    for part in (config.text_config, config.vision_config, config.qformer_config) if layers else ():
        part.num_hidden_layers = layers
    return config


def blip2_model(config: Any) -> nn.Module:
    """BLIP-2."""
    from transformers import Blip2ForConditionalGeneration

    return Blip2ForConditionalGeneration(config)


def blip2_wrapped(model: nn.Module, settings: BackboneSettings, folder: Path) -> Backbone:
    """BLIP-2 with its tokenizer and image processor."""
    from transformers import Blip2Processor
    from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil

    from fedpeft.backbones.blip2 import PROMPT, Blip2
    from fedpeft.backbones.model_inputs import ModelInputs

    side = model.config.vision_config.image_size
    images = BlipImageProcessorPil(size={"height": side, "width": side})
    Blip2Processor(images, tokenizer(), num_query_tokens=model.config.num_query_tokens).save_pretrained(folder)
    inputs = ModelInputs(model, str(folder), text_length=settings.text_length, prompt=PROMPT)
    return Blip2(model, inputs, str(folder))


def vilt_config(layers: int | None) -> Any:
    """ViLT-B/32."""
    from transformers import ViltConfig

    return ViltConfig(**({"num_hidden_layers": layers} if layers else {}))


def vilt_model(config: Any) -> nn.Module:
    """ViLT."""
    from transformers import ViltModel

    return ViltModel(config)


def vilt_wrapped(model: nn.Module, settings: BackboneSettings, folder: Path) -> Backbone:
    """ViLT with its tokenizer; images are 384 x 384 pixels."""
    from transformers import BertTokenizerFast

    from fedpeft.backbones.images import SquareImages
    from fedpeft.backbones.vilt import Vilt

    words = [*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    own = BertTokenizerFast(vocab={word: number for number, word in enumerate(words)})
    return Vilt(model, own, SquareImages(model.config.image_size), settings.text_length)


SHAPES = {
    "llava-1.5-7b": Shape(llava_config, llava_model, llava_wrapped),
    "blip2": Shape(blip2_config, blip2_model, blip2_wrapped),
    "vilt-b": Shape(vilt_config, vilt_model, vilt_wrapped),
}


def tokenizer() -> Any:
    """A tokenizer of single characters, so that questions are not shorter than with a model's own."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ids = {word: number for number, word in enumerate([*SPECIAL, *LETTERS])}
    inner = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="[PAD]",
        unk_token="[UNK]",
        eos_token="[SEP]",
        additional_special_tokens=[IMAGE],
        model_input_names=["input_ids", "attention_mask"],
    )


def random_backbone(options: argparse.Namespace, device: torch.device, folder: Path) -> Pretrained:
    """The backbone as a job names it, with random weights that are drawn on the device."""
    shape = SHAPES[options.backbone]

    def build(settings: BackboneSettings, *, half: bool = False) -> Backbone:
        torch.manual_seed(0)
        with made_in_bfloat16() if half else nullcontext(), device:
            model = shape.model(shape.config(options.layers))
        return shape.wrapped(model.eval(), settings, folder)

    return Pretrained(
        build=build, skeleton=lambda source=None: build(BackboneSettings()), default_source=str(folder), half=True
    )


def learner(options: argparse.Namespace, folder: Path) -> Learner:
    """The site of the embedded federation that trains."""
    return Learner.from_sections(
        sections(
            [
                f"backbone.name={NAME}",
                f"method.name={options.method}",
                "method.aggregation=fedavg",
                "training.rounds=1",
                "training.local_epochs=1",
                f"training.batch_size={options.batch_size}",
                f"training.evaluation_batch_size={options.batch_size}",
                f"training.device={options.device}",
                f"training.precision={'float32' if options.frozen == 'float32' else 'bfloat16'}",
                f"training.frozen_precision={options.frozen}",
                f"training.checkpointing={str(options.checkpointing).lower()}",
                f"training.threads={options.threads}",
                f"data.train_size={options.samples}",
                f"data.validation_size={options.batch_size}",
                f"data.test_size={options.batch_size}",
            ]
        ),
        site="slake",
        folder=folder / "site",
    )


def waited(device: torch.device) -> float:
    """The clock, when the device has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class Measured(NamedTuple):
    """What a round took.

    Args:
        frozen: MiB of the tensors that are not trained.
        sent: number of parameters that the site sends.
        ready: seconds until the site can train.
        built: MiB at the peak until then.
        step: seconds; the median of the steps after the first, which also pays for what torch loads once.
        steps: how many that were.
        round: seconds, evaluation included.
        peak: MiB.
        loss: of the round.
    """

    frozen: float
    sent: int
    ready: float
    built: float
    step: float
    steps: int
    round: float
    peak: float
    loss: float


def measure(options: argparse.Namespace, device: torch.device) -> Measured:
    """Train one round on a device."""
    steps: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        backbones.register(NAME, random_backbone(options, device, Path(folder)))
        began = waited(device)
        site = learner(options, Path(folder))
        ready, built = waited(device) - began, memory_mib(device, peak=True)
        inner = site.trainable.step

        def step(*arguments: Any, **named: Any) -> torch.Tensor:
            before = waited(device)
            loss = inner(*arguments, **named)
            steps.append(waited(device) - before)
            return loss

        vars(site.trainable)["step"] = step
        began = waited(device)
        update = site.train_round(1, {})
        seconds = waited(device) - began
    trained = {id(parameter) for parameter in site.trainable.parameters().values()}
    counted = steps[1:] or steps
    return Measured(
        frozen=sum(p.nbytes for p in site.backbone.parameters() if id(p) not in trained) / MIB,
        sent=sum(tensor.numel() for tensor in update.state.values()),
        ready=ready,
        built=built,
        step=statistics.median(counted),
        steps=len(counted),
        round=seconds,
        peak=memory_mib(device, peak=True),
        loss=update.metrics["loss"],
    )


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line, or the arguments given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", default="llava-1.5-7b", choices=SHAPES)
    parser.add_argument("--layers", type=int, default=None, help="of each stack; without it all")
    parser.add_argument("--method", default="houlsby")
    parser.add_argument("--frozen", default="bfloat16", choices=("float32", "bfloat16", "nf4"))
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    return parser.parse_args(arguments)


def main() -> None:
    options = parsed()
    torch.set_num_threads(options.threads)
    device = device_of(TrainingSettings(rounds=1, device=options.device))
    where, took = machine(), measure(options, device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    print(f"{where}\n")
    print(
        f"{options.backbone}, {options.layers or 'all'} layers, {options.method}, frozen in {options.frozen}"
        f"{', checkpointing' if options.checkpointing else ''}, batch {options.batch_size}, on {name}"
    )
    print(f"{'MiB of frozen tensors':<28}{took.frozen:>16.0f}")
    print(f"{'parameters that are sent':<28}{took.sent:>16,}")
    print(f"{'seconds until ready':<28}{took.ready:>16.1f}")
    print(f"{'MiB at the peak until ready':<28}{took.built:>16.0f}")
    print(f"{'seconds of a step':<28}{took.step:>16.2f}   median of {took.steps} after the first")
    print(f"{'samples per second':<28}{options.batch_size / took.step:>16.2f}")
    print(f"{'seconds of the round':<28}{took.round:>16.1f}   {options.samples} samples, evaluation included")
    print(f"{'MiB at the peak':<28}{took.peak:>16.0f}")
    print(f"{'loss of the round':<28}{took.loss:>16.3f}")


if __name__ == "__main__":
    main()
