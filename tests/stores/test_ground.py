"""Where the database may lie: a file system that comes over a network is refused before anything is touched."""

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from redrive.errors import BadStoreURL, ConfigError, UnsafeFileSystem
from redrive.stores.sqlite import SqliteStore, ground
from redrive.stores.url import store_from_url
from tests.stores.sqlite_kit import Open, new

LOG = "redrive.stores.sqlite"
NO_DEVICE = "4095:1048575"


@pytest.fixture(autouse=True)
def warned() -> None:
    """As in a new process."""
    ground._warn_allowed.cache_clear()  # noqa: SLF001 - what is said once in a process has to be unsaid
    ground._warn_doubt.cache_clear()  # noqa: SLF001 - as above


Mounts = Callable[..., None]


@pytest.fixture
def mounts(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Mounts:
    listed = tmp_path_factory.mktemp("proc") / "mountinfo"
    monkeypatch.setattr(ground, "MOUNTS", str(listed))

    def mounts(*lines: str) -> None:
        listed.write_text("".join(f"{line}\n" for line in lines))

    return mounts


def mount(kind: str, point: str = "/", device: str = NO_DEVICE, tags: str = "") -> str:
    return f"36 35 {device} / {point} rw,noatime {tags}- {kind} server:/export rw"


def device_of(place: Path) -> str:
    number = place.stat().st_dev
    return f"{os.major(number)}:{os.minor(number)}"


def as_if_on(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ground, "kind_of", lambda path: kind)


# --- which kind ---


@pytest.mark.parametrize("tags", ["", "master:1 ", "shared:7 master:1 "])
def test_the_number_of_the_device_tells(mounts: Mounts, path: Path, tags: str) -> None:
    mounts(mount("ext4"), mount("nfs4", "/elsewhere", device_of(path.parent), tags), mount("xfs", str(path.parent)))
    assert ground.kind_of(str(path)) == "nfs4"


def test_without_such_a_number_the_place_tells(mounts: Mounts, path: Path) -> None:
    """As on btrfs, whose parts have numbers of their own."""
    folder = str(path.parent)
    mounts(mount("xfs", f"{folder}/redrive"), mount("cifs", folder), mount("ext4"))
    assert ground.kind_of(str(path)) == "cifs"


def test_a_place_whose_name_begins_alike_tells_nothing(mounts: Mounts, path: Path) -> None:
    mounts(mount("ext4"), mount("nfs", str(path.parent)[:-1]))
    assert ground.kind_of(str(path)) == "ext4"


def test_of_two_at_one_place_the_last_one_tells(mounts: Mounts, path: Path) -> None:
    mounts(mount("cifs", str(path.parent)), mount("btrfs", str(path.parent)), mount("ext4"))
    assert ground.kind_of(str(path)) == "btrfs"


def test_a_place_may_have_spaces_in_its_name(mounts: Mounts, tmp_path: Path) -> None:
    folder = tmp_path / "my own\tfiles"
    folder.mkdir()
    escaped = str(folder).replace(" ", "\\040").replace("\t", "\\011")
    mounts(mount("ext4"), mount("smb3", escaped))
    assert ground.kind_of(str(folder / "redrive.db")) == "smb3"


def test_lines_that_nobody_can_read_are_passed_over(mounts: Mounts, path: Path) -> None:
    mounts("", "nonsense", "36 35 x:y / / rw - nfs a b", mount("ext4"), "1 2 3:4", "36 35 1:2 / \\777 rw - nfs a b")
    assert ground.kind_of(str(path)) == "ext4"


def test_nothing_is_said_where_the_system_says_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: Path
) -> None:
    monkeypatch.setattr(ground, "MOUNTS", str(tmp_path / "no such file"))
    assert ground.kind_of(str(path)) is None
    ground.check(str(path), "refuse")


def test_nothing_is_said_of_a_folder_that_is_not_there(mounts: Mounts, tmp_path: Path) -> None:
    mounts(mount("nfs"))
    assert ground.kind_of(str(tmp_path / "nowhere" / "redrive.db")) is None


def test_a_link_is_followed_to_the_file(mounts: Mounts, tmp_path: Path) -> None:
    away = tmp_path / "away"
    away.mkdir()
    (tmp_path / "redrive.db").symlink_to(away / "redrive.db")
    mounts(mount("ext4"), mount("nfs", str(away)))
    assert ground.kind_of(str(tmp_path / "redrive.db")) == "nfs"


@pytest.mark.parametrize("mounted", ["file", "folder"])
def test_the_file_and_its_folder_both_count(monkeypatch: pytest.MonkeyPatch, path: Path, mounted: str) -> None:
    """A container may have only the one file from outside; the log lies in the folder."""
    network = str(path if mounted == "file" else path.parent)
    monkeypatch.setattr(ground, "_kind_at", lambda place: "nfs" if place == os.path.realpath(network) else "overlay")
    assert ground.kind_of(str(path)) == "nfs"


