# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""How a site trains: the `training` section of a job."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedpeft.answering import ANSWERING
from fedpeft.core.errors import FedpeftError
from fedpeft.core.metrics import VALIDATION
from fedpeft.core.settings import MAX_ROUNDS, READ_WITH, check_ranges, one_of, within

WITH_GLOBAL = "with_global"  # metadata of a field that compares with the global adapter in training


@dataclass(frozen=True, kw_only=True)
class WayToPersonalize:
    """A way to give a site a model of its own, as `PERSONALIZATIONS` names it."""

    # import path of a subclass of `fedpeft.site.loop.Personalization`, "package.module:object"
    home: str = "fedpeft.site.loop:Personalization"
    max_kept: float = 0.0  # share of its own adapter in the start of a site's round, at most
    models: int = 0  # trained models on a site's disk beside the exchanged one
    adapters: int = 0  # sets of tensors of an adapter's size on that disk


NONE = "none"
PERSONALIZATIONS: dict[str, WayToPersonalize] = {
    NONE: WayToPersonalize(),
    "ditto": WayToPersonalize(home="fedpeft.site.ditto:Ditto", models=1),
    "fedala": WayToPersonalize(home="fedpeft.site.fedala:FedALA", max_kept=1.0, adapters=1),
}

ADAMW, SGD, LINEAR = "adamw", "sgd", "linear"
FLOAT32, BFLOAT16, NF4 = "float32", "bfloat16", "nf4"
LAST, BEST = "last", "best"
BALANCED, SHARE = "balanced", "share"
START, STEPS = "start", "steps"
VIEWS = {  # by augmentation, as Pillow names them; empty: the image as it is
    "none": ("",),
    "mirror": ("", "FLIP_LEFT_RIGHT"),
    "flips": ("", "FLIP_LEFT_RIGHT", "FLIP_TOP_BOTTOM", "ROTATE_180"),
}
IMAGES_MIB = 64
MAX_EPOCHS, MAX_SAMPLES, MAX_PROCESSES, MAX_MIB = 10_000, 1_000_000, 1024, 100_000_000
BATCH = within(1, MAX_SAMPLES, max_by="max_batch_size", min_by="min_batch_size")
RATE = within(0, exclusive=True, max_by="max_learning_rate")
DEFAULT, FORMER_DEFAULT = "default", "usual"  # older jobs have the latter
FUSED, FIRST_TOKEN = "fused", "first_token"


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The local recipe: optimizer, learning rate over all rounds, how a site answers, computes and measures.

    Args:
        rounds: communication rounds of the whole job.
        local_epochs: passes over the site's training split per round.
        first_epochs: passes in the first round, before anything is exchanged; 0: `local_epochs`. With
            `method.initialization: own` the sites thus tune their adapters before the federation begins.
        batch_size: samples per step.
        sampling: samples of an epoch: `default`, each sample once, or `balanced`: as many samples, drawn with
            replacement so that every class comes equally often. An image counts for the rarest of its labels.
        class_weights: weight of a class in the loss: `none`, or `balanced`: n / (C n_c) for n_c of the site's n
            training samples and C classes. Labels that apply are weighted by how many times more often they do not.
            The counts stay at the site. With `sampling: balanced` rare classes would count twice.
        augmentation: how training images are turned at random: `none`, `mirror` (left and right), or `flips` (also
            upside down). If left and right mean something, leave it out. Features that a frozen encoder keeps take
            two or four times the memory.
        learning_rate: peak learning rate of adapters (or of the backbone when all of it is trained).
        head_learning_rate: peak learning rate of the head; None: the same.
        weight_decay: not applied to biases and LayerNorm.
        warmup: fraction of all steps over which the learning rate rises linearly.
        decay: of the learning rate after that: `linear` to 0 at the end of the last round, or `none`.
        optimizer: `adamw`, or `sgd` without momentum.
        proximal_mu: FedProx: every step holds the exchanged tensors near the global ones that the round began with, as
            a term `mu/2 |w - w_global|^2` of the loss would; the paper tries 0.001 to 1. 0: off.
        scaffold: SCAFFOLD: every step is corrected by the difference between the last round's movement of all sites and
            the site's own. A site keeps two more numbers for each exchanged one and sends no more.
        moon_mu: MOON: a sample's features, which the head reads, are drawn to those of the global model and away from
            those of the site's model of the round before; the reported loss has this term. The paper tries 0.1 to 10,
            and a step takes two more forward passes. 0: off.
        moon_temperature: of MOON's term, the paper's value; the smaller, the more small differences count.
        personalization: `ditto`: a second model of the site's own, held near the global one, is measured and kept
            there, and the exchanged adapter is uploaded as without; a round takes twice the time. `fedala`: every
            number of the adapter starts from a share of the global one that is learned on the site's data, and what
            trains from there is measured, kept and uploaded. `none`.
        ditto_lambda: how strongly Ditto holds the site's own model near the global one, as `proximal_mu` does.
        ala_rate: of FedALA's shares.
        optimizer_state: `keep` the moments from round to round on the site's disk, or `reset` them every round. Tensors
            that the last round did not train, such as other layers, and exchanged tensors of a site that was away,
            begin with new moments, because the global adapter has moved without them; so do factors that every round
            draws anew (`method.aggregation` svd and stack).
        answering: how a site answers a question (`fedpeft.answering.names()`): `classification` over the answers
            of its training data, `ranking` of them by the log-probability that a decoder gives them, or `generation`,
            where the model writes the answer.
        candidates: number of answers to rank, those with the most probable first token; 0: all.
        head: of classification: `linear`, or `mlp` (Linear, LayerNorm, GELU, Linear).
        evaluation_batch_size: samples per step of evaluation.
        precision: of matrix products in the backbone: `float32`, or `bfloat16` (autocast). Trained parameters, head and
            loss stay in float32.
        frozen_precision: of the backbone's frozen matrices in memory: `float32`, `bfloat16`, or `nf4`: the linear
            layers of its stacks in four bits as in QLoRA, by bitsandbytes, all others as `precision` says.
        attention: `default`, or `fused`: torch's scaled_dot_product_attention, which keeps no attention matrix, if
            transformers does not use it (ViLT).
        last_layer: `whole`, or `first_token`: a backbone whose features are those of its first token computes only that
            token in its last layer. The results differ by rounding, and with dropout by the dropped values.
        compile: compile the backbone's layers with torch.compile, which needs a C++ compiler on the site (on CUDA
            Triton). This takes time when a site's process first trains. The results differ by rounding.
        thresholds: probability from which on a label counts as predicted: `half`; `validation`, for each label the
            one with the highest F1 on the site's validation split; or `share`, if few images can be set aside: p / (1 +
            p) for a label that a share p of the training images has, moved as `class_weights` move probabilities, and a
            half with balanced `sampling`. A site without a validation split takes `share` for `validation`. Sites whose
            data have no labels have no thresholds.
        validate: measure every round on the validation split as well, so that the report can name the best round.
        measure: `start`: the mean loss on the same `method.probe_samples` random training samples (at a site with a
            site policy rounded down to a power of two) at the start and at the end of every round, without dropout, for
            a picture in the report. `steps`: the loss of the batches during every round, which stays at the site; the
            pictures are on its page and in comparisons. With Ditto both are of the exchanged model. Training stays the
            same to the bit. `none`.
        keep: which rounds a site can predict with later: the `last` four, or besides these the `best` one by its own
            validation split.
        patience: end the job after this many rounds in a row that improved neither the median of the sites' figures on
            their validation splits nor those of half of the sites; 0: run all rounds. `decay: linear` always covers
            all rounds.
        checkpointing: keep only each layer's input for the backward pass and compute the rest of the layer again.
        micro_batch: samples that are computed at once; the optimizer still steps once for each batch. 0: all of them.
        reuse_passes: compute the features of FedDAT's teacher and student, which are equal, once in a step; this takes
            more memory for the backward pass. Bit for bit the same; a backbone with dropout is refused.
        features_mib: main memory for the inputs of the first trained layer, computed once for each sample as long as
            nothing below changes: with a schedule that leaves out the first layers, or a method that trains none of
            them. With mmbt: for the output of its image encoder, whatever is trained. 0: compute it every time.
        threads: torch threads of a site's process; fixed, so that results do not depend on the machine's cores.
        workers: processes that decode images, 0 for none.
        images_mib: main memory for decoded images of files, which are then read once and not in every epoch. None: 64
            without workers, and 0 with them, because their processes end with an epoch.
        device: a torch device, or `auto` (CUDA where there is one).
        seed: every random number of training, initial values and alignment derives from it; data have `data.seed`.
    """

    rounds: int = field(metadata=within(1, MAX_ROUNDS, max_by="max_rounds"))
    local_epochs: int = field(default=1, metadata=within(1, MAX_EPOCHS, max_by="max_local_epochs"))
    first_epochs: int = field(default=0, metadata=within(0, MAX_EPOCHS, max_by="max_local_epochs"))
    batch_size: int = field(default=16, metadata=BATCH)
    sampling: str = DEFAULT
    class_weights: str = "none"
    augmentation: str = "none"
    learning_rate: float = field(default=1e-4, metadata=RATE)
    head_learning_rate: float | None = field(default=None, metadata=RATE)
    weight_decay: float = field(default=0.01, metadata=within(0, max_by="max_weight_decay"))
    warmup: float = field(default=0.1, metadata=within(0, 1))
    decay: str = LINEAR
    optimizer: str = ADAMW
    proximal_mu: float = field(default=0.0, metadata={**within(0, max_by="max_proximal_mu"), WITH_GLOBAL: True})
    scaffold: bool = field(default=False, metadata={WITH_GLOBAL: True})
    moon_mu: float = field(default=0.0, metadata={**within(0, 10), WITH_GLOBAL: True})
    moon_temperature: float = field(default=0.5, metadata={**within(0.1, 10), READ_WITH: {"moon_mu": None}})
    personalization: str = field(default=NONE, metadata={WITH_GLOBAL: True})
    ditto_lambda: float = field(default=0.1, metadata={**within(0), READ_WITH: {"personalization": ("ditto",)}})
    ala_rate: float = field(
        default=1.0, metadata={**within(0, max_by="max_ala_rate"), READ_WITH: {"personalization": ("fedala",)}}
    )
    optimizer_state: str = field(default="keep", metadata={READ_WITH: {"optimizer": (ADAMW,)}})
    answering: str = "classification"
    candidates: int = field(default=128, metadata=within(0, MAX_SAMPLES))
    head: str = "linear"
    evaluation_batch_size: int = field(default=64, metadata=within(1, MAX_SAMPLES, max_by="max_batch_size"))
    precision: str = FLOAT32
    frozen_precision: str = FLOAT32
    attention: str = DEFAULT
    last_layer: str = "whole"
    compile: bool = False
    thresholds: str = "half"
    validate: bool = True
    measure: str = NONE
    keep: str = LAST
    patience: int = field(default=0, metadata=within(0, MAX_ROUNDS))
    checkpointing: bool = False
    micro_batch: int = field(default=0, metadata=within(0, MAX_SAMPLES))
    reuse_passes: bool = False
    features_mib: float = field(default=0, metadata=within(0, MAX_MIB, max_by="max_kept_mib"))
    threads: int = field(default=1, metadata=within(1, MAX_PROCESSES, max_by="max_threads"))
    workers: int = field(default=0, metadata=within(0, MAX_PROCESSES, max_by="max_workers"))
    images_mib: float | None = field(default=None, metadata=within(0, MAX_MIB, max_by="max_kept_mib"))
    device: str = "auto"
    seed: int = field(default=0, metadata=within(0, 2**63 - 1))

    @property
    def chooses_a_round(self) -> bool:
        """Whether rounds are compared on the validation splits, to keep the best or to end the job."""
        return self.keep == BEST or bool(self.patience)

    def __post_init__(self) -> None:
        check_ranges(self)
        one_of("thresholds", self.thresholds, ("half", VALIDATION, SHARE))
        one_of("measure", self.measure, (NONE, START, STEPS))
        one_of("keep", self.keep, (LAST, BEST))
        for name, value in (("keep", self.keep == BEST), ("patience", self.patience)):
            if value and not self.validate:
                raise FedpeftError(
                    f"{name} is {getattr(self, name)!r}, and validate is false: without the validation split no round "
                    f"is better than another, leave one of them out.",
                    setting=name,
                )
        for name in ("sampling", "attention"):
            if getattr(self, name) == FORMER_DEFAULT:
                object.__setattr__(self, name, DEFAULT)
        one_of("sampling", self.sampling, (DEFAULT, BALANCED))
        one_of("class_weights", self.class_weights, ("none", BALANCED))
        if self.class_weights == self.sampling == BALANCED:
            raise FedpeftError(
                "class_weights and sampling are both 'balanced', and rare classes would count twice: leave one of them "
                "out.",
                setting="class_weights",
            )
        one_of("augmentation", self.augmentation, tuple(VIEWS))
        one_of("decay", self.decay, (LINEAR, "none"))
        one_of("optimizer", self.optimizer, (ADAMW, SGD))
        one_of("personalization", self.personalization, PERSONALIZATIONS)
        one_of("optimizer_state", self.optimizer_state, ("keep", "reset"))
        one_of("answering", self.answering, ANSWERING.names())
        if self.moon_mu and not ANSWERING.get(self.answering).head:
            raise FedpeftError(
                f"moon_mu is {self.moon_mu:g}, and with answering={self.answering!r} no head reads features that could "
                f"be compared: set answering to 'classification', or leave moon_mu out.",
                setting="moon_mu",
            )
        one_of("head", self.head, ("linear", "mlp"))
        one_of("precision", self.precision, (FLOAT32, BFLOAT16))
        one_of("frozen_precision", self.frozen_precision, (FLOAT32, BFLOAT16, NF4))
        one_of("attention", self.attention, (DEFAULT, FUSED))
        one_of("last_layer", self.last_layer, ("whole", FIRST_TOKEN))
        if self.frozen_precision == BFLOAT16 and self.precision == FLOAT32:
            raise FedpeftError(
                "frozen_precision is 'bfloat16', which products in float32 cannot use: set precision to 'bfloat16'.",
                setting="frozen_precision",
            )
        if self.images_mib and self.workers:
            raise FedpeftError(
                f"images_mib is {self.images_mib:g}, and the images of {self.workers} workers end with their "
                f"processes, after every epoch: leave it out, or set workers to 0.",
                setting="images_mib",
            )
        if self.micro_batch >= self.batch_size:
            raise FedpeftError(
                f"micro_batch is {self.micro_batch}, a batch has {self.batch_size} samples: choose fewer, or leave it "
                f"out.",
                setting="micro_batch",
            )

    @property
    def kept_images_mib(self) -> float:
        """Main memory for decoded images."""
        if self.images_mib is None:
            return 0 if self.workers else IMAGES_MIB
        return self.images_mib

    def epochs_in(self, round: int, *, first: int = 1) -> int:
        """Return the passes over the training split in a round, counted from 1."""
        if round == first:
            return self.epochs_before(round + 1)
        return self.local_epochs

    def epochs_before(self, round: int, *, first: int = 1) -> int:
        """Return the passes over the training split in all rounds before one, at a site that begins with `first`."""
        if round <= first:
            return 0
        return (self.first_epochs or self.local_epochs) + (round - 2) * self.local_epochs
