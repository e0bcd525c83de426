# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Predict with a site's own model, at the site, where its head and its answers are: `fedpeft predict`."""
