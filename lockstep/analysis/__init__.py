"""All analyses of captured traces together: of one rank, of all ranks, and as the JSON summary of a report.

`rank` (one trace: everything known from one rank's columns; light and picklable, for the node that captured it and for
worker processes alike), `cluster` (all ranks side by side, advice), `sources` (paths to traces), `workers` (one rank
per process), `summary` (the JSON form). May import contracts, trace, simulator and diagnosis; numpy, and pyarrow where
columns are stored. Nothing here prints, draws or knows the command line.
"""
