# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Folders of small transformers models with random weights, a tokenizer and an image processor."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers as hf
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

SPECIAL = ["<image>", "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]
PLAIN = ["where", "is", "the", "nodule", "?", "an", "effusion", "in", "image", "why", "are", "there", "of"]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "<bos>", "<eos>", *SPECIAL, *PLAIN]
SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
IDS = {"vocab_size": len(WORDS), "pad_token_id": 0, "bos_token_id": 4, "eos_token_id": 5}
IMAGE = {"image_size": 16, "patch_size": 8}
SQUARE = {"height": 16, "width": 16}


def tokenizer(*, classifying: bool = False, mask: bool = True) -> hf.PreTrainedTokenizerFast:
    """A tokenizer of whole words.

    Args:
        classifying: whether a text begins with [CLS], as for BERT; otherwise it ends with <eos>.
        mask: whether it returns an attention mask.
    """
    ids = {word: number for number, word in enumerate(WORDS)}
    inner = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    around = ("[CLS] $A [SEP]", ("[CLS]", "[SEP]")) if classifying else ("$A <eos>", ("<eos>",))
    inner.post_processor = processors.TemplateProcessing(
        single=around[0], special_tokens=[(word, ids[word]) for word in around[1]]
    )
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="[PAD]",
        unk_token="[UNK]",
        bos_token="<bos>",
        eos_token="<eos>",
        additional_special_tokens=SPECIAL,
        model_input_names=["input_ids", "attention_mask"] if mask else ["input_ids"],
        **({"cls_token": "[CLS]", "sep_token": "[SEP]"} if classifying else {}),
    )


def dual_encoder(folder: Path) -> Path:
    """BERT and ViT side by side."""
    towers = hf.ViTConfig(**SIZE, **IMAGE), hf.BertConfig(**SIZE, **IDS, max_position_embeddings=64)
    config = hf.VisionTextDualEncoderConfig.from_vision_text_configs(*towers, projection_dim=16)
    tokenizer(classifying=True).save_pretrained(folder)
    ViTImageProcessorPil(size=SQUARE).save_pretrained(folder)
    return saved(hf.VisionTextDualEncoderModel(config), folder)


def clip(folder: Path) -> Path:
    """CLIP."""
    text = {**SIZE, **IDS, "max_position_embeddings": 64}
    tokenizer().save_pretrained(folder)
    CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size=SQUARE).save_pretrained(folder)
    config = hf.CLIPConfig(text_config=text, vision_config={**SIZE, **IMAGE}, projection_dim=16)
    return saved(hf.CLIPModel(config), folder)


def siglip(folder: Path) -> Path:
    """SigLIP, whose text has no mask."""
    text = {**SIZE, **IDS, "max_position_embeddings": 64, "projection_size": 32}
    tokenizer(mask=False).save_pretrained(folder)
    SiglipImageProcessorPil(size=SQUARE).save_pretrained(folder)
    return saved(hf.SiglipModel(hf.SiglipConfig(text_config=text, vision_config={**SIZE, **IMAGE})), folder)


def paligemma(folder: Path) -> Path:
    """PaliGemma: an image tower, and a causal language model that reads its patches as tokens."""
    text = {"model_type": "gemma", **SIZE, **IDS, "vocab_size": 1200, "num_key_value_heads": 1, "head_dim": 16}
    vision = {"model_type": "siglip_vision_model", **SIZE, **IMAGE, "projection_dim": 32}
    image = WORDS.index("<image>")
    config = hf.PaliGemmaConfig(text_config=text, vision_config=vision, image_token_index=image, projection_dim=32)
    images = SiglipImageProcessorPil(size=SQUARE)
    images.image_seq_length = 4
    hf.PaliGemmaProcessor(images, tokenizer()).save_pretrained(folder)
    return saved(hf.PaliGemmaForConditionalGeneration(config), folder)


