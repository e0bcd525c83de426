# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""How a command says which job it takes; `fedpeft.job.composing.name_of` and `fedpeft.job.folder` read it."""

JOB_HELP = "a job's folder, e.g. jobs/fedpia_task1, or its name, e.g. fedpia_task1"
