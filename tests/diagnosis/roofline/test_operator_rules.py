"""All rules on operators together."""

from lockstep.diagnosis.roofline.operator_rules import evaluate_operators
from tests.diagnosis.roofline.test_classic import H100, gemm
from tests.diagnosis.roofline.test_kernel_rules import made as kernels_of
from tests.trace.made import columns_of


def test_findings_come_by_cost_and_refusals_with_them():
    """Both rooflines answer for themselves; the costliest finding stands first."""
    kernels = kernels_of(("Cast", "AI_CPU", 30), ("TransData", "AI_CORE", 9000))
    causes = evaluate_operators(columns_of(gemm(400_000), metadata=H100), 0, kernels=kernels)
    assert [each.cause for each in causes.findings] == ["private_format", "underutilised", "aicpu"]
    assert [each.rule for each in causes.not_evaluated] == ["component roofline", "unfriendly_shape"]
    assert causes.rooflines.points


def test_a_host_alone_has_nothing_to_evaluate():
    """No device, no vendor's rows: one refusal, no finding, no picture."""
    causes = evaluate_operators(columns_of([("aten::mm",)]), 0)
    assert (causes.findings, causes.rooflines, len(causes.not_evaluated)) == ((), None, 1)
