"""Many runs over a cluster: each a Ray task that writes its own folder, done again where its worker was lost."""

from __future__ import annotations

import math
import time
import warnings
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from everfed.errors import ClusterError, EverfedWarning, warn
from everfed.ray.cluster import WAIT_S, Cluster, cause, end, lost, ray, room
from everfed.ray.parcel import Parcel, packed
from everfed.store.lock import is_running
from everfed.studies.sweep import Asked, Planned, Progress, Tell, execute, longest_first

_EVERY_S = 0.5  # how often a run tells how far it is, and asks whether to stop
_DYING_S = 30.0  # how long a lost worker may still hold its run's folder
_MOST_TRIES = 5  # losses of one run; more is no accident


class OnCluster:
    """An executor of `sweep.run_all`: a run takes a CPU, or a part of a GPU.

    jobs: on GPUs, how many runs share one; on CPUs, the most runs side by side. 0: one per GPU, or one per CPU.
    """

    def __init__(self, cluster: Cluster, jobs: int = 0) -> None:
        self.cluster, self.jobs = cluster, jobs

    def __call__(self, runs: Sequence[Planned], options: dict[str, Any], on_progress: Tell, stop: Asked) -> None:
        on_gpu = self.cluster.on_gpu(runs[0].experiment.device)
        needs = {"num_cpus": 1, "num_gpus": 1 / max(1, self.jobs)} if on_gpu else {"num_cpus": 1}
        task = ray.remote(max_retries=0, scheduling_strategy="SPREAD", **needs)(_work)
        # Workers have another folder to stand in: theirs must be whole paths.
        runs = [replace(run, folder=run.folder.resolve()) for run in runs]
        for run in runs:
            run.folder.parent.mkdir(parents=True, exist_ok=True)
        waiting, running, tries = deque(longest_first(runs)), dict[Any, int](), Counter[int]()
        most = len(runs) if on_gpu or not self.jobs else self.jobs
        told, stopping, note_at = [0] * len(runs), False, time.monotonic() + WAIT_S
        post = _post_here()
        try:
            while (waiting and not stopping) or running:
                while waiting and not stopping and len(running) < most:
                    index = waiting.popleft()
                    parcel = packed((runs[index], options), runs[index].experiment.plugins)
                    running[task.remote(index, parcel, post, tries[index])] = index
                done, _ = ray.wait(list(running), timeout=_EVERY_S)
                if stop() and not stopping:
                    stopping = True
                    ray.get(post.stop.remote())
                for progress in ray.get(post.taken.remote()):
                    told[progress.run] = progress.round
                    on_progress(progress)
                    note_at = math.inf
                if time.monotonic() > note_at:
                    warn(f"no run has reported yet; {room()}.")
                    note_at = math.inf
                for ref in done:
                    index = running.pop(ref)
                    if self._ended(ref, runs[index], tries, index):
                        continue
                    waiting.appendleft(index)
                    note = f"{runs[index].label}, seed {runs[index].experiment.seed}: its worker was lost; resuming it "
                    on_progress(Progress(index, told[index], note=note + "elsewhere from its last checkpoint."))
        except BaseException:
            for ref in running:
                ray.cancel(ref, force=True)
            raise
        finally:
            end(post)

    def _ended(self, ref: Any, run: Planned, tries: Counter[int], index: int) -> bool:
        """Whether a run has come to its end; False: its worker died and it must be taken up again."""
        try:
            ray.get(ref)
        except Exception as error:
            if not lost(error):
                raise cause(error) from error
            tries[index] += 1
            if tries[index] > _MOST_TRIES:
                raise ClusterError(
                    f"the worker of '{run.folder.name}' was lost {tries[index]} times ({type(error).__name__}); it may "
                    "be running out of memory. Finished work is kept; resume with the same command."
                ) from error
            return False
        return True


class Post:
    """Where runs leave word of how far they are, and read whether they are to stop."""

    def __init__(self) -> None:
        self.box: list[Progress] = []
        self.stopping = False

    def tell(self, progress: Progress) -> None:
        self.box.append(progress)

    def taken(self) -> list[Progress]:
        taken, self.box = self.box, []
        return taken

    def stop(self) -> None:
        self.stopping = True

    def stopped(self) -> bool:
        return self.stopping


def _post_here() -> Any:
    """On the driver's own machine, so that no other machine's end takes it away."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=here)(Post).remote()


def _work(index: int, parcel: Parcel, post: Any, losses: int) -> None:
    """One run, in a worker process. parcel: the run and its options. losses: workers that died of it before."""
    warnings.simplefilter("ignore", EverfedWarning)  # the driver has said them once
    torch.set_num_threads(1)
    run: Planned
    run, options = parcel.open()
    if not run.folder.parent.is_dir():
        raise ClusterError(
            f"a worker does not see the folder '{run.folder.parent}': the runs' folder must be on storage shared by "
            "all nodes. Choose one with --out."
        )
    until = time.monotonic() + _DYING_S
    while losses and is_running(run.folder) and time.monotonic() < until:
        time.sleep(_EVERY_S)
    asked_at, stopping, told_at = 0.0, False, 0.0

    def stop() -> bool:
        nonlocal asked_at, stopping
        if not stopping and time.monotonic() - asked_at >= _EVERY_S:
            stopping = ray.get(post.stopped.remote())
            asked_at = time.monotonic()
        return stopping

    def tell(progress: Progress) -> None:
        nonlocal told_at
        last = progress.note is not None or progress.round == run.experiment.rounds
        if last or time.monotonic() - told_at >= _EVERY_S:
            sent = post.tell.remote(progress)
            told_at = time.monotonic()
            if last:
                ray.get(sent)  # before this task is seen to end

    if not stop():
        execute(index, run, options, tell, stop)