def qwen_vl(folder: Path) -> Path:
    """Qwen2.5-VL."""
    rope = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e4}
    vision = {"depth": 2, "hidden_size": 32, "num_heads": 2, "intermediate_size": 64, "patch_size": 8}
    marks = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    config = hf.Qwen2_5_VLConfig(
        text_config={**SIZE, **IDS, "num_key_value_heads": 2, "rope_parameters": rope},
        vision_config={**vision, "out_hidden_size": 32, "fullatt_block_indexes": [1], "window_size": 32},
        **{name: WORDS.index(mark) for name, mark in zip(names, marks, strict=True)},
    )
    tokenizer().save_pretrained(folder)
    size = {"shortest_edge": 256, "longest_edge": 1024}
    Qwen2VLImageProcessorPil(patch_size=8, merge_size=2, size=size).save_pretrained(folder)
    return saved(hf.Qwen2_5_VLForConditionalGeneration(config), folder)


def llava(folder: Path, width: int = 32) -> Path:
    """LLaVA: CLIP's image tower and Llama."""
    size = {**SIZE, "hidden_size": width, "intermediate_size": 2 * width}
    config = hf.LlavaConfig(
        text_config={"model_type": "llama", **size, **IDS, "num_key_value_heads": 2},
        vision_config={"model_type": "clip_vision_model", **size, **IMAGE},
        image_token_index=WORDS.index("<image>"),
        vision_feature_layer=-1,
    )
    images = CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size=SQUARE)
    hf.LlavaProcessor(
        images,
        tokenizer(),
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    ).save_pretrained(folder)
    return saved(hf.LlavaForConditionalGeneration(config), folder)


def blip2(folder: Path, width: int = 32) -> Path:
    """BLIP-2: an image tower, a Q-Former and OPT."""
    size = {**SIZE, "hidden_size": width, "intermediate_size": 2 * width}
    config = hf.Blip2Config(
        text_config={"model_type": "opt", **size, **IDS, "ffn_dim": 2 * width, "word_embed_proj_dim": width},
        vision_config={**size, **IMAGE},
        qformer_config={**size, "vocab_size": 8, "encoder_hidden_size": width},
        num_query_tokens=3,
        image_token_index=WORDS.index("<image>"),
    )
    images = BlipImageProcessorPil(size=SQUARE)
    hf.Blip2Processor(images, tokenizer(), num_query_tokens=3).save_pretrained(folder)
    return saved(hf.Blip2ForConditionalGeneration(config), folder)


def gpt2(folder: Path) -> Path:
    """GPT-2, which has a position for every place in the text."""
    tokenizer().save_pretrained(folder)
    return saved(
        hf.GPT2LMHeadModel(hf.GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=64, resid_pdrop=0.0, **IDS)),
        folder,
    )


def git(folder: Path) -> Path:
    """GIT: CLIP's image tower, and a causal language model that reads its patches before a text."""
    config = hf.GitConfig(vision_config={**SIZE, **IMAGE}, **SIZE, **IDS, max_position_embeddings=64)
    tokenizer(classifying=True).save_pretrained(folder)
    CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size=SQUARE).save_pretrained(folder)
    return saved(hf.GitModel(config), folder)


def granite(folder: Path, scale: float = 8) -> Path:
    """Granite, which divides its logits by a scale."""
    tokenizer().save_pretrained(folder)
    return saved(
        hf.GraniteForCausalLM(hf.GraniteConfig(**SIZE, **IDS, num_key_value_heads=2, logits_scaling=scale)), folder
    )


def bert(folder: Path) -> Path:
    """BERT, without pooler, and with the head of its pre-training."""
    tokenizer(classifying=True).save_pretrained(folder)
    return saved(hf.BertForMaskedLM(hf.BertConfig(**SIZE, **IDS, max_position_embeddings=64)), folder)


def distilbert(folder: Path) -> Path:
    """DistilBERT, which is not in the table of slots."""
    tokenizer(classifying=True).save_pretrained(folder)
    config = hf.DistilBertConfig(vocab_size=len(WORDS), dim=32, n_layers=2, n_heads=2, hidden_dim=64)
    return saved(hf.DistilBertModel(config), folder)