def test_this_machine_names_a_kind(path: Path) -> None:
    if not Path(ground.MOUNTS).exists():
        pytest.skip("this system does not tell its mounts")
    assert ground.kind_of(str(path))


# --- what follows ---


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse.sshfs", "fuse.glusterfs"])
async def test_a_network_file_system_is_refused_and_stays_untouched(
    monkeypatch: pytest.MonkeyPatch, path: Path, kind: str
) -> None:
    as_if_on(kind, monkeypatch)
    with pytest.raises(UnsafeFileSystem) as caught:
        await SqliteStore(path).open()
    for part in (str(path), kind, "local disk", "?network=allow", 'SqliteStore(network="allow")'):
        assert part in str(caught.value)
    assert list(path.parent.iterdir()) == []


async def test_a_database_that_is_there_stays_untouched_too(
    opened: Open, monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    await (await opened()).close()
    before = path.stat()
    as_if_on("nfs", monkeypatch)
    with pytest.raises(UnsafeFileSystem):
        await SqliteStore(path).open()
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert [found.name for found in path.parent.iterdir()] == [path.name]


async def test_allowed_it_works_and_is_said_once(
    opened: Open, monkeypatch: pytest.MonkeyPatch, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    as_if_on("nfs4", monkeypatch)
    for _ in range(2):
        store = await opened(network="allow")
        await store.put([new(f"i-{len(caplog.records)}-{id(store)}")])
        await store.close()
    (record,) = [record for record in caplog.records if record.name == LOG]
    assert record.levelno == logging.WARNING
    assert str(path) in record.getMessage()
    assert "nfs4" in record.getMessage()


@pytest.mark.parametrize("kind", ["fuse", "fuse.somethingnew", "virtiofs"])
@pytest.mark.parametrize("network", ["refuse", "allow"])
async def test_where_nobody_can_tell_it_warns_once_and_goes_on(
    opened: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str, network: str
) -> None:
    as_if_on(kind, monkeypatch)
    for _ in range(2):
        await (await opened(network=network)).close()
    texts = [record.getMessage() for record in caplog.records if record.name == LOG]
    assert len(texts) == (1 if network == "refuse" else 0)
    assert all(kind in text and "?network=allow" in text for text in texts)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "overlay", "tmpfs", "apfs", "fuseblk"])
async def test_of_local_disks_nothing_is_said(
    opened: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    as_if_on(kind, monkeypatch)
    await opened()
    assert [record for record in caplog.records if record.name == LOG] == []


async def test_a_url_allows_it_too(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    as_if_on("nfs", monkeypatch)
    with pytest.raises(UnsafeFileSystem):
        await store_from_url(f"sqlite:///{path}").open()
    store = await store_from_url(f"sqlite:///{path}?network=allow").open()
    await store.close()


def test_other_words_are_refused(path: Path) -> None:
    with pytest.raises(BadStoreURL, match=r"store\.network"):
        store_from_url(f"sqlite:///{path}?network=yes")
    with pytest.raises(ConfigError, match="network"):
        SqliteStore(path, network="yes")  # type: ignore[arg-type]


async def test_a_file_with_two_names_is_refused(path: Path, tmp_path: Path) -> None:
    """Each name would have a log of its own."""
    store = await SqliteStore(path).open()
    await store.close()
    os.link(path, tmp_path / "other.db")
    for name in (path, tmp_path / "other.db"):
        with pytest.raises(UnsafeFileSystem, match="2 names"):
            await SqliteStore(name).open()
    allowed = await SqliteStore(path, network="allow").open()
    await allowed.close()
    (tmp_path / "other.db").unlink()
    store = await SqliteStore(path).open()
    await store.close()


async def test_a_file_that_is_mounted_by_itself_is_refused(mounts: Mounts, path: Path) -> None:
    """Its log would lie beside the mount, and be gone with the container."""
    store = await SqliteStore(path).open()
    await store.close()
    mounts(mount("ext4", str(path)))
    with pytest.raises(UnsafeFileSystem, match="mounted by itself") as caught:
        await SqliteStore(path).open()
    assert "mount the folder" in caught.value.hint


async def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.db").mkdir()
    os.mkfifo(tmp_path / "pipe.db")
    for name in (tmp_path / "folder.db", tmp_path / "pipe.db", Path(os.devnull)):
        with pytest.raises(ConfigError, match="is not a file"):
            await SqliteStore(name).open()


@pytest.mark.parametrize(
    ("kind", "level"), [("tmpfs", "process-crash"), ("ramfs", "process-crash"), ("ext4", "power-loss")]
)
async def test_memory_is_not_said_to_survive_the_loss_of_power(
    monkeypatch: pytest.MonkeyPatch, plain_ground: frozenset[str], path: Path, kind: str, level: str
) -> None:
    monkeypatch.setattr(ground, "IN_MEMORY", plain_ground)
    as_if_on(kind, monkeypatch)
    store = await SqliteStore(path, binding="stdlib").open()
    assert store.info().durability == level
    await store.close()
