# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""How much a site would gain from training each layer, and how many layers fit into its memory.

registry        the scores by name, their settings, and `score`, which computes any of them
scoring_task    model, layers, batches and loss, checked once; a model's adapter parameters by layer
lntk            principal eigenvalue of the layer's tangent kernel (F3OCUS), and Algorithm 1 as it is printed
saliency        the other scores: by weights, gradients or change, and some that use neither model nor data
jacobian        a Jacobian row for every sample without a loop over samples
memory_budget   how many layers fit into a device's memory (Algorithm 46)

scores = score(model_fn, layers, batches, loss, method="lntk")      # (L,) float64, sums to 1
"""

from fedpeft.core.registry import lazy_module

# torch costs seconds: a name is imported when it is first used
_HOME = {
    "score": "registry",
    "names": "registry",
    "register": "registry",
    "method_settings": "registry",
    "adapter_layers": "scoring_task",
    "MemorySettings": "registry",
    "layer_budget": "memory_budget",
    "layer_memory": "memory_budget",
    "count_layers": "memory_budget",
}

__all__ = list(_HOME)
__getattr__, __dir__ = lazy_module(__name__, _HOME)
