# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A model of transformers that writes its answer: causal language models, with or without images in their text.

Prompts are padded on the left, so that all answers of a batch begin in one column. The answers' tokens are then one
slice, and only this slice goes through the output layer, which is frozen.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from fedpeft.backbones import weights
from fedpeft.backbones.backbone import ANSWER, ANSWER_MASK, NO_TOKEN, question_of
from fedpeft.backbones.checkpoint import unusable
from fedpeft.backbones.images import Images
from fedpeft.backbones.matrices import products, without_weights

if TYPE_CHECKING:
    from fedpeft.backbones.transformers_model import TransformersModel

CLOSE, HALF_CLOSE = 1e-3, 5e-2  # of a logit; in bfloat16, which keeps two digits
CAUSAL_SUFFIX = "token_type_ids"  # PaliGemma: 1 where a token sees only those before it


class Writer(nn.Module):
    """A backbone, whose last layer predicts the next token, with the output layer of a model for generation."""

    def __init__(self, backbone: TransformersModel, whole: nn.Module) -> None:
        super().__init__()
        self._shared = backbone, whole  # in a tuple: their modules are the backbone's, and are listed there
        self.output = whole.get_output_embeddings()
        self.tokenizer = backbone.inputs.tokenizer

    def collate(self, images: Images, questions: Sequence[str], answers: Sequence[str]) -> dict[str, Tensor]:
        """Return a batch of B prompts with the tokens of their answers (B, T), on the CPU."""
        backbone, _ = self._shared
        prompts = backbone.inputs(images, questions, padding_side="left")
        ids = prompts["input_ids"]
        if bool((ids[:, -1] == self.tokenizer.eos_token_id).all()):  # some tokenizers end every text
            length = ids.shape[1]
            prompts = {
                name: tensor[:, :-1] if _has_token_columns(tensor, length) else tensor
                for name, tensor in prompts.items()
            }
        return {**prompts, **self.answer_tokens(answers)}

    def answer_tokens(self, answers: Sequence[str], device: torch.device | None = None) -> dict[str, Tensor]:
        """Return the tokens of B answers (B, T), and their mask; on the CPU where no device is named."""
        rows = [torch.tensor(self.tokens(answer), device=device) for answer in answers]
        target = pad_sequence(rows, batch_first=True, padding_value=NO_TOKEN)
        return {ANSWER: target.clamp_min(0), ANSWER_MASK: (target != NO_TOKEN).long()}

    def tokens(self, answer: str) -> list[int]:
        return self._shared[0].inputs.answer(answer)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return the logits (B, T, V) of each answer token given those before it; 0 after an answer's end."""
        backbone, _ = self._shared
        answer, mask = inputs[ANSWER], inputs[ANSWER_MASK]
        prompt = question_of(inputs)
        length = prompt["input_ids"].shape[1]
        joined = {name: _extended(name, tensor, answer, mask, length) for name, tensor in prompt.items()}
        hidden = backbone.hidden(joined)[:, length - 1 :]
        return self.output(hidden.to(self.output.weight.dtype)).float() * mask[..., None]

    @torch.no_grad()
    def write(self, inputs: dict[str, Tensor], max_tokens: int) -> list[str]:
        """Return the B answers that the model writes, token by token the most probable; `inputs` may have others."""
        backbone, whole = self._shared
        prompt = question_of(inputs)
        length = prompt["input_ids"].shape[1]
        written = backbone.generate(
            whole,
            **prompt,
            do_sample=False,
            num_beams=1,
            max_new_tokens=max_tokens,
            pad_token_id=self.tokenizer.pad_token_id,
            eos_token_id=self.tokenizer.eos_token_id,
        )
        return self.tokenizer.batch_decode(written[:, length:], skip_special_tokens=True)


