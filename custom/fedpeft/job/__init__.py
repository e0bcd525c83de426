# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A job: its sections, how it is composed, checked and admitted, and what one site sees of it."""

JOB_HELP = "a job's folder, e.g. jobs/fedpia_task1, or its name, e.g. fedpia_task1"  # of every command that takes a job
