"""The offline checks of cloudflare's pint that promtool and `promql.py` do not make, over promql-parser's syntax tree.

Each returns complaints, none for what is right. Names of the checks are pint's. What a series is called and labelled is
the catalogue's matter (`promql.py`); here it is what an expression does with its labels.
"""

import re
from collections import Counter
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

import promql_parser as ast

from tests.alerts.promql import RATES, labels_of_series

COMPARISONS = ("==", "!=", ">", "<", ">=", "<=")
SETS = ("and", "or", "unless")
_KEEPING = ("topk", "bottomk", "limitk", "limit_ratio")  # aggregations that return their input's series
_SCALARS = ("time", "scalar", "pi", "vector")


@dataclass(frozen=True)
class Labels:
    """Of an expression's series: labels that each has, and labels that some have."""

    sure: frozenset
    possible: frozenset

    @classmethod
    def of(cls, labels):
        return cls(frozenset(labels), frozenset(labels))

    def but(self, change):
        """Return both sets changed."""
        return Labels(frozenset(change(self.sure)), frozenset(change(self.possible)))


def parse(text):
    """Return the tree; raises ValueError at what is no PromQL."""
    return ast.parse(text)


def walk(node):
    """Yield a node and all below it."""
    yield node
    for child in _children(node):
        yield from walk(child)


def _children(node):
    match node:
        case ast.BinaryExpr():
            return [node.lhs, node.rhs]
        case ast.AggregateExpr() | ast.UnaryExpr() | ast.ParenExpr() | ast.SubqueryExpr():
            return [node.expr]
        case ast.Call():
            return list(node.args)
        case ast.MatrixSelector():
            return [node.vector_selector]
    return []


def labels_of(node):
    """Return the labels of an expression's series, None for a number."""
    match node:
        case ast.VectorSelector():
            return Labels.of(labels_of_series(node.name))
        case ast.BinaryExpr():
            return _of_binary(node)
        case ast.AggregateExpr():
            return _of_aggregation(node)
        case ast.Call():
            return _of_call(node)
        case ast.NumberLiteral() | ast.StringLiteral():
            return None
    (child,) = _children(node)
    return labels_of(child)


def _of_binary(node):
    left, right, operator = labels_of(node.lhs), labels_of(node.rhs), str(node.op)
    if left is None or right is None:
        return left or right
    if operator == "or":
        return Labels(left.sure & right.sure, left.possible | right.possible)
    if operator in SETS or node.modifier is None:
        return left
    matching, cardinality = node.modifier.matching, str(node.modifier.card)
    if "OneToOne" not in cardinality:
        many = left if "ManyToOne" in cardinality else right
        return many.but(lambda labels: labels | set(node.modifier.group_labels or ()))
    if matching is None:
        return left
    named = set(matching.labels)
    on = "Include" in str(matching.type)
    return left.but(lambda labels: labels & named if on else labels - named)


def _of_aggregation(node):
    inner, modifier = labels_of(node.expr), node.modifier
    if str(node.op) in _KEEPING:
        return inner
    added = {node.param.val} if str(node.op) == "count_values" else set()
    if modifier is None:
        return Labels.of(added)
    named = set(modifier.labels)
    if "Without" in str(modifier.type):
        return inner.but(lambda labels: labels - named | added)
    return inner.but(lambda labels: labels & named | added)


def _of_call(node):
    name = node.func.name
    if name in _SCALARS:
        return Labels.of(()) if name == "vector" else None
    if name in ("absent", "absent_over_time"):
        return Labels.of([m.name for m in _selector(node).matchers.matchers if str(m.op) == "MatchOp.Equal"])
    inner = next((found for found in map(labels_of, node.args) if found is not None), None)
    if inner is not None and name == "label_replace":
        return inner.but(lambda labels: labels | {node.args[1].val})
    if inner is not None and name == "histogram_quantile":
        return inner.but(lambda labels: labels - {"le"})
    return inner


def _selector(node):
    return next(each for each in walk(node) if isinstance(each, ast.VectorSelector))


def vector_matching(text):
    """promql/vector_matching: both sides have the labels matched on, and one series at most for each match."""
    found = []
    for node in walk(parse(text)):
        if isinstance(node, ast.BinaryExpr):
            left, right = labels_of(node.lhs), labels_of(node.rhs)
            if left is not None and right is not None:
                found += _matching_problems(node, left, right)
    return found


def _matching_problems(node, left, right):
    operator, modifier = str(node.op), node.modifier
    matching = modifier.matching if modifier is not None else None
    if matching is None:
        differ = left.possible ^ right.possible
        return [f"{operator}: only one side has {sorted(differ)}"] if differ and operator != "or" else []
    named = set(matching.labels)
    if "Exclude" in str(matching.type):
        differ = (left.possible ^ right.possible) - named
        return [f"{operator}: only one side has {sorted(differ)}"] if differ else []
    missing = [
        f"{operator} on ({label}): the {side} side never has it"
        for label in sorted(named)
        for side, labels in (("left", left), ("right", right))
        if label not in labels.possible
    ]
    if operator in SETS:
        return missing
    cardinality = str(modifier.card)
    ones = [] if "OneToMany" in cardinality else [("right", right, node.rhs)]
    ones += [] if "ManyToOne" in cardinality else [("left", left, node.lhs)]
    # Labels of an info series repeat what the matched labels already decide.
    missing += [
        f"{operator} on ({', '.join(sorted(named))}): several series of the {side} side by {sorted(labels.sure - named)}"
        for side, labels, side_node in ones
        if labels.sure - named and not any(_is_of_one(each) for each in walk(side_node))
    ]
    return missing


