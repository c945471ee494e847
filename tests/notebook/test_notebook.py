"""The notebook of examples/notebooks, cell by cell, and the code of docs/notebooks.md."""

import ast
import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from lockstep.notebook.analyses import AnalysisResult

ROOT = Path(__file__).parents[2]


def run_cell(source, names):
    """Run one cell and return the value of its last line, as a notebook does."""
    body = ast.parse(source).body
    last = ast.Expression(body.pop().value) if body and isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    return None if last is None else eval(compile(last, "cell", "eval"), names)


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """Stand in a copy of what the notebook reads."""
    shutil.copytree(ROOT / "tests" / "analysis" / "recorded", tmp_path / "tests" / "analysis" / "recorded")
    (tmp_path / "build").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_notebook_runs_and_finds_the_slow_loader(workplace):
    """Every code cell runs in order, what it ends with can be shown, and the answer is right."""
    cells = json.loads((ROOT / "examples" / "notebooks" / "traces.ipynb").read_text())["cells"]
    names = {}
    values = [run_cell("".join(cell["source"]), names) for cell in cells if cell["cell_type"] == "code"]
    shown = [value for value in values if value is not None]
    assert len(shown) == len(values) - 1
    assert all(value._repr_html_() for value in shown)
    assert isinstance(shown[0], AnalysisResult)
    assert shown[1].loc[0, "ranks"].tolist() == [2]
    shares = names["shares"]
    assert shares.sum(axis=1).to_numpy() == pytest.approx(1.0)
    assert (workplace / "build" / "events.parquet").stat().st_size > 0


def test_the_page_runs(workplace):
    """The blocks of Python in docs/notebooks.md that need no coordinator, in order."""
    page = (ROOT / "docs" / "notebooks.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names = {}
    for block in blocks:
        if "lockstep.incidents(" not in block and "steps.parquet" not in block:
            run_cell(block, names)
    assert isinstance(names["kernels"], pd.DataFrame)
    assert names["trace"].ranks == (0, 1, 2, 3)
