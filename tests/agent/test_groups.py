"""Groups of a real torch.distributed with its fake backend: any world in one process, nothing is sent."""

import gc
from contextlib import contextmanager

import pytest

from lockstep.agent.groups import ProcessGroups
from lockstep.contracts.domains import unpack_ranks
from lockstep.contracts.errors import LocalError
from lockstep.contracts.records import DOMAIN_KINDS
from lockstep.contracts.ring import OTHER_SLOT

dist = pytest.importorskip("torch.distributed")


@contextmanager
def world(size, rank=0):
    """Make a default group of `size` ranks, this process being `rank`."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415  (after torch)

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        gc.collect()


class Book:
    """Groups, and what they announced last."""

    def __init__(self, **environ):
        self.announced = []
        self.cleared = []
        self.groups = ProcessGroups(self._store, environ, self.cleared.append)

    def _store(self, announced):
        self.announced = announced

    def kind(self, group):
        return DOMAIN_KINDS[self.groups.of(group).kind]

    def ranks(self):
        return [(group["kind"], unpack_ranks(group["ranks"], where="test")) for group in self.announced]


@pytest.fixture
def mesh_of():
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415  (after torch)

    return lambda shape, names=None: init_device_mesh("cpu", shape, mesh_dim_names=names)


def test_device_mesh_dimensions(mesh_of):
    """Dimensions of a mesh in torchtitan's names, flattened ones among them, have their kinds, sizes and ranks."""
    book = Book()
    with world(16, rank=5):
        mesh = mesh_of((2, 2, 2, 2), ("pp", "dp_shard", "cp", "tp"))
        flat = mesh["dp_shard", "cp"]._flatten("dp_shard_cp").get_group()
        kinds = {name: book.kind(mesh.get_group(name)) for name in ("pp", "dp_shard", "cp", "tp")}
        assert kinds == {"pp": "pp", "dp_shard": "dp", "cp": "cp", "tp": "tp"}
        assert (book.kind(flat), book.groups.of(flat).size) == ("dp", 4)
        assert book.kind(dist.group.WORLD) == "world"
        assert book.ranks() == [
            ("pp", (5, 13)),
            ("dp", (1, 5)),
            ("cp", (5, 7)),
            ("tp", (4, 5)),
            ("dp", (1, 3, 5, 7)),
            ("world", tuple(range(16))),
        ]


def test_mesh_without_names_is_not_guessed(mesh_of):
    """Dimensions without names are dp, unless the degrees define them."""
    with world(8, rank=3):
        mesh = mesh_of((4, 2))
        plain, configured = Book(), Book(LOCKSTEP_DEGREES="tp=2,pp=4")
        assert [plain.kind(mesh.get_group(dim)) for dim in (0, 1)] == ["dp", "dp"]
        assert [configured.kind(mesh.get_group(dim)) for dim in (0, 1)] == ["pp", "tp"]


@pytest.mark.parametrize(
    ("tensor", "pipeline", "kind"),
    [
        ([[0], [1], [2], [3]], [[0, 1, 2, 3]], "pp"),
        ([[0, 1, 2, 3]], [[0], [1], [2], [3]], "tp"),
        ([[0, 1], [2, 3]], [[0, 2], [1, 3]], "tp"),
    ],
)
def test_megatrons_model_parallel_group(tensor, pipeline, kind):
    """It spans tensor and pipeline parallelism: with a tensor-parallel size of 1 it is the pipeline's group."""
    book = Book()
    with world(4):
        names = {"TENSOR_MODEL_PARALLEL_GROUP": tensor, "PIPELINE_MODEL_PARALLEL_GROUP": pipeline}
        kept = [dist.new_group(ranks, group_desc=name) for name, groups in names.items() for ranks in groups]
        model = dist.new_group([0, 1, 2, 3], group_desc="MODEL_PARALLEL_GROUP")
        assert book.kind(model) == kind
        assert len(kept) == len(tensor) + len(pipeline)


def test_groups_without_a_description(capsys):
    """A copy of a named group is of its kind, used or not; everybody is the world; degrees that do not fit are reported once."""
    with world(8):
        stages = [dist.new_group([rank, rank + 4], group_desc="PIPELINE_MODEL_PARALLEL_GROUP") for rank in range(4)]
        copy = dist.new_group([0, 4])
        other = dist.new_group([0, 1])
        everybody = dist.new_group(range(8))
        book = Book(LOCKSTEP_DEGREES="tp=3")
        assert [book.kind(group) for group in (copy, other, everybody, stages[0])] == ["pp", "dp", "world", "pp"]
    error_lines = capsys.readouterr().err.splitlines()
    assert len(error_lines) == 1
    assert "LOCKSTEP_DEGREES='tp=3'" in error_lines[0]


