# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The server's half of a round, without FLARE: plan it, integrate the sites' adapters, save the result."""
