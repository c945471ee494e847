"""Reviews: every pod is allowed, whatever it looks like; what is no review is refused."""

import base64
import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.injection.review import API_VERSION, OUTCOMES, ReviewError, answer_review
from tests.injection.test_pod_patch import ADDITION, make_pod

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = ("metadata", "spec", "labels", "annotations", "containers", "volumes", "env", "command", "name", "volumeMounts")


def review_of(pod, uid="1"):
    """Return the review of a pod that is made."""
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "request": {"uid": uid, "object": pod}}


def test_a_patch_comes_back_with_the_uid():
    """In base64, as the API server expects it."""
    outcomes = Counter()
    answer = answer_review(review_of(make_pod(), "abc"), ADDITION, outcomes)
    assert (answer["apiVersion"], answer["kind"]) == (API_VERSION, "AdmissionReview")
    response = answer["response"]
    assert (response["uid"], response["allowed"], response["patchType"]) == ("abc", True, "JSONPatch")
    assert {one["op"] for one in json.loads(base64.b64decode(response["patch"]))} == {"add"}
    assert outcomes == {"patched": 1}


@pytest.mark.parametrize("review", [None, [], {}, {"apiVersion": "admission.k8s.io/v1beta1", "request": {"uid": "1"}},
                                    {"apiVersion": API_VERSION, "request": {"uid": ""}}])  # fmt: skip
def test_what_is_no_review_is_refused(review):
    """It has no uid to answer."""
    with pytest.raises(ReviewError, match="expected"):
        answer_review(review, ADDITION, Counter())


def change(pod, path, value):
    """Put `value` at a place of the pod that a list of keys leads to, as far as it goes."""
    at = pod
    for key in path[:-1]:
        inner = at.get(key) if isinstance(at, dict) else at[0] if isinstance(at, list) and at else None
        if not isinstance(inner, dict | list):
            break
        at = inner
    if isinstance(at, dict):
        at[path[-1]] = value


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.lists(st.sampled_from(KEYS), min_size=1, max_size=4), JSON), max_size=3), JSON)
def test_every_pod_is_allowed(changes, whole):
    """Changed anywhere by anything, or no pod at all."""
    pod = make_pod()
    for path, value in changes:
        change(pod, path, value)
    for each in (pod, whole):
        outcomes = Counter()
        response = answer_review(review_of(each), ADDITION, outcomes)["response"]
        assert response["allowed"] is True
        assert set(outcomes) <= set(OUTCOMES)
