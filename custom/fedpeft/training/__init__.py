# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""One site's local work: settings, batches, schedule, head, metrics, state on disk, and the learner that joins them."""
