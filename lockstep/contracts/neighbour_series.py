"""The series of other exporters and of the Inspector that a node stores for evidence, and how a coordinator gets them.

The names are those that `coordinator/evidence/queries.toml` reads; a test holds the two together.
"""

NEIGHBOURS_PATH = "/api/v1/neighbours"
"""Path on the exporter's HTTP server: returns what it stored between the unix seconds `start` and `end`."""
NEIGHBOURS_MAX_BYTES = 8 << 20
"""Size of a response; 13 minutes of a node with 192 cores and eight devices are 0.3 MB."""
NEIGHBOUR_OUTCOMES = ("answered", "timeout", "unreachable", "refused", "malformed", "too_large")
"""Outcomes of reading another exporter's page: answered, or why all or part of it could not be used."""
ONLY_WITH = {"node_cpu_seconds_total": ("mode", "idle")}
"""Series of which only these label values are read: a node of 192 cores has 1,500 of them."""
INSPECTOR_METRICS = (
    "lockstep_nccl_operations_total",
    "lockstep_nccl_operation_time_seconds_total",
    "lockstep_nccl_operation_bus_bytes_total",
    "lockstep_nccl_last_arrivals_total",
)
"""Series of the exporter itself, which it stores like its neighbours'."""
NEIGHBOUR_METRICS = frozenset(
    {
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
        "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS",
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        "DCGM_FI_DEV_GPU_TEMP",
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
        "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
        "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
        "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
        "DCGM_FI_DEV_POWER_VIOLATION",
        "DCGM_FI_DEV_ROW_REMAP_FAILURE",
        "DCGM_FI_DEV_SM_CLOCK",
        "DCGM_FI_DEV_THERMAL_VIOLATION",
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "DCGM_FI_DEV_XID_ERRORS",
        "gpu_clock",
        "amd_gpu_clock",
        "gpu_ecc_uncorrect_total",
        "amd_gpu_ecc_uncorrect_total",
        "gpu_junction_temperature",
        "amd_gpu_junction_temperature",
        "gpu_violation_hbm_thermal_residency_accumulated",
        "amd_gpu_violation_hbm_thermal_residency_accumulated",
        "gpu_violation_ppt_residency_accumulated",
        "amd_gpu_violation_ppt_residency_accumulated",
        "gpu_violation_processor_hot_residency_accumulated",
        "amd_gpu_violation_processor_hot_residency_accumulated",
        "gpu_violation_socket_thermal_residency_accumulated",
        "amd_gpu_violation_socket_thermal_residency_accumulated",
        "gpu_violation_vr_thermal_residency_accumulated",
        "amd_gpu_violation_vr_thermal_residency_accumulated",
        "node_cpu_seconds_total",
        "node_disk_io_time_seconds_total",
        "node_infiniband_link_downed_total",
        "node_infiniband_link_error_recovery_total",
        "node_infiniband_port_errors_received_total",
        "node_infiniband_port_rcv_errors_total",
        "node_infiniband_port_transmit_wait_total",
        "node_infiniband_rate_bytes_per_second",
        "node_infiniband_symbol_error_total",
        "node_memory_MemAvailable_bytes",
        "node_memory_MemTotal_bytes",
        "node_network_receive_bytes_total",
        "node_network_receive_drop_total",
        "node_network_receive_errs_total",
        "node_network_speed_bytes",
        "node_network_transmit_bytes_total",
        "node_network_transmit_drop_total",
        "node_network_transmit_errs_total",
        "node_pressure_cpu_waiting_seconds_total",
        "node_pressure_io_waiting_seconds_total",
        "node_pressure_memory_waiting_seconds_total",
        "node_vmstat_oom_kill",
        "npu_chip_info_aicore_current_freq",
        "npu_chip_info_hbm_ecc_double_bit_error_cnt",
        "npu_chip_info_health_status",
        "npu_chip_info_temperature",
        "npu_chip_roce_rx_err_pkt_num",
        "npu_chip_roce_tx_err_pkt_num",
        "pcie_replay_count",
        "amd_pcie_replay_count",
        "node_uname_info",
    }
)
