# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What the whole package uses: states and keys, settings, registries, files, locks, text on a terminal."""
