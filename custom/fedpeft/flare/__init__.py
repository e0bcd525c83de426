# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The FLARE side: the only folder that imports nvflare."""
