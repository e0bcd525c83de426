# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A job: its sections, how it is composed, checked and admitted, and what one site sees of it."""
