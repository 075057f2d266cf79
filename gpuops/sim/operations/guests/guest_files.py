"""Files of guests that are real: made, listed, moved, removed and transferred; `services.guest_managers` calls it.

Faults as the vSphere API reference declares them (GuestFileManager). A guest whose processes are not real has no files:
it answers NotSupported.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import vim

from gpuops.sim.guests.guest_files import LARGEST, FileTransfer, follow_in_guest, locate_in_guest, temporary_name
from gpuops.sim.inventory import faults

if TYPE_CHECKING:
    from gpuops.sim.inventory.entities import VmEntity

MOST: Final = 50
"""Files of a listing where the client does not say how many (vSphere API reference, ListFilesInGuest)."""


def fault_of(error: Exception, path: str) -> Exception:
    """The fault that VMware Tools answer with for an error of the system."""
    number = getattr(error, "errno", None)
    fault: Exception
    if isinstance(error, PermissionError):
        fault = vim.fault.GuestPermissionDenied(msg="The user does not have access to it in the guest.")
    elif isinstance(error, FileNotFoundError):
        fault = vim.fault.FileNotFound(msg=f"File {path} was not found", file=path)
    elif isinstance(error, FileExistsError):
        fault = vim.fault.FileAlreadyExists(msg=f"File {path} already exists", file=path)
    elif isinstance(error, NotADirectoryError):
        fault = vim.fault.NotADirectory(msg=f"File {path} is no directory", file=path)
    elif number == errno.ENOTEMPTY:
        fault = vim.fault.DirectoryNotEmpty(msg=f"Directory {path} is not empty", file=path)
    else:
        fault = vim.fault.CannotAccessFile(msg=f"Unable to access file {path}", file=path)
    return fault


def root_of(vm: VmEntity) -> Path:
    """The directory with its files. Raises NotSupported for a guest that has none."""
    if not vm.state.template.real_processes:
        raise faults.not_supported("The guest has no files: its processes are not real in this scenario.")
    root: Path = vm.world.guests.guest(vm.moid).root
    return root


def make_directory(vm: VmEntity, path: str, *, parents: bool) -> None:
    """A directory, with those above it if they are asked for. Raises FileAlreadyExists."""
    with _faults(path):
        locate_in_guest(root_of(vm), path).mkdir(parents=parents)


def delete_file(vm: VmEntity, path: str) -> None:
    """A file or a link. Raises FileNotFound, NotAFile for a directory."""
    with _faults(path):
        place = locate_in_guest(root_of(vm), path)
        if place.is_dir() and not place.is_symlink():
            raise vim.fault.NotAFile(msg=f"{path} is a directory", file=path)
        place.unlink()


def delete_directory(vm: VmEntity, path: str, *, recursive: bool) -> None:
    """A directory, with what is in it if that is asked for. Raises DirectoryNotEmpty."""
    with _faults(path):
        root = root_of(vm)
        place = locate_in_guest(root, path)
        if place == root.resolve():
            raise PermissionError(path)
        if recursive:
            shutil.rmtree(place)
        else:
            place.rmdir()


def move(vm: VmEntity, source: str, target: str, *, overwrite: bool) -> None:
    """A file or a directory to another path. Raises FileAlreadyExists unless it may be overwritten."""
    with _faults(source):
        root = root_of(vm)
        place, goal = locate_in_guest(root, source), locate_in_guest(root, target)
        place.lstat()
        if goal.exists() and not overwrite:
            raise vim.fault.FileAlreadyExists(msg=f"File {target} already exists", file=target)
        place.rename(goal)


def make_temporary_file(vm: VmEntity, prefix: str, suffix: str, directory: str | None) -> str:
    """Make a file with a free name. Return its path on this machine, so that a shell in the guest finds it."""
    with _faults(directory or "/tmp"):  # noqa: S108 - a path of the guest
        place = _free_place(vm, prefix, suffix, directory)
        place.touch(0o600, exist_ok=False)
        return str(place)


def make_temporary_directory(vm: VmEntity, prefix: str, suffix: str, directory: str | None) -> str:
    """Make a directory with a free name. Return its path on this machine."""
    with _faults(directory or "/tmp"):  # noqa: S108 - a path of the guest
        place = _free_place(vm, prefix, suffix, directory)
        place.mkdir(0o700)
        return str(place)


def _free_place(vm: VmEntity, prefix: str, suffix: str, directory: str | None) -> Path:
    above = follow_in_guest(root_of(vm), directory or "/tmp")  # noqa: S108 - a path of the guest
    return above / temporary_name(vm.world.guests.next_number(), prefix, suffix)


def change_attributes(vm: VmEntity, path: str, attributes: Any) -> None:
    """Permissions and times; whose it is cannot be changed here. Raises FileNotFound."""
    with _faults(path):
        place = follow_in_guest(root_of(vm), path)
        status = place.stat()
        times = [attributes.accessTime, attributes.modificationTime]
        if any(times):
            read, written = times
            os.utime(place, (_stamp(read, status.st_atime), _stamp(written, status.st_mtime)))
        permissions = getattr(attributes, "permissions", None)
        if permissions is not None:
            place.chmod(permissions & 0o7777)


def listed(vm: VmEntity, path: str, first: int, most: int | None, pattern: str | None) -> Any:
    """ListFileInfo of a file or of what is in a directory. `pattern` is a regular expression."""
    with _faults(path):
        place = follow_in_guest(root_of(vm), path)
        if place.is_dir():
            names = [(".", place), ("..", place.parent), *((child.name, child) for child in sorted(place.iterdir()))]
        else:
            place.stat()
            names = [(path, place)]
        try:
            name_pattern = re.compile(pattern or ".*")
        except re.error:
            raise faults.wrong_argument("matchPattern") from None
        files = [_file_info(name, file) for name, file in names if name_pattern.search(name)]
    page = files[first : first + (MOST if most is None else most)]
    return vim.vm.guest.FileManager.ListFileInfo(files=page, remaining=max(0, len(files) - first - len(page)))


def download(vm: VmEntity, path: str) -> Any:
    """FileTransferInformation. Raises FileNotFound, NotAFile for a directory, FileTooLarge."""
    with _faults(path):
        place = follow_in_guest(root_of(vm), path)
        status = place.stat()
        if not stat.S_ISREG(status.st_mode):
            raise vim.fault.NotAFile(msg=f"{path} is no file", file=path)
        if status.st_size > LARGEST:
            raise vim.fault.FileTooLarge(
                msg=f"{path} is too large", file=path, datastore="", fileSize=status.st_size, maxFileSize=LARGEST
            )
        url = vm.world.guests.transfers.begin(FileTransfer(place, upload=False))
        return vim.vm.guest.FileManager.FileTransferInformation(
            attributes=_attributes(place, status), size=status.st_size, url=url
        )


def upload(vm: VmEntity, path: str, attributes: Any, size: int, *, overwrite: bool) -> str:
    """The URL to which the content goes. Raises FileAlreadyExists, FileNotFound for a directory that is not there."""
    with _faults(path):
        place = follow_in_guest(root_of(vm), path)
        if place.is_dir() or (place.exists() and not overwrite):
            raise FileExistsError(path)
        place.parent.stat()
        permissions = getattr(attributes, "permissions", None)
        transfer = FileTransfer(place, upload=True, size=size, permissions=permissions, overwrite=overwrite)
        url: str = vm.world.guests.transfers.begin(transfer)
        return url


@contextmanager
def _faults(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise fault_of(error, path) from error


def _file_info(name: str, place: Path) -> Any:
    status = place.lstat()
    kind = "directory" if stat.S_ISDIR(status.st_mode) else "symlink" if stat.S_ISLNK(status.st_mode) else "file"
    return vim.vm.guest.FileManager.FileInfo(
        path=name, type=kind, size=status.st_size, attributes=_attributes(place, status)
    )


def _attributes(place: Path, status: os.stat_result) -> Any:
    return vim.vm.guest.FileManager.PosixFileAttributes(
        modificationTime=datetime.fromtimestamp(int(status.st_mtime), UTC),
        accessTime=datetime.fromtimestamp(int(status.st_atime), UTC),
        symlinkTarget=str(place.readlink()) if place.is_symlink() else "",
        ownerId=status.st_uid,
        groupId=status.st_gid,
        permissions=stat.S_IMODE(status.st_mode),
    )


def _stamp(moment: datetime | None, otherwise: float) -> float:
    return otherwise if moment is None else moment.timestamp()
