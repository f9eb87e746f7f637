"""How long advice takes: a thousand devices in ten groups, a year of hours, twenty drawn years.

python benchmarks/advise.py
"""

import time
from dataclasses import replace

import everfed as ef
from everfed.energy.physical import DeviceFleet, DeviceGroup


def thousand_devices() -> DeviceFleet:
    groups = [
        DeviceGroup(name=f"{site} {panel:g}", count=100, site=site, device="phone", panel_wp=panel, battery_wh=10.0,
                    step_s=60.0, spread=0.1)
        for site in ("miami", "greensboro", "sand-point")
        for panel in (0.6, 1.0, 2.0)
    ]  # fmt: skip
    return DeviceFleet((*groups, replace(groups[0], name="more")))


def main() -> None:
    fleet = thousand_devices()
    wall, cpu = time.perf_counter(), time.process_time()
    found = ef.advise(fleet)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    devices = sum(group.simulated for group in found.groups)
    print(f"{devices:,} devices, {found.horizon.rounds:,} rounds: {wall:.0f} s, {cpu:.0f} s of computing")


if __name__ == "__main__":
    main()
