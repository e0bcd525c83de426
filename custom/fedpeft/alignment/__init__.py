# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Permutation and integration of adapters (FedPIA): bring neurons into one order, then average matching neurons.

    settings      PIASettings: every option, its default, and why; limits for a single site
    transport     which neurons match: costs and optimal transport plans
    neurons       where the neurons of each kind of adapter lie in its tensors; which adapters do not fit together
    permutation   from a plan to aligned weights, and what happens to the function where widths differ
    common_order  the order in which the adapters of all sites are nearest to their mean: found, and when it is proven
    averaging     the weighted sum that FedAvg and PIA share, and averages that a few attackers cannot move far
    integration   the server's part: align to a reference and average the adapters of a round; single adapters
    factors       states whose factors multiply to a product, as LoRA's do
    low_rank      the mean of products, factored again, or stacked without error
    client_pia    a site's part: align the received adapter to the site's own, merge the two, finish the round

Tensors in, tensors out: no model, no file, no FLARE, no randomness. A round of the server, and single adapters:

    state, report = integrate(states, counts, PIASettings(gamma=0.1), sites=names, previous=state)
    plan = transport_plan(client.down, reference.down)          # (r_client, r_reference)
    merged = barycenter([site_a, site_b, site_c], gamma=0.1)    # adapters of any width
"""

from fedpeft.core.registry import lazy_module

# torch and scipy cost seconds: a name is imported when it is first used
_HOME = {
    "PIASettings": "settings",
    "RobustSettings": "settings",
    "cost_matrix": "transport",
    "transport_plan": "transport",
    "Bottleneck": "neurons",
    "Neurons": "neurons",
    "register": "neurons",
    "materialize": "neurons",
    "integrate": "integration",
    "barycenter": "integration",
    "align_global": "client_pia",
    "align_upload": "client_pia",
    "start_merged": "client_pia",
    "finish_round": "client_pia",
}

__all__ = list(_HOME)
__getattr__, __dir__ = lazy_module(__name__, _HOME)
