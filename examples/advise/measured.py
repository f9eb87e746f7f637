"""Makes measured.csv: a year of power at one sensor's panel, in steps of three hours. It is made up, not measured."""

from __future__ import annotations

import math
import random
from datetime import datetime, timedelta, timezone
from pathlib import Path

EASTERN = timezone(timedelta(hours=-5))


def main() -> None:
    chance, sky = random.Random(7), 0.7
    now = datetime(2025, 1, 1, tzinfo=EASTERN)
    lines = ["timestamp,power_mw"]
    for day in range(365):
        season = 0.75 - 0.45 * math.cos(2.0 * math.pi * (day + 10) / 365.0)
        # Clear and dull spells of some days.
        sky = min(1.0, max(0.08, 0.6 * sky + 0.4 * chance.betavariate(1.2, 0.8)))
        for step in range(8):
            height = max(0.0, math.sin(math.pi * (3.0 * step + 1.5 - 6.0) / 12.0))
            lines.append(f"{now.isoformat()},{45.0 * season * sky * height:.2f}")
            now += timedelta(hours=3)
    Path(__file__).with_name("measured.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
