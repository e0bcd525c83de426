# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What Houlsby, Pfeiffer, Parallel and Compacter share, organized as PEFT's tuners are: configuration, layer, model."""

# PEFT's import hook imports the four methods, which import from this package: this must happen before anything here is
# partly defined, whatever the order of imports
import peft  # noqa: F401
