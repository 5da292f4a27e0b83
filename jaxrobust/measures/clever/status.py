"""The verdict: when not to believe a CLEVER score."""

from __future__ import annotations

import enum


class CleverStatus(enum.IntFlag):
    """Everything that speaks against a score, as bits: test with ``status & CleverStatus.TIES``.

    A score is an estimate even where nothing speaks against it (``OK``).

    Attributes:
        OK: Nothing was found.
        CENSORED: The score is the radius: the margin may last longer. Search a larger ball.
        ZERO_GRADIENTS: More than a tenth of the gradients sampled (or, in second order, all
            curvatures) are exactly 0, as where gradients are masked by rounding or saturation.
            Where all are 0 and the margin changes all the same, the score is NaN.
        STEEPER: The margin changed faster between two points than the estimated maximum of its
            gradient allows, so the gradients are not to be trusted, or the estimate is too low.
        REFUTED: A sampled point closer than the score already loses the margin; in the result of
            ``bracket``, an attack came closer.
        TIES: Fewer than half of the maxima are distinct: they come from a few discrete values, to
            which no continuous distribution fits.
        POOR_FIT: The Kolmogorov-Smirnov test rejects the fit at 5%.
        CONSTANT: All maxima are equal, to rounding: their value is used, no fit. As it should be
            for a linear model.
        DIVERGED: The maxima have a tail without an upper end; the one used is that at the bound of
            the fit's shape, far above the maxima: the score is probably too low.
        NO_FIT: Too few batches for a fit (fewer than 3); the largest maximum is used.
        PROBABILITIES: The outputs look like probabilities; margins want logits.
        MISCLASSIFIED: The predicted class, for which the score holds, is not the label given.
        TIED_CLASSES: The target's logit equals that of the predicted class: the score is 0.
        MASKED: The target's logit is ``-inf``: it cannot be reached. The score is NaN, and left
            out of the smallest.
        INVALID: A logit or a gradient is NaN or infinite; the score is NaN.
        NOT_SCORED: The class was not a target; its entries are NaN.
        DROPPED: The class left the race of an untargeted score, as it could not be the nearest:
            its score is that of the largest gradient seen until then, and too large rather than
            too small. No fit was made; the maxima of the batches after that are NaN.
    """

    OK = 0
    CENSORED = 1
    ZERO_GRADIENTS = 2
    STEEPER = 4
    REFUTED = 8
    TIES = 16
    POOR_FIT = 32
    CONSTANT = 64
    DIVERGED = 128
    NO_FIT = 256
    PROBABILITIES = 512
    MISCLASSIFIED = 1024
    TIED_CLASSES = 2048
    MASKED = 4096
    INVALID = 8192
    NOT_SCORED = 16384
    DROPPED = 32768
