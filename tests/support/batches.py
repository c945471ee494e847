"""Step batches from columns of numbers, and their columns again."""

import numpy as np

from lockstep.contracts.messages import StepBatch
from lockstep.contracts.rows import RANK, SEPARATOR, names_of


def batch_of_columns(ranks, columns, **envelope):
    """Return the records of `ranks` as one message; `columns` by name, arrays or lists of shape (n_records,)."""
    values = [np.asarray(ranks), *(np.asarray(values) for values in columns.values())]
    return StepBatch(
        count=len(ranks),
        layout=SEPARATOR.join((RANK, *columns)),
        records=np.stack(values, axis=1).astype("<i8").tobytes(),
        **({"run": "job", "node": "n0", "sent_unix_ns": 0} | envelope),
    )


def columns_of(batch):
    """Return the columns of a batch by name, `rank` not among them, arrays of shape (n_records,)."""
    return {name: values for name, values in _all_of(batch).items() if name != RANK}


def ranks_of(batch):
    """Return the rank of each record, array of shape (n_records,)."""
    return _all_of(batch)[RANK]


def with_columns(batch, columns):
    """Return the batch with these columns in the place of its own."""
    envelope = {name: getattr(batch, name) for name in ("run", "node", "sent_unix_ns", "lost")}
    return batch_of_columns(ranks_of(batch), columns, **envelope)


def _all_of(batch):
    names = names_of(batch.layout)
    rows = np.frombuffer(batch.records, dtype="<i8").reshape(batch.count, len(names))
    return {name: rows[:, place].copy() for place, name in enumerate(names)}