def writer(backbone: TransformersModel, source: str) -> Writer:
    """Return a backbone with the output layer of its source; refuse a model that does not write."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    config = backbone.model.config
    kind = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING.get(type(config), None)
    if kind is None and backbone.causal:
        kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if kind is None or not backbone.inputs.tokenizer:
        raise unusable(
            f"{source!r} does not write text (model_type {config.model_type!r:.80}): set training.answering to "
            f"'classification', or give a causal language model."
        )
    whole = backbone.model if isinstance(backbone.model, kind) else _add_output_layer(backbone.model, kind, source)
    made = Writer(backbone, whole)
    _check_logits(made, backbone, whole, source)
    return made


def _add_output_layer(model: nn.Module, kind: type[nn.Module], source: str) -> nn.Module:
    """Return transformers' model for generation around a model, with the output layer of its source."""
    with without_weights():
        whole = kind(model.config)
    setattr(whole, whole.base_model_prefix, model)
    words = model.get_input_embeddings().weight
    weight = _output_weight(source, tuple(words.shape))
    output = whole.get_output_embeddings()
    configs = (model.config, model.config.get_text_config())
    tied = any(getattr(config, "tie_word_embeddings", False) for config in configs)  # to the embeddings
    if (weight is None and not tied) or getattr(output, "bias", None) is not None:
        raise unusable(
            f"{source!r} has no output layer that can be read (lm_head.weight of shape {tuple(words.shape)}, no bias): "
            f"set training.answering to 'classification', or give the folder of a model that was trained to write."
        )
    output = nn.Linear(words.shape[1], words.shape[0], bias=False, device="meta")
    output.weight = words if weight is None else nn.Parameter(weight, requires_grad=False)
    whole.set_output_embeddings(output)
    return whole


@torch.no_grad()
def _check_logits(made: Writer, backbone: TransformersModel, whole: nn.Module, source: str) -> None:
    """Refuse a model that scales or caps its logits: training would not see the logits that it writes from."""
    size = backbone.image_size or 16
    training = backbone.training
    backbone.eval()
    batch = made.collate([np.zeros((size, size, 3), dtype=np.uint8)], ["a question"], ["yes"])
    batch = {name: tensor.to(made.output.weight.device) for name, tensor in batch.items()}
    prompt = question_of(batch)
    found: list[Tensor] = []
    hook = whole.get_output_embeddings().register_forward_hook(lambda *call: found.append(call[-1].clone()))
    with products(backbone.model) as half:
        logits = whole(**prompt, **backbone.resized).logits[:, -1].float()
        hook.remove()
        trained = made(batch)[:, 0]
    backbone.train(training)
    # the two passes differ by rounding; what is done to the logits of one pass shows exactly, in any precision
    changed = bool(found) and not torch.equal(found[-1][:, -1].float(), logits)
    close = HALF_CLOSE if half else CLOSE
    if changed or not torch.allclose(logits, trained, rtol=close, atol=close * max(1.0, logits.abs().max().item())):
        raise unusable(
            f"{source!r} changes its logits after its output layer, so that training would not see what it writes: set "
            f"training.answering to 'classification', or give another model."
        )


def _output_weight(source: str, shape: tuple[int, ...]) -> Tensor | None:
    """Return the weight of a source's output layer in float32; None: it has none of this shape."""
    from safetensors import safe_open

    for file in weights.files(Path(source)):
        with safe_open(file, "pt") as stored:
            for key in stored.keys():  # noqa: SIM118 - not a dict
                if key.endswith("lm_head.weight") and tuple(stored.get_slice(key).get_shape()) == shape:
                    return stored.get_tensor(key).float()
    return None


def _has_token_columns(tensor: Tensor, length: int) -> bool:
    return tensor.dim() == 2 and tensor.shape[1] == length and not tensor.is_floating_point()


def _extended(name: str, tensor: Tensor, answer: Tensor, mask: Tensor, length: int) -> Tensor:
    """Append the columns of all answer tokens but the last to a prompt's tensor (B, P); return others as they are."""
    if not _has_token_columns(tensor, length):
        return tensor
    if name == "input_ids":
        columns = answer
    elif name == "attention_mask":
        columns = mask
    else:
        columns = torch.full_like(answer, int(name == CAUSAL_SUFFIX))
    return torch.cat([tensor, columns[:, :-1].to(tensor.dtype)], dim=1)
