from hypothesis import given
from hypothesis import strategies as st

from lockstep.trace.tree import DEPTH_MAX, ROOT, Call, CallTree, TreeBuilder
from tests.trace.traces import without_children_ns

_CALLS = [Call("python", name, False) for name in "abc"] + [Call("python", name, True) for name in "xy"]

_SPANS = st.lists(
    st.tuples(st.integers(0, 200), st.integers(1, 60), st.sampled_from(_CALLS)),
    max_size=40,
)


def _build(spans):
    ordered = sorted(((start, start + length, call) for start, length, call in spans), key=lambda s: (s[0], -s[1]))
    tree = CallTree((0, 300), None)
    TreeBuilder(tree).add(ordered)
    return tree


def _shape(tree):
    """Return {path: (total, self, count)}."""
    paths = []
    for parent, name in zip(tree.parent, tree.name, strict=True):
        paths.append((paths[parent] if parent != ROOT else "") + name)
    return dict(zip(paths, zip(tree.total_ns, without_children_ns(tree), tree.count, strict=True), strict=True))


@given(_SPANS)
def test_children_fit_their_parent_whatever_the_spans(spans):
    """For nested, crossing or equal spans: no children take longer than their parent, the roots fit the window."""
    tree = _build(spans)
    own_ns = without_children_ns(tree)
    roots_ns = sum(total for total, parent in zip(tree.total_ns, tree.parent, strict=True) if parent == ROOT)
    assert all(parent < index for index, parent in enumerate(tree.parent))
    assert all(each >= 0 for each in own_ns)
    assert sum(own_ns) == roots_ns <= tree.window_ns[1] - tree.window_ns[0]
    assert sum(tree.count) == len(spans)


@given(_SPANS)
def test_roots_cover_what_the_spans_cover(spans):
    """Nothing that some span covers is lost from the roots, annotations' heads and tails aside."""
    frames = [span for span in spans if not span[2].is_annotation]
    covered = set().union(*(range(start, start + length) for start, length, _ in frames))
    tree = _build(frames)
    roots_ns = sum(total for total, parent in zip(tree.total_ns, tree.parent, strict=True) if parent == ROOT)
    assert roots_ns <= len(covered)
    if all(tree.count) and not _crossing(frames):
        assert roots_ns == len(covered)


def _crossing(spans):
    return any(a[0] < b[0] < a[0] + a[1] < b[0] + b[1] for a in spans for b in spans)


def test_repeated_calls_merge_by_path():
    """The same call under the same caller is one node, under another caller another."""
    a, b, c, *_ = _CALLS
    tree = _build([(0, 100, a), (10, 20, c), (40, 20, c), (100, 50, b), (110, 10, c)])
    assert _shape(tree) == {"a": (100, 60, 1), "ac": (40, 40, 2), "b": (50, 40, 1), "bc": (10, 10, 1)}


def test_annotations_are_cut_between_the_frames_that_enter_and_leave_them():
    """An annotation that starts inside one frame and ends inside another holds what runs between the two."""
    a, b, c, x, _ = _CALLS
    enter, leave = (10, 10, b), (80, 10, c)
    tree = _build([(0, 100, a), enter, (12, 73, x), (30, 40, b), leave])
    assert _shape(tree) == {
        "a": (100, 20, 1),
        "ab": (10, 10, 1),
        "ax": (60, 20, 1),
        "axb": (40, 40, 1),
        "ac": (10, 10, 1),
    }


def test_a_callee_that_ends_after_its_caller_is_cut():
    """Rounding of the clock makes no caller of a callee."""
    a, b, *_ = _CALLS
    assert _shape(_build([(0, 100, a), (50, 51, b)])) == {"a": (100, 50, 1), "ab": (50, 50, 1)}


def test_depth_is_bounded():
    """Nesting beyond any real stack stays in the caller's self time."""
    a = _CALLS[0]
    tree = CallTree((0, 20_000), None)
    TreeBuilder(tree).add((start, 20_000 - start, a) for start in range(9_000))
    assert len(tree) == DEPTH_MAX
    assert sum(without_children_ns(tree)) == tree.total_ns[0] == 20_000


def test_totals_by_step_are_cut_where_a_step_begins():
    """A loop over both steps belongs to each as far as it lies in it; a call of the second step to that one."""
    loop, early, late = _CALLS[:3]
    tree = CallTree((0, 100), 2)
    builder = TreeBuilder(tree)
    builder.add([(0, 100, loop), (10, 60, early), (20, 30, late)])
    tree.until_ns.append(builder.totals_until_ns(40))
    builder.add([(70, 90, late)])
    assert tree.name == ["a", "b", "c", "c"]
    assert tree.step_totals_ns() == [[40, 30, 10, 0], [60, 20, 0, 20]]
    assert CallTree((0, 100), None).step_totals_ns() == []
