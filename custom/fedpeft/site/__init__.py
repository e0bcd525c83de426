# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A site's half of a round, without FLARE: its learner, its state on disk, and the process that trains."""
