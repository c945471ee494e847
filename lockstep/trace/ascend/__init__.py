"""What the profilers of Ascend write (torch_npu, msprof, MindStudio), as columns and tables.

The way of a rank's output: `discover` (which files are there, whose they are), `rank_metadata` (settings, process
groups), then one reader a form: `decode`, `tracks`, `links`, `load` (trace_view.json to `TraceColumns`), `kernels` with
`counters` (kernel_details.csv, op_summary), `communication`, and `database` with `database_trace`, `database_kernels`
and `database_communication` (sqlite). `texts` and `tables` hold what the readers share.

Everything here treats its input as hostile: sizes are limited before anything is allocated, a wrong header or schema is
refused by name, rows that make no sense are dropped and counted. Unknown columns and tables are left out.
"""
