# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Store the global adapter on the server's disk, as safetensors."""

from __future__ import annotations

from pathlib import Path

from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.learnable_persistor import LearnablePersistor
from nvflare.app_common.abstract.model import ModelLearnable, ModelLearnableKey, make_model_learnable
from safetensors.torch import load_file, save_file

from fedpeft.core.files import replacing
from fedpeft.core.workspace import GLOBAL_ADAPTER
from fedpeft.flare.folders import run_folder


class SafetensorsPersistor(LearnablePersistor):
    """Stores the global adapter in one safetensors file, replaced atomically; bf16 stays bf16."""

    def load(self, fl_ctx: FLContext) -> ModelLearnable:
        """Return the saved adapter of this run, or an empty one before the first save."""
        file = self.file(fl_ctx)
        return make_model_learnable(weights=load_file(file) if file.exists() else {}, meta_props={})

    def save(self, learnable: ModelLearnable, fl_ctx: FLContext) -> None:
        """Replace the saved adapter."""
        tensors = {key: tensor.contiguous() for key, tensor in learnable[ModelLearnableKey.WEIGHTS].items()}
        with replacing(self.file(fl_ctx)) as draft:
            save_file(tensors, draft)

    @staticmethod
    def file(fl_ctx: FLContext) -> Path:
        """Return the path of this run's adapter."""
        return run_folder(fl_ctx) / GLOBAL_ADAPTER