def test_group_is_met_once():
    """Later collectives get the same object, and nothing is announced again."""
    book = Book()
    with world(4):
        use = book.groups.of(dist.group.WORLD)
        book.announced = None
        assert book.groups.of(dist.group.WORLD) is use
        assert (use.size, book.announced) == (4, None)


def test_new_group_under_an_old_name_is_another():
    """After a restart inside the process, names come again: kind, size and announcement are those of the new groups."""
    book = Book()
    with world(4):
        first = dist.new_group([0, 1], group_desc="TENSOR_MODEL_PARALLEL_GROUP")
        name = first.group_name
        assert (book.kind(first), book.groups.of(dist.group.WORLD).size) == ("tp", 4)
        del first
    with world(8):
        second = dist.new_group([0, 2, 4, 6], group_desc="DATA_PARALLEL_GROUP")
        assert second.group_name == name
        assert (book.kind(second), book.groups.of(second).size) == ("dp", 4)
        assert book.groups.of(dist.group.WORLD).size == 8
        assert book.ranks() == [("dp", (0, 2, 4, 6)), ("world", tuple(range(8)))]


def test_groups_end_when_training_ends_them():
    """Nothing here keeps a group alive, and of an ended one nothing is kept."""
    book = Book()
    with world(4):
        group = dist.new_group([0, 1], group_desc="mesh_tp")
        book.groups.of(group)
        dist.destroy_process_group(group)
        del group
        gc.collect()
        assert not book.groups.known
        assert not book.groups._endings
        book.groups.of(dist.group.WORLD)
        assert [group["kind"] for group in book.announced] == ["world"]


def test_group_that_torch_has_not_listed():
    """A group in the middle of its own set-up is usable, and met for good later."""
    book = Book()
    with world(4):
        group = dist.new_group([0, 1], group_desc="mesh_pp")
        listed = dist.distributed_c10d._world.pg_group_ranks
        ranks = listed.pop(group)
        assert (book.kind(group), book.announced) == ("pp", [])
        listed[group] = ranks
        assert (book.kind(group), book.ranks()) == ("pp", [("pp", (0, 1))])


def test_too_many_groups_are_reported(capsys):
    """A group that does not fit into the ring is used all the same, and those before it stay announced."""
    stored = []

    def store(groups):
        if len(groups) > 1:
            raise LocalError("value for a shared region: got 70000 bytes, expected at most 65520")
        stored.append(groups)

    groups = ProcessGroups(store, {})
    with world(4):
        groups.of(dist.group.WORLD)
        assert groups.of(dist.new_group([0, 1], group_desc="mesh_tp")).size == 2
    assert [[group["kind"] for group in announced] for announced in stored] == [["world"]]
    assert "is not announced: value for a shared region" in capsys.readouterr().err


def test_each_group_has_an_issue_slot_of_its_own():
    """Slots are reported with the groups; that of a group which ended is cleared before another one gets it."""
    book = Book()
    with world(4):
        first, second = dist.new_group([0, 1]), dist.new_group([0, 2])
        slots = [book.groups.of(group).slot for group in (dist.group.WORLD, first, second)]
        assert slots == [0, 1, 2] == [group["slot"] for group in book.announced]
        dist.destroy_process_group(first)
        del first
        gc.collect()
        third = dist.new_group([0, 3])
        assert book.groups.of(third).slot == 1
        assert book.cleared == [0, 1, 2, 1]
        assert {group["slot"] for group in book.announced} == {0, 1, 2}


def test_sends_and_receives_have_slots_by_peer():
    """Peers are reported as ranks of the job, each direction once, and asking again changes nothing."""
    book = Book()
    with world(8, rank=4):
        pipeline = dist.new_group([2, 4, 6])
        slot = book.groups.of(pipeline).slot
        pairs = [book.groups.pair_slot(pipeline, *pair) for pair in ((True, 2), (False, 0), (True, 2))]
        assert pairs == [slot + 1, slot + 2, slot + 1]
        assert [(g["sends"], g["receives"]) for g in book.announced] == [([[6, slot + 1]], [[2, slot + 2]])]
        del pipeline


def test_groups_beyond_the_slots_are_announced_without_being_counted():
    """When all slots are taken, what remains shares the one that no one reads."""
    book = Book()
    with world(4):
        book.groups._free_slots = [5]
        assert book.groups.of(dist.group.WORLD).slot == 5
        assert book.groups.of(dist.new_group([0, 1])).slot == OTHER_SLOT
        assert len(book.announced) == 2
