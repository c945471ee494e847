"""Evidence as a reading gives it, for tests of what becomes of it."""

from coordinator.decide.machine_evidence import MachineDeviation, MachineEvidence

DEVIATION = MachineDeviation(
    name="q",
    cause="lower_clock",
    title="Lower clock",
    ranks=(2,),
    unit="MHz",
    suspects_before=None,
    suspects_after=1410.0,
    peers_before=1980.0,
    peers_after=1980.0,
    text="<b>slow</b>",
    meaning="Clock",
    advice="Look at it",
    source="NVIDIA DCGM exporter",
    link="https://prometheus.lan/graph?g0.expr=x",
)
EVIDENCE = MachineEvidence(
    read_unix_ns=1_700_000_000_000_000_000, note="1 signal", is_complete=True, deviations=(DEVIATION,)
)
