"""Workers that may die: a round's shares, who computes each, and what is done when a worker is lost.

A share is a number below `workers`. Each has a host, a worker process; a host that is lost is replaced by
a new one where the cluster has room, and else by the other hosts, which then have more than one share.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from everfed.errors import ClusterError, counted, warn
from everfed.ray.cluster import WAIT_S, cause, end, lost, ray, room

Call = tuple[str, tuple[Any, ...]]  # a worker's method and its arguments

ROOM_S = 5.0  # how long to look for room for a new worker; the cluster's books lag behind a death
START_S = 300.0  # how long a new worker may take to start, and a cluster without any may take to find room
_MOST_TRIES = 3  # losses of one share at one call, beyond one for each worker; more is no accident


class Pool:
    """Hosts of shares. `ask` puts questions to them and survives their deaths."""

    def __init__(self, make: Callable[[], Any], workers: int, needs: Mapping[str, float]) -> None:
        """make: starts a worker; needs: the resources that one takes."""
        self.make, self.needs = make, dict(needs)
        self.hosts = [make() for _ in range(workers)]
        self.about: list[Any] = []
        begun = [host.begin.remote() for host in self.hosts]
        if len(ray.wait(begun, num_returns=workers, timeout=WAIT_S)[0]) < workers:
            warn(f"waiting for {counted(workers, 'worker')} to start; {room()}.")
        try:
            self.about = ray.get(begun, timeout=START_S)
        except ray.exceptions.GetTimeoutError as error:
            self.close()
            raise ClusterError(
                f"the cluster did not start {workers} workers within {START_S:.0f} s: other jobs may be using it (see "
                "'ray status'). Use fewer workers, or wait."
            ) from error
        except Exception as error:
            self.close()
            if lost(error):
                raise ClusterError(f"a worker died at startup ({_reason(error)}); it may be out of memory.") from error
            raise cause(error) from error

    def ask(self, calls: Mapping[int, Call], recovery: Callable[[int], list[Call]]) -> Iterator[tuple[int, Any]]:
        """Call one method for each of these shares, all at once; yields (share, answer) as they come.

        recovery: the calls that bring a share's state into a new host, when its host was lost. It is asked
            for all shares of that host, those that have answered included.
        """
        tries: Counter[int] = Counter()
        asked = {self._send(share, call): (share, self.hosts[share]) for share, call in calls.items()}
        while asked:
            (ref, *_), _ = ray.wait(list(asked), num_returns=1)
            share, host = asked.pop(ref)
            try:
                answer = ray.get(ref)
            except Exception as error:
                if not lost(error):
                    raise cause(error) from error
                tries[share] += 1
                if tries[share] > _MOST_TRIES + len(self.hosts):  # a machine may have had them all
                    raise ClusterError(
                        f"workers were lost {tries[share]} times on the same work ({_reason(error)}); they may be "
                        "running out of memory. Resume from the last checkpoint with the same command."
                    ) from error
                self._replace(host, recovery, _reason(error))
            else:
                if self.hosts[share] is host:
                    yield share, answer
                    continue
                # Its host has died of another share meanwhile, and the new one has not done this yet.
            asked[self._send(share, calls[share])] = (share, self.hosts[share])

    def _send(self, share: int, call: Call) -> Any:
        method, arguments = call
        return getattr(self.hosts[share], method).remote(*arguments)

    def _replace(self, dead: Any, recovery: Callable[[int], list[Call]], reason: str) -> None:
        """New hosts for the shares of a dead one, with the state they had."""
        shares = [share for share, host in enumerate(self.hosts) if host is dead]
        if not shares:  # noticed before, through another share
            return
        end(dead)  # where it is only out of reach, it must not go on
        others = list({id(host): host for host in self.hosts if host is not dead}.values())
        fresh = self._fresh(len(others))
        told = "a new one replaces it" if fresh else "there is no room for a new one, so the others take over"
        warn(f"a worker was lost ({reason}); {told}, and its work is repeated.")
        for number, share in enumerate(shares):
            self.hosts[share] = fresh or min(others, key=lambda host: sum(h is host for h in self.hosts))
            steps = [self._send(share, call) for call in recovery(share)]
            try:
                ray.get(steps)
            except Exception as error:
                if not lost(error):
                    raise cause(error) from error
                # The successor died as well: this share and those that follow are still the dead one's.
                for left in shares[number + 1 :]:
                    self.hosts[left] = self.hosts[share]
                self._replace(self.hosts[share], recovery, _reason(error))
                return

    def _fresh(self, others: int) -> Any:
        """A new worker, or None where the cluster has no room beside the others; without others, wait for it."""
        until = time.monotonic() + (ROOM_S if others else START_S)
        while not self._room(others, free=True):
            if time.monotonic() > until:
                return self._none(others, "the cluster has no room for another")
            time.sleep(0.2)
        host, until = self.make(), time.monotonic() + START_S
        started = host.begin.remote()
        while not ray.wait([started], timeout=1.0)[0]:
            # A death is not known everywhere at once: room may turn out to have been on a dead machine.
            if time.monotonic() > until or (others and not self._room(others, free=False)):
                end(host)
                return self._none(others, "a new one did not start")
        try:
            ray.get(started)
        except Exception as error:
            end(host)
            if not lost(error):
                raise cause(error) from error
            return self._none(others, _reason(error))
        return host

    def _none(self, others: int, why: str) -> None:
        if not others:
            raise ClusterError(
                f"the last worker was lost, and {why}. Start a node, then resume from the last checkpoint with the "
                "same command."
            )

    def _room(self, others: int, free: bool) -> bool:
        """Whether the cluster is large enough for one more worker, and has that much free now."""
        there, now = ray.cluster_resources(), ray.available_resources() if free else {}
        return all(
            there.get(name, 0.0) > (others + 1) * much - 1e-3 and (not free or now.get(name, 0.0) > much - 1e-3)
            for name, much in self.needs.items()
        )

    def close(self) -> None:
        for host in {id(host): host for host in self.hosts}.values():
            end(host)


def _reason(error: BaseException) -> str:
    """A few words of what Ray says at length."""
    name = type(error).__name__.removesuffix("Error")
    return {
        "ActorDied": "its process or its machine died",
        "ActorUnavailable": "it cannot be reached",
        "OutOfMemory": "its machine ran out of memory",
        "NodeDied": "its machine died",
    }.get(name, name)
