"""Numbers as a reader wants them: units, sensible digits, thin spaces, a dash for what is not known.

1 MB is 10⁶ bytes, as in the paper.
"""

from __future__ import annotations

import math

from sottovoce.catalog import METRICS

THIN = "\u202f"
UNKNOWN = "–"
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def plain(text: str) -> str:
    """With ordinary spaces, for terminals.

    >>> plain(percent(80.333))
    '80.3 %'
    """
    return text.replace(THIN, " ")


def measured(mean: float | None, deviation: float | None = None, digits: int = 1) -> str:
    """A mean and its deviation.

    >>> measured(83.61, 7.1), measured(1234.5, digits=0), measured(None)
    ('83.6 ± 7.1', '1,234', '–')
    """
    if mean is None:
        return UNKNOWN
    return f"{mean:,.{digits}f}" + (f" ± {deviation:.{digits}f}" if deviation is not None else "")


def signed(value: float | None, digits: int) -> str:
    """A difference with its sign.

    >>> signed(-1.25, 1), signed(None, 1)
    ('−1.2', '–')
    """
    return UNKNOWN if value is None else f"{'+' if value >= 0 else '−'}{abs(value):.{digits}f}"


def label(metric: str) -> str:
    """What a metric is called.

    >>> label("balanced_accuracy"), label("auroc")
    ('balanced accuracy', 'AUROC')
    """
    return METRICS[metric].phrase if metric in METRICS else metric.replace("_", " ")


def measure(metric: str, value: float | None) -> str:
    """The value of a metric: shares in percent, all else as a number."""
    return percent(value) if metric in METRICS and METRICS[metric].percent else number(value)


def counted(unit: str) -> str:
    """What sizes count: records, or units such as patients.

    >>> counted("record"), counted("patient_id")
    ('records', 'units (patient_id)')
    """
    return "records" if unit == "record" else f"units ({unit})"


def out_of(spent: float | None, target: float | None) -> str:
    """What an account has spent beside what a run was to spend: more, where there were other runs.

    >>> out_of(4.0, 4), out_of(5.99, 4)
    ('of 4', 'over all runs in its ledger, 4 in this one,')
    """
    alone = spent is None or target is None or spent <= target * (1 + 1e-6)
    return f"of {number(target)}" if alone else f"over all runs in its ledger, {number(target)} in this one,"


def percent(value: float | None, digits: int = 1) -> str:
    """A share that is already in percent.

    >>> percent(80.333).replace(THIN, " "), percent(None)
    ('80.3 %', '–')
    """
    return UNKNOWN if value is None else f"{value:.{digits}f}{THIN}%"


def number(value: float | None, digits: int = 3, *, zeros: bool = False) -> str:
    """`digits` significant digits, without trailing zeros unless `zeros`; integers keep all of theirs.

    >>> number(8.0, zeros=True)
    '8.00'
    >>> [number(x).replace(THIN, " ") for x in (0.0152094, 8.0, 7.9984, 121182, 2e-7, 0, math.inf)]
    ['0.0152', '8', '8', '121 182', '2 × 10⁻⁷', '0', '∞']
    """
    if value is None or math.isnan(value):
        return UNKNOWN
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    if abs(value) < 1e-3:
        return _power_of_ten(value, digits)
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}".replace(",", THIN)
    if "." in text and not zeros:
        text = text.rstrip("0").rstrip(".")
    return text.replace("-", "−")


def _power_of_ten(value: float, digits: int) -> str:
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".").replace("-", "−")
    power = "10" + str(int(exponent)).translate(_SUPERSCRIPT)
    return power if mantissa == "1" else f"{mantissa}{THIN}×{THIN}{power}"


def count(many: int, name: str) -> str:
    """A number of things.

    >>> count(1, "gradient"), count(25, "gradient")
    ('1 gradient', '25 gradients')
    """
    return f"{number(many)} {name}" if many == 1 else f"{number(many)} {name}s"


def equals(symbol: str, value: float | None, digits: int = 3) -> str:
    """A symbol and its value, which no line break may part.

    >>> equals("ε", 7.99871, 4)
    'ε\xa0=\xa07.999'
    """
    return f"{symbol}\u00a0=\u00a0{number(value, digits)}"


def data_size(count: float | None) -> str:
    """Bytes with a decimal unit.

    >>> [data_size(x).replace(THIN, " ") for x in (0, 999, 65552, 65_550_000, 2.5e9)]
    ['0 B', '999 B', '65.6 kB', '65.5 MB', '2.5 GB']
    """
    if count is None:
        return UNKNOWN
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{number(count / size)}{THIN}{unit}"
    return f"{number(count)}{THIN}B"


def duration(seconds: float) -> str:
    """
    >>> [duration(x).replace(THIN, " ") for x in (0, 0.034, 41.26, 200, 7260)]
    ['0 s', '0.03 s', '41.3 s', '3 min 20 s', '2 h 1 min']
    """
    if 0 < seconds < 1:
        return f"{seconds:.2f}{THIN}s"
    if seconds < 60:
        return f"{number(seconds)}{THIN}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}{THIN}min {rest}{THIN}s"
    return f"{minutes // 60}{THIN}h {minutes % 60}{THIN}min"
