"""On which file system a directory lies, by the kernel's table of mounts."""

from pathlib import Path

import pytest

from lockstep.contracts.filesystems import filesystem_of, is_on_disk

TABLE = """\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 0:20 / /dev/shm rw,nosuid - tmpfs tmpfs rw
23 21 0:21 / /dev/shm2 rw - xfs /dev/sdb rw
24 21 0:22 / /with\\040space rw master:3 - nfs4 server:/x rw
25 21 0:23 / /covered rw - tmpfs a rw
26 21 0:24 / /covered rw - overlay b rw
no line of it
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/dev/shm", "tmpfs"),
        ("/dev/shm/lockstep", "tmpfs"),
        ("/dev/shm2/lockstep", "xfs"),
        ("/dev/shmem", "ext4"),
        ("/with space/x", "nfs4"),
        ("/covered/x", "overlay"),
        ("/", "ext4"),
    ],
)
def test_the_mount_next_above_a_path_counts(path, expected):
    """Whole components of the path are compared; of two mounts at one point the later one covers the other."""
    assert filesystem_of(Path(path), TABLE) == expected


def test_links_are_followed(tmp_path):
    """A root that is a link lies where the link leads."""
    link = tmp_path / "root"
    link.symlink_to("/dev/shm/lockstep")
    assert filesystem_of(link, TABLE) == "tmpfs"


@pytest.mark.parametrize("table", ["", "\n", "1 2 3", "a b c d / - ext4"])
def test_a_table_that_shows_nothing(table):
    """Text that is no table is not known."""
    assert filesystem_of(Path("/x"), table) in ("", "ext4")


def test_this_machine():
    """Shared memory is in memory, and /proc, which is no disk's either, does not count as such."""
    assert is_on_disk(Path("/dev/shm/lockstep")) is False
