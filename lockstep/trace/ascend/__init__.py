"""Reads the output of Ascend's profilers (torch_npu, msprof, MindStudio) as columns and tables.

Stages: `discover` (finds a rank's files), `rank_metadata` (settings, process groups), then one reader per format:
`decode`, `tracks`, `links`, `load` (trace_view.json to `TraceColumns`), `kernels` with `counters` (kernel_details.csv,
op_summary), `communication`, and `database` with `database_trace`, `database_kernels` and `database_communication`
(sqlite). `texts` and `tables` are shared by the readers.

Everything here treats its input as hostile: sizes are limited before anything is allocated, a wrong header or schema is
refused by name, invalid rows are dropped and counted. Unknown columns and tables are ignored.
"""
