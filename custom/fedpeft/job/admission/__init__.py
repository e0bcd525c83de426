# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Check a job's files before FLARE parses them, and admit or refuse the job."""
