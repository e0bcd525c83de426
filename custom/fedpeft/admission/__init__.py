# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Whether a job may be admitted, read off its bytes before anything else parses them."""
