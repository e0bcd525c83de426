# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The process that trains at a site, its protocol, and the supervisor that restarts it when it dies."""
