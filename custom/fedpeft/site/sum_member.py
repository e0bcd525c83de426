# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A site's part in a job's secure sums: offer a key before every round, draw a secret seed, and mask the upload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import fedpeft
from fedpeft.core.errors import SecureSumError
from fedpeft.core.states import State, digest
from fedpeft.job.settings import digest_of
from fedpeft.job.site_policy import RECEIVED, PrivacySettings, SitePolicy
from fedpeft.methods.settings import MethodSettings
from fedpeft.protocol import signed_keys
from fedpeft.protocol.secure_sum import SumRound, weight_of
from fedpeft.protocol.signed_keys import Kit, SignedKey
from fedpeft.protocol.types import TrainOrder


@dataclass(frozen=True, kw_only=True)
class SumMember:
    """A site in a job's secure sums; without `method.secure_sum` it offers and masks nothing.

    Args:
        site: its name.
        method: of the job.
        settings: digest of the job as deployed to this site; a sum of sites with different digests reveals nothing.
        kit: its certificate; None in the simulator, where keys are not signed.
        members: the sites of every sum, from the site policy; None in the simulator.
        policy: that file as JSON; the training depends on it.
        noised: settings to clip and noise the adapter before it is masked; None: it is not noised.
    """

    site: str
    method: MethodSettings
    settings: str
    kit: Kit | None = None
    members: Sequence[str] | None = None
    policy: Mapping[str, Any] = field(default_factory=dict)
    noised: PrivacySettings | None = None

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
        """Create the member of a site in a job; `startup` is the folder of its certificate.

        Without policy and folder, in the simulator, keys are not signed. A missing certificate is refused, and a
        missing accountant for the noise that the site policy demands.
        """
        settings = digest_of(sections, job=job)
        if policy is None or startup is None or not method.secure_sum:
            return cls(site=site, method=method, settings=settings)
        noised = policy.noise_of_sums
        if noised and noised.noise:
            from fedpeft.protocol import epsilon

            epsilon([noised.noise], noised.delta)  # report a missing accountant before training
        return cls(
            site=site,
            method=method,
            settings=settings,
            kit=Kit.load(startup),
            members=policy.sum_with,
            policy=asdict(policy),
            noised=noised,
        )

    def offer(self, folder: Path, *, job: str, round: int, facts: Mapping[str, Any]) -> SignedKey:
        """Return the signed public key for a round; empty without secure sums.

        The private key is stored in the site's state folder of this job. The training of that round depends on the
        facts.
        """
        if not self.method.secure_sum:
            return {}
        start = b""
        if self.members is not None:
            facts = {**facts, "policy": self.policy, "fedpeft": fedpeft.__version__}
            start = signed_keys.start_of(signed_keys.secret_of(folder), facts)
        return self._sum_of_round(job, round).offer(folder, start)

    def salt(self, folder: Path, order: TrainOrder, *, received: State) -> str:
        """Return the secret part of a round's seeds; empty in the simulator and without secure sums."""
        if not self.method.secure_sum or self.members is None:
            return ""
        job, round = order.lineage, order.round
        offers = self._sum_of_round(job, round).verified(order.sum_keys)
        starts = {name: offer.start for name, offer in offers.items()}
        secret, state = signed_keys.secret_of(folder), digest(received)
        return signed_keys.salt_of(secret, job=job, round=round, starts=starts, received=state)

    def upload(self, trained: State, folder: Path, order: TrainOrder, *, samples: int, received: State) -> State:
        """Mask the trained adapter; without secure sums return it unchanged.

        The order has the members' keys; `received` is the whole global adapter that the round started from.
        """
        if not self.method.secure_sum:
            return trained
        if order.layers is not None or order.scored:
            raise SecureSumError(
                f"the server assigned layers {order.layers} in a job with method.secure_sum, which sums whole adapters."
            )
        return self._sum_of_round(order.lineage, order.round).upload(
            trained,
            folder,
            settings=self.settings,
            weight=weight_of(samples, self.method),
            offered=order.sum_keys,
            received=received,
            noised=lambda adapter: self._noised(adapter, folder, order, received),
        )

    def _sum_of_round(self, job: str, round: int) -> SumRound:
        return SumRound(job=job, round=round, site=self.site, kit=self.kit, members=self.members)

    def _noised(self, trained: State, folder: Path, order: TrainOrder, received: State) -> State:
        """Clip and noise the adapter before it is masked, and record that in the site's ledger.

        The result is not stored, because a repeated order finds no key.
        """
        if self.noised is None:
            return trained
        from fedpeft.protocol import release_adapter
        from fedpeft.protocol.differential_privacy import LEDGER, add_releases

        settings = self.noised
        noised, _ = release_adapter(trained, received if settings.reference == RECEIVED else None, settings)
        if settings.noise:
            release = {"round": order.round, "what": "adapter", "noise": settings.noise, "bound": settings.clip}
            add_releases(folder.parent / LEDGER, order.lineage, [release], delta=settings.delta, limit=settings.limit)
        return noised
