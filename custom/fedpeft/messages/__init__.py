# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What travels between server and sites, without FLARE.

types            the messages, and which of them each task has
fields           exact types and sizes of their fields
limits           the largest message, and what stands in place of one that was not read
reply_contract   what a reply must be
empty_replies    the reply that says why there is none
"""
