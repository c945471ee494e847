"""A directory that hands its group on goes on doing so: ranks of other primary groups and the exporter meet in it."""

import stat

from lockstep.agent.ring import make_directory


def test_a_directory_inherits_that_it_hands_its_group_on(tmp_path):
    """Setgid above stays set below, whatever the mode; without it nothing is added."""
    shared, plain = tmp_path / "shared", tmp_path / "plain"
    shared.mkdir()
    shared.chmod(0o3770)
    plain.mkdir()
    for root, expected in ((shared, 0o2770), (plain, 0o770)):
        make_directory(root / "run" / "traces")
        for path in (root / "run", root / "run" / "traces"):
            assert stat.S_IMODE(path.stat().st_mode) == expected
            assert path.stat().st_gid == root.stat().st_gid