def _is_of_one(node):
    return isinstance(node, ast.VectorSelector) and node.name.endswith(("_info", "_peak_flops_per_second"))


def comparison(text):
    """alerts/comparison: an alert whose expression has no condition fires as long as its series exist."""
    return [] if _is_conditional(parse(text)) else ["no condition: it fires whenever there is data"]


def _is_conditional(node):
    if isinstance(node, ast.BinaryExpr):
        left, right, operator = _is_conditional(node.lhs), _is_conditional(node.rhs), str(node.op)
        if operator in COMPARISONS:
            return node.modifier is None or not node.modifier.return_bool
        if operator == "or":
            return left and right
        return left if operator == "unless" else left or right
    if isinstance(node, ast.Call) and node.func.name.startswith("absent"):
        return True
    return any(_is_conditional(child) for child in _children(node))


def rate(text, scrape_seconds):
    """promql/rate: ranges of rates hold two scrapes at least, and a rate stands inside of every sum."""
    found = []
    for node in walk(parse(text)):
        if isinstance(node, ast.Call) and node.func.name in RATES:
            (inner,) = node.args
            if isinstance(inner, ast.SubqueryExpr):
                found.append(f"{node.func.name} of a sum: a counter that begins again would fall")
            elif inner.range.total_seconds() < 2 * scrape_seconds:
                found.append(f"{node.func.name} over {inner.range}: not two scrapes")
    return found


def absent(text, for_seconds, scrape_seconds):
    """alerts/absent: absence waits for two scrapes, asks for an exact series and is not of a run, which may end."""
    found = []
    for node in walk(parse(text)):
        if isinstance(node, ast.Call) and node.func.name.startswith("absent"):
            selector = _selector(node)
            if for_seconds < 2 * scrape_seconds:
                found.append(f"absent for {for_seconds} s: one lost scrape fires it")
            if not any(str(m.op) == "MatchOp.Equal" for m in selector.matchers.matchers):
                found.append("absent without an exact label: the alert says nothing of what is absent")
            if "run" in labels_of_series(selector.name):
                found.append(f"absent of {selector.name}: a run that ended is absent as well")
    return found


def template(text, expr):
    """alerts/template: a label in a text is one that the result has; one that only some have is asked for first."""
    labels = labels_of(parse(expr))
    found = []
    for label in sorted(set(re.findall(r"\$labels\.(\w+)", text))):
        if label not in labels.possible:
            found.append(f"$labels.{label}: the result never has it")
        elif label not in labels.sure and not re.search(
            rf"{{{{ (if|with) \$labels\.{label} }}}}|\(or \$labels\.{label} ", text
        ):
            found.append(f"$labels.{label}: not every result has it, and the text does not ask")
    queries = re.findall(r"(?:printf|query) `([^`]*)`", text)
    offered = {label for query in queries for label in _offered(query)}
    used = set(re.findall(r"\.Labels\.(\w+)|label `(\w+)`", text))
    return found + [f"{name}: no query here has it" for pair in used for name in pair if name and name not in offered]


def order(text):
    """No list in an annotation stands in the order of a map, for it would change at each evaluation: sorted by a label.

    Rates are reported by size instead, the greatest first (`topk`, `sort_desc`), for two are hardly ever equal.
    """
    found = []
    for asked in re.finditer(
        r"{{ (range|with) ([^}]*(?:\{[^}]*\}[^}]*)*query[^}]*(?:\{[^}]*\}[^}]*)*) }}(.*?){{ end }}", text
    ):
        word, query, body = asked.groups()
        listed = word == "range" or "label `" in body or "{{ range . }}" in body
        if listed and not re.search(r"sortByLabel|sort_desc\(|topk\(\d+, .*rate\(", query):
            found.append(f"{query}: in no order")
    return found


def _offered(query):
    labels = labels_of(parse(query.replace("%s", "x")))
    return labels.possible if labels is not None else ()


def duplicates(rules):
    """rule/duplicate: no two rules of one name, and no two recorded series of one expression."""
    names = Counter(rule.get("alert") or rule["record"] for rule in rules)
    trees = Counter(parse(rule["expr"]).prettify() for rule in rules if "record" in rule)
    found = [f"{name}: {count} rules" for name, count in names.items() if count > 1]
    return found + [f"recorded {count} times: {text}" for text, count in trees.items() if count > 1]


def links(annotations, runbooks, boards):
    """rule/link: the runbook is a file, each dashboard exists and has the variables that the link sets.

    `runbooks` are names of files, `boards` variables by uid.
    """
    found = []
    page = urlsplit(annotations["runbook_url"]).path.rpartition("/")[2]
    if page not in runbooks:
        found.append(f"runbook {page}: no such file")
    for address in re.split("{{ else }}", annotations["dashboard_url"]):
        board = urlsplit("http" + re.sub(r"{{.*?}}", "x", address.split("http", 1)[-1]))
        uid = board.path.rpartition("/d/")[2]
        if uid not in boards:
            found.append(f"dashboard {uid}: no such uid")
            continue
        given = {name.removeprefix("var-") for name in parse_qs(board.query) if name.startswith("var-")}
        found += [f"dashboard {uid}: has no variable {name}" for name in sorted(given - boards[uid])]
    return found
