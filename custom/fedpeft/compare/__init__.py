# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Compare methods: over finished runs, or as an experiment that runs them with the same data, steps and seeds."""
