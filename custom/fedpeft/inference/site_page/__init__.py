# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A page of a site's own data and model, made at the site and kept there."""
