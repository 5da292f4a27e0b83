"""Numbers for people and for JSON: short, exact where it counts, and never NaN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np

NO_INTERVAL = "no interval"
EXAMPLES = " over the choice of examples"


class Estimate(TypedDict):
    """An estimated number as it stands in the JSON.

    Attributes:
        value: the number, or None.
        interval: its two ends, or None; an end may be None (open).
        reason: why something above is None; None otherwise.
    """

    value: float | None
    interval: list[float | None] | None
    reason: str | None


def plain(value: Any) -> float | None:
    """A Python float that reads back as the same number; None for NaN and infinities.

    A float32 becomes the shortest decimal that stands for it.

    Example:
        >>> import numpy as np
        >>> plain(np.float32(0.1)), plain(np.nan)
        (0.1, None)
    """
    scalar = np.asarray(value)[()]
    if not np.isfinite(scalar):
        return None
    return float(str(scalar)) if isinstance(scalar, np.floating) else float(scalar)


def plain_list(values: Any) -> list[float | None]:
    """:func:`plain` for each number of a list or a one-dimensional array."""
    return [plain(value) for value in np.asarray(values)]


def estimate(value: Any, interval: Any = None, reason: str | None = None) -> Estimate:
    """Puts an estimate, its interval and the reason of what is missing together.

    Example:
        >>> estimate(float("nan"), reason="the curve could not be fitted")["value"] is None
        True
    """
    number = plain(value)
    ends = None if number is None or interval is None else plain_list(interval)
    missing = number is None or ends is None or None in ends
    return {"value": number, "interval": ends, "reason": reason if missing else None}


def show(value: float | None, digits: int = 3) -> str:
    """A number with so many significant digits, without an exponent where it can be helped.

    Example:
        >>> show(0.020345), show(-12345.6), show(None)
        ('0.0203', '−12,346', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e7:
        return f"{value:.{digits - 1}e}".replace("-", "−")
    decimals = digits - 1 - math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    return f"{value:,.{max(0, decimals)}f}".replace("-", "−")


def show_scale(value: float) -> str:
    """A noise level or probability as it was asked for, without trailing zeros.

    Example:
        >>> show_scale(0.25), show_scale(1.0)
        ('0.25', '1')
    """
    return f"{value:.6g}"


def show_count(value: int) -> str:
    """A whole number with its thousands apart.

    Example:
        >>> show_count(57_772_000)
        '57,772,000'
    """
    return f"{value:,}"


def show_interval(ends: Sequence[float | None] | None, digits: int = 3) -> str:
    """The two ends of an interval; an open end is an infinity sign, no interval is empty.

    Example:
        >>> show_interval([0.1, 0.25]), show_interval([1.0, None]), show_interval(None)
        ('0.100 to 0.250', '1.00 to ∞', '')
    """
    if ends is None or all(end is None for end in ends):
        return ""
    low, high = ends
    return (
        f"{'−∞' if low is None else show(low, digits)} to"
        f" {'∞' if high is None else show(high, digits)}"
    )


def with_interval(number: Estimate, confidence: float, over: str = "") -> str:
    """A number in a sentence, with its interval (over what is drawn) in parentheses.

    Example:
        >>> with_interval({"value": 0.5, "interval": [0.25, 0.75], "reason": None}, 0.9)
        '0.500 (90% interval 0.250 to 0.750)'
    """
    inner = show_interval(number["interval"])
    words = f"{show_share(confidence)} interval{over} {inner}" if inner else NO_INTERVAL
    return f"{show(number['value'])} ({words})"


def show_share(value: float) -> str:
    """A probability as a percentage without needless digits.

    Example:
        >>> show_share(0.95), show_share(0.9650)
        ('95%', '96.5%')
    """
    return f"{100 * value:.4g}%"
