"""Tables with a fixed schema: Arrow inside, pandas outside.

A schema gives each column's Arrow type; the unit is in its name (`_ns` integer nanoseconds, `_bytes`, `_ratio`). In
pandas, integers are int64, integers that may be unknown Int64 with <NA>, floats float64, texts string, flags bool.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

Frame = Any
"""A pandas DataFrame, or an Arrow table where one was asked for."""


def required(name: str, kind: pa.DataType) -> pa.Field:
    """Return a column without unknown values."""
    return pa.field(name, kind, nullable=False)


def made(schema: pa.Schema, columns: Mapping[str, Any]) -> pa.Table:
    """Return a table of arrays by column name; None in a list is unknown."""
    return pa.Table.from_arrays([_array(columns[field.name], field.type) for field in schema], schema=schema)


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    return values if isinstance(values, pa.Array) else pa.array(values, kind)


def stacked(schema: pa.Schema, tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of several tables, none of them is an empty table of this schema."""
    return pa.concat_tables([schema.empty_table(), *tables])


def shown(table: pa.Table, *, arrow: bool) -> Frame:
    """Return a table as it is, or as a pandas DataFrame.

    Raises
    ------
    ModuleNotFoundError
        pandas is not installed.
    """
    if arrow:
        return table
    try:
        import pandas as pd  # noqa: PLC0415  (an extra)
    except ModuleNotFoundError as error:
        expected = "pip install 'lockstep-monitor[notebook]', or arrow=True for Arrow tables"
        raise ModuleNotFoundError(f"a DataFrame needs pandas: {expected}", name=error.name) from error
    texts = {pa.string(): pd.StringDtype()}
    nullable = texts | {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
    series = {
        field.name: table.column(field.name).to_pandas(types_mapper=(nullable if field.nullable else texts).get)
        for field in table.schema
    }
    return pd.DataFrame(series)
