"""Answers AdmissionReviews (admission.k8s.io/v1): every pod is allowed."""

import base64
import json
import logging
from typing import TYPE_CHECKING, Any

from lockstep.injection.addition import Json, PodAddition
from lockstep.injection.pod_patch import PodPatch, patch_pod

if TYPE_CHECKING:
    from collections import Counter

_log = logging.getLogger(__name__)

API_VERSION = "admission.k8s.io/v1"
OUTCOMES = ("patched", "disabled", "joined", "no job", "no container", "no command", "no pod")
_UID_MAX = 128


class ReviewError(ValueError):
    """The input is not a review of this version, so it cannot be answered."""


def answer_review(review: Any, addition: PodAddition, outcomes: "Counter[str]") -> Json:
    """Return the answer to a review, and count its outcome.

    Raises
    ------
    ReviewError
        `review` has no request with a uid, or has another version.
    """
    request = review.get("request") if isinstance(review, dict) else None
    if not isinstance(request, dict) or review.get("apiVersion") != API_VERSION:
        raise ReviewError(f"body: expected an AdmissionReview of {API_VERSION} with a request")
    uid = request.get("uid")
    if not isinstance(uid, str) or not 0 < len(uid) <= _UID_MAX:
        raise ReviewError(f"request.uid: got {uid!r:.100}, expected 1 to {_UID_MAX} characters")
    patch = _patch(request, addition)
    outcomes[patch.reason or "patched"] += 1
    response: Json = {"uid": uid, "allowed": True}
    if patch.operations:
        response |= {
            "patchType": "JSONPatch",
            "patch": base64.b64encode(json.dumps(patch.operations).encode()).decode(),
        }
    if patch.warnings:
        response["warnings"] = patch.warnings
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}


def _patch(request: Json, addition: PodAddition) -> PodPatch:
    """Return the patch of the pod in a request; for anything else, log it and return an empty patch."""
    pod = request.get("object")
    try:
        if isinstance(pod, dict) and pod.get("kind") == "Pod":
            return patch_pod(pod, addition)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError):
        _log.exception(
            "a pod in namespace %.100r could not be read; it starts without the agent", request.get("namespace")
        )
    return PodPatch(reason="no pod")
