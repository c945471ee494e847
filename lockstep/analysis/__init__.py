"""All analyses of captured traces: of one rank, of all ranks, and as the JSON summary of a report.

`rank` analyses one rank's columns; it is light and picklable, for the node that captured the trace and for worker
processes alike. `cluster` compares all ranks and adds advice, `sources` finds traces under paths, `workers` runs one
rank per process, `summary` writes the JSON form. May import contracts, trace, simulator and diagnosis; numpy, and
pyarrow where columns are stored. Nothing here prints, draws or knows the command line.
"""
