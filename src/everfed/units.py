"""Amounts with their units, as people read them: 1.01 MJ and 2.5 h, where the code counts in joules and seconds."""

from __future__ import annotations

import math

_PREFIXES = {-12: "p", -9: "n", -6: "µ", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P"}
_LENGTHS = ((365 * 86_400.0, "years"), (86_400.0, "days"), (3600.0, "h"), (60.0, "min"))


def amount(value: float, unit: str, digits: int = 3) -> str:
    """A number with the prefix that leaves one to three digits before its point.

    >>> amount(1_009_880, "J"), amount(0.0000332, "W"), amount(-999.9, "J"), amount(0.0, "Wh")
    ('1.01 MJ', '33.2 µW', '-1 kJ', '0 Wh')
    """
    if value == 0.0 or not math.isfinite(value):
        return f"{value:g} {unit}"
    value = float(f"{value:.{digits}g}")  # first, so that 999.9 becomes 1 k
    power = min(max(3 * math.floor(_magnitude(value) / 3), min(_PREFIXES)), max(_PREFIXES))
    return f"{_plain(value / 10.0**power, digits)} {_PREFIXES[power]}{unit}"


def energy(joules: float, digits: int = 3) -> str:
    """
    >>> energy(1_009_880.0)
    '1.01 MJ'
    """
    return amount(joules, "J", digits)


def power(watts: float, digits: int = 3) -> str:
    return amount(watts, "W", digits)


def watt_hours(value: float, digits: int = 3) -> str:
    return amount(value, "Wh", digits)


def data(bytes_: float, digits: int = 3) -> str:
    """In powers of ten: a megabyte has 10^6 bytes.

    >>> data(20_000)
    '20 kB'
    """
    return amount(bytes_, "B", digits) if bytes_ >= 1.0 or bytes_ == 0.0 else f"{bytes_:.{digits}g} B"


def duration(seconds: float, digits: int = 3) -> str:
    """Seconds, or what they are counted in when there are many.

    >>> duration(0.25), duration(90.0), duration(43_200.0), duration(86_400.0), duration(5e9)
    ('250 ms', '1.5 min', '12 h', '1 day', '159 years')
    """
    size = float(f"{seconds:.{digits}g}") if math.isfinite(seconds) else seconds
    for length, name in _LENGTHS:
        if abs(size) >= length * (1.0 - 10.0**-digits):
            text = _plain(seconds / length, digits)
            return f"{text} {name.removesuffix('s') if text == '1' else name}"
    return amount(seconds, "s", digits)


def of_books(value: float, unit: str) -> str:
    """An amount of the energy accounts: joules of devices, or units of a round's energy.

    >>> of_books(1_009_880.0, "J"), of_books(12.5, "units")
    ('1.01 MJ', '12.5')
    """
    return energy(value) if unit == "J" else f"{value:g}"


def _magnitude(value: float) -> int:
    """The exponent of its first digit."""
    return int(f"{value:e}".partition("e")[2])


def _plain(value: float, digits: int) -> str:
    """Without an exponent, and without zeros at its end."""
    text = f"{float(f'{value:.{digits}g}'):,.{max(digits - 1 - _magnitude(value), 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
