# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What Houlsby, Pfeiffer, Parallel and Compacter share, in PEFT's own shape: configuration, layer, model."""

# PEFT's import hook imports the four methods, which import from this package: let it do so before anything here is
# half defined, in whatever order modules are imported
import peft  # noqa: F401
