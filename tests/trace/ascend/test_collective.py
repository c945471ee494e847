import json

import pytest

from lockstep.trace.ascend.collective import arguments_of, by_suffix, group_hash
from tests.trace.ascend.recordings import CLUSTER


def test_hashes_are_those_that_the_vendor_wrote():
    """The cluster's file has id and hash of 21 groups."""
    groups = json.loads((CLUSTER / "communication_group.json").read_text())["comm_group_parallel_info"]
    named = [each for each in groups if each["group_id"]]
    assert len(named) == 21
    assert all(group_hash(each["group_id"]) == each["group_name"] for each in named)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hcom_allReduce__868_0_1", ("allreduce", "868", 0)),
        ("hcom_broadcast__483_1", ("broadcast", "483", 1)),
        ("hcom_broadcast__483_1@9350434047717501483", ("broadcast", "9350434047717501483", 1)),
        ("hcom_batchSendRecv__170_12_3", ("batchsendrecv", "170", (2 << 32) + 12)),
        ("hcom_send__822_0", ("send", "822", 0)),
        ("allreduceAicpuKernel", ("allreduceAicpuKernel", "", -1)),
        ("hcom_allReduce__868_" + "9" * 40, ("hcom_allReduce__868_" + "9" * 40, "", -1)),
    ],
)
def test_names_hold_operation_group_and_number(name, expected):
    """Older names have no iteration, some files append the group's hash, and other names stay."""
    arguments = arguments_of(name, count=1, data_type="", group="", groups={}, suffixes={}, group_names={})
    assert (arguments.name, arguments.group, arguments.sequence) == expected


def test_digits_that_two_groups_share_name_neither():
    """A guess between groups would match collectives of different ranks."""
    groups = {"1483": (0, 1), "2483": (2, 3), "5868": (0, 2)}
    assert by_suffix(groups) == {"868": "5868"}
