# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A finished model at its site: predictions, exports, and a page of its data and answers."""