def roberta(folder: Path) -> Path:
    """RoBERTa, whose positions begin behind that of padding."""
    tokenizer(classifying=True).save_pretrained(folder)
    return saved(hf.RobertaModel(hf.RobertaConfig(**SIZE, **IDS, max_position_embeddings=64)), folder)


def vit(folder: Path) -> Path:
    """ViT, without pooler."""
    return saved(hf.ViTModel(hf.ViTConfig(**SIZE, **IMAGE), add_pooling_layer=False), folder)


def resnet(folder: Path) -> Path:
    """ResNet, a convolutional network with batch norms."""
    ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder)
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 24], "depths": [1, 1], "layer_type": "basic"}
    return saved(hf.ResNetModel(hf.ResNetConfig(**sizes)), folder)


def mobilenet(folder: Path) -> Path:
    """MobileNetV2, whose configuration does not say how wide its features are."""
    ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder)
    return saved(hf.MobileNetV2Model(hf.MobileNetV2Config(image_size=32, depth_multiplier=0.25)), folder)


def dinov2(folder: Path) -> Path:
    """DINOv2."""
    ViTImageProcessorPil(size=SQUARE).save_pretrained(folder)
    config = hf.Dinov2Config(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, **IMAGE)
    return saved(hf.Dinov2Model(config), folder)


def bert_base(folder: Path) -> Path:
    """BERT of the size of BiomedBERT, with random weights and a short vocabulary."""
    tokenizer(classifying=True).save_pretrained(folder)
    hf.BertModel(hf.BertConfig(), add_pooling_layer=False).save_pretrained(folder)
    return folder


def dinov2_base(folder: Path) -> Path:
    """DINOv2 of the size of RAD-DINO, with random weights."""
    ViTImageProcessorPil(size={"height": 518, "width": 518}).save_pretrained(folder)
    hf.Dinov2Model(hf.Dinov2Config(image_size=518, patch_size=14)).save_pretrained(folder)
    return folder


def saved(model: hf.PreTrainedModel, folder: Path) -> Path:
    """Write a model with seeded weights."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 or name.endswith("bias"):
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(folder)
    return folder


MODELS = {
    "dual_encoder": dual_encoder,
    "clip": clip,
    "siglip": siglip,
    "paligemma": paligemma,
    "qwen_vl": qwen_vl,
    "llava": llava,
    "bert": bert,
    "distilbert": distilbert,
    "dinov2": dinov2,
}


def draw(*shape: int) -> torch.Tensor:
    """Random numbers of a weight."""
    return torch.randn(*shape) * 0.1


def timm_tensors() -> dict[str, torch.Tensor]:
    """A vision transformer as timm names it, with a head."""
    torch.manual_seed(0)
    tensors = {
        "cls_token": draw(1, 1, 32),
        "pos_embed": draw(1, 5, 32),
        "patch_embed.proj.weight": draw(32, 3, 8, 8),
        "patch_embed.proj.bias": draw(32),
        "norm.weight": 1 + draw(32),
        "norm.bias": draw(32),
        "head.weight": draw(7, 32),
        "head.bias": draw(7),
    }
    shapes = {"attn.qkv": (96, 32), "attn.proj": (32, 32), "mlp.fc1": (64, 32), "mlp.fc2": (32, 64)}
    for layer in range(2):
        for name, shape in shapes.items():
            tensors |= {
                f"blocks.{layer}.{name}.weight": draw(*shape),
                f"blocks.{layer}.{name}.bias": draw(shape[0]),
            }
        for name in ("norm1", "norm2"):
            tensors |= {
                f"blocks.{layer}.{name}.weight": 1 + draw(32),
                f"blocks.{layer}.{name}.bias": draw(32),
            }
    return tensors


def timm_folder(folder: Path, tensors: dict[str, torch.Tensor] | None = None, **changes: object) -> Path:
    """A folder as timm writes it."""
    config = {"architecture": "vit_mine", "num_classes": 7, "pretrained_cfg": {"input_size": [3, 16, 16]}}
    (folder / "config.json").write_text(json.dumps(config | {"model_args": {"num_heads": 4}} | changes))
    save_file(tensors or timm_tensors(), folder / "model.safetensors")
    return folder
