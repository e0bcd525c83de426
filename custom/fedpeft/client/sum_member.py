# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A site's part in a job's secure sums: offer a key before every round, and mask the upload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpeft.errors import SecureSumError
from fedpeft.messages.types import TrainOrder
from fedpeft.methods.settings import MethodSettings
from fedpeft.privacy import secure_sum
from fedpeft.privacy.secure_round import weight_of
from fedpeft.privacy.signed_keys import Kit, SignedKey
from fedpeft.privacy.site_policy import SitePolicy
from fedpeft.site_job import digest_of
from fedpeft.states import State


@dataclass(frozen=True, kw_only=True)
class SumMember:
    """A site in a job's secure sums; without `method.secure_sum` it offers and masks nothing.

    Args:
        site: its name.
        method: of the job.
        settings: digest of the job as deployed to this site; sums of sites with different ones reveal nothing.
        kit: its certificate; None in the simulator, where keys are not signed.
        members: the sites of every sum, from the site's own file; None in the simulator.
    """

    site: str
    method: MethodSettings
    settings: str
    kit: Kit | None = None
    members: Sequence[str] | None = None

    @classmethod
    def of(
        cls,
        site: str,
        method: MethodSettings,
        policy: SitePolicy | None,
        sections: Mapping[str, Any],
        *,
        job: str,
        startup: Path | None,
    ) -> SumMember:
        """Create it for a site that takes part in a job.

        Args:
            site: its name.
            method: of a job that the site's own file allows.
            policy: that file; None in the simulator.
            sections: of the job, as deployed to this site.
            job: FLARE's id of the job.
            startup: folder of the site's certificate; None in the simulator.

        Raises:
            SecureSumError: the site's certificate is missing.
        """
        settings = digest_of(sections, job=job)
        if policy is None or startup is None or not method.secure_sum:
            return cls(site=site, method=method, settings=settings)
        return cls(site=site, method=method, settings=settings, kit=Kit.load(startup), members=policy.sum_with)

    def offer(self, folder: Path, *, job: str, round: int) -> SignedKey:
        """Return the signed public key for a round; empty without secure sums.

        Args:
            folder: the site's state folder of this job; stores the private key.
            job: the job's lineage.
            round: the round that the key is for.
        """
        if not self.method.secure_sum:
            return {}
        return secure_sum.offer(folder, self.kit, job=job, round=round, site=self.site)

    def upload(self, trained: State, folder: Path, order: TrainOrder, *, samples: int, received: State) -> State:
        """Mask the trained adapter; without secure sums return it unchanged.

        Args:
            trained: the learner's upload.
            folder: as in `offer`.
            order: of the server, with the members' keys.
            samples: training samples of the site.
            received: the whole global adapter that the round started from.
        """
        if not self.method.secure_sum:
            return trained
        if order.layers is not None or order.scored:
            raise SecureSumError(
                f"the server assigned layers {order.layers} in a job with method.secure_sum, which sums whole adapters."
            )
        return secure_sum.upload(
            trained,
            folder,
            self.kit,
            job=order.lineage,
            settings=self.settings,
            round=order.round,
            site=self.site,
            weight=weight_of(samples, self.method),
            offered=order.sum_keys,
            members=self.members,
            received=received,
        )
