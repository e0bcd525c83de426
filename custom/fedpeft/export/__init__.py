# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Hand a site's own model over as a folder that PEFT and transformers read: `fedpeft export`, at the site."""
