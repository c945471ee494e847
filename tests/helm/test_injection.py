"""The admission webhook as the chart starts it: asked over its certificate, and its pod started."""

import base64
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
import yaml

from lockstep.contracts.paths import ring_path
from lockstep.injection.addition import read_addition
from lockstep.injection.pod_patch import patch_pod
from tests.helm.charts import CHART, ROOT, ci_values, join_pod, merged, pick, pod_of, render
from tests.helm.containers import LOOPBACK, Node
from tests.helm.kubernetes import NEWEST, POLICIES_SINCE, SIDECARS_SINCE, check
from tests.helm.test_started import copy_agent
from tests.injection.json_patch import apply_patch
from tests.injection.test_review import review_of
from tests.support.servers import WAIT_S, free_port, running, wait_until

VALUES = ci_values(CHART / "ci" / "injection-values.yaml")
POLICY = ci_values(CHART / "ci" / "injection-policy-values.yaml")
HOST = "demo-lockstep-injector.lockstep.svc"
JOB = """
import os, sys, lockstep
assert "/image/path" in sys.path, sys.path
for _ in range(3):
    with lockstep.step():
        pass
"""


def trainer(**own):
    """Return a pod of an Indexed Job as its controller makes it."""
    labels = {"batch.kubernetes.io/job-name": "llm", "lockstep-injection": "enabled"}
    container = {"name": "trainer", "image": "example.org/trainer:1", "command": ["python", "train.py"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "llm-0-", "labels": labels},
        "spec": {"containers": [container], "restartPolicy": "Never", **own},
    }


class Webhook:
    """The injector of a release on loopback; the API server's part is played here."""

    def __init__(self, items, port):
        self.port = port
        configuration = pick(items, "MutatingWebhookConfiguration")
        authority = configuration["webhooks"][0]["clientConfig"]["caBundle"]
        self.context = ssl.create_default_context(cadata=base64.b64decode(authority).decode())
        self.context.check_hostname = False  # it is asked by address here; the name is checked below

    def ask(self, path, body=None):
        """Return (status, body)."""
        request = urllib.request.Request(f"https://{LOOPBACK}:{self.port}{path}", data=body)
        try:
            with urllib.request.urlopen(request, timeout=30, context=self.context) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def admit(self, pod):
        """Return the pod as the API server would store it."""
        status, body = self.ask("/inject", json.dumps(review_of(pod)).encode())
        assert status == 200, body
        response = json.loads(body)["response"]
        assert response["allowed"] is True
        return apply_patch(pod, json.loads(base64.b64decode(response["patch"]))) if "patch" in response else pod


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """Return a machine with a release whose injector listens at a free port."""
    values = merged(VALUES, {"injection": {"port": free_port()}})
    return Node(tmp_path_factory.mktemp("release"), render(values))


@pytest.fixture(scope="module")
def webhook(node):
    item = pick(node.objects, "Deployment", "-injector")
    command, environment = node.container(item)
    port = pod_of(item)["containers"][0]["ports"][0]["containerPort"]
    log = node.directory / "injector.log"
    found = Webhook(node.objects, port)

    def healthy():
        assert process.poll() is None, log.read_text()
        try:
            return found.ask("/-/healthy")[0] == 200
        except OSError:
            return False

    with running([*command, f"--host={LOOPBACK}"], log, environment) as process:
        wait_until(healthy, WAIT_S, "the webhook is healthy")
        yield found


@pytest.mark.servers
def test_its_certificate_is_the_services(node, webhook):
    """The API server asks by the name of the service."""
    context = ssl.create_default_context(
        cadata=ssl.DER_cert_to_PEM_cert(webhook.context.get_ca_certs(binary_form=True)[0])
    )
    with (
        socket.create_connection((LOOPBACK, webhook.port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as connection,
    ):
        assert connection.version() in ("TLSv1.2", "TLSv1.3")
    service = pick(node.objects, "Service", "-injector")["metadata"]
    assert f"{service['name']}.{service['namespace']}.svc" == HOST


@pytest.mark.servers
@pytest.mark.parametrize("path", ["injection", "sidecar", "hardened"])
def test_the_pod_is_valid_and_joins_as_one_by_hand_does(path):
    """For each mode: strictly valid, and with all that the notes have an author copy."""
    items = render(merged(ci_values(CHART / "ci" / f"{path}-values.yaml"), VALUES))
    part = yaml.safe_load(pick(items, "ConfigMap", "-join")["data"]["pod.yaml"])
    pod = apply_patch(trainer(), patch_pod(trainer(), read_addition(part, "pod.yaml")).operations)
    check(pod, NEWEST)
    check(pod, SIDECARS_SINCE)
    by_hand = join_pod(items)["spec"]
    for name in by_hand.keys() - {"containers", "restartPolicy"}:
        assert pod["spec"][name] == by_hand[name], name
    (container,), (copied,) = pod["spec"]["containers"], by_hand["containers"]
    assert container["volumeMounts"] == copied["volumeMounts"]
    assert [one["name"] for one in container["env"]] == [one["name"] for one in copied["env"]]
    assert container["command"][:2] == copied["command"][:2]
    assert next(one["value"] for one in container["env"] if one["name"] == "LOCKSTEP_RUN") == "llm"


@pytest.mark.servers
def test_a_pod_that_is_admitted_trains_with_the_agent(node, webhook, tmp_path):
    """Its container's command as the webhook left it, in an image with a PYTHONPATH of its own."""
    pod = webhook.admit(trainer())
    (tmp_path / "train.py").write_text(JOB)
    container = pod["spec"]["containers"][0]
    agent, rings = copy_agent(tmp_path), tmp_path / "rings"
    rings.mkdir()
    paths = {"/opt/lockstep": agent, "/run/lockstep": rings}
    words = [node._inside(word, paths) for word in container["command"]]
    variables = {one["name"]: node._inside(one["value"], paths) for one in container["env"]}
    # The interpreter below our environment: it has no lockstep but the copied one.
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python").symlink_to(os.path.realpath(sys.executable))
    image = {"PATH": f"{programs}:/usr/bin:/bin", "PYTHONPATH": "/image/path", "RANK": "0", "WORLD_SIZE": "1"}
    done = subprocess.run(
        words, env=image | variables, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert ring_path(rings / "llm", 0).exists()


@pytest.mark.servers
def test_what_is_no_review_is_refused_and_outcomes_are_counted(webhook):
    """By status and by name; the service goes on."""
    assert webhook.ask("/inject", b"{")[0] == 400
    assert webhook.ask("/inject", b"[" * 100_000)[0] == 400
    status, text = webhook.ask("/inject", b"{}")
    assert (status, text) == (400, "body: expected an AdmissionReview of admission.k8s.io/v1 with a request\n")
    assert webhook.ask("/inject", bytes(9 << 20))[0] == 413
    web = {"kind": "Pod", "metadata": {"name": "web"}, "spec": {"containers": [{"name": "web"}]}}
    assert webhook.admit(web) == web
    metrics = webhook.ask("/metrics")[1]
    assert 'lockstep_injector_pods_total{outcome="no_job"} 1.0' in metrics
    assert 'lockstep_injector_pods_total{outcome="patched"}' in metrics


def selectors(values):
    """Return what each way selects pods by: two webhooks, or two bindings of the policy."""
    items = render(values)
    bindings = [one["spec"]["matchResources"] for one in items if one["kind"] == "MutatingAdmissionPolicyBinding"]
    return bindings or pick(items, "MutatingWebhookConfiguration")["webhooks"]


@pytest.mark.parametrize("values", [VALUES, POLICY], ids=["webhook", "policy"])
def test_a_pod_meets_one_of_the_two_selectors(values):
    """By the label of its namespace or by its own, never both; one that is disabled, and the webhook's own, neither."""
    both = selectors(values)
    assert len(both) == 2

    def meets(selector, labels):
        found = [labels.get(one["key"]) in one["values"] for one in selector["matchExpressions"]]
        wanted = [one["operator"] == "In" for one in selector["matchExpressions"]]
        return found == wanted

    def count(namespace, pod):
        return sum(
            meets(each["namespaceSelector"], {"lockstep-injection": namespace})
            and meets(each["objectSelector"], {"lockstep-injection": pod})
            for each in both
        )

    assert [count(*each) for each in (("enabled", None), (None, "enabled"), ("enabled", "enabled"))] == [1, 1, 1]
    assert [count(*each) for each in ((None, None), ("enabled", "disabled"), (None, "disabled"))] == [0, 0, 0]


def test_the_webhook_fails_open_and_is_not_its_own_client():
    """A pod starts without the agent where the webhook does not answer within three seconds."""
    items = render(VALUES)
    for hook in pick(items, "MutatingWebhookConfiguration")["webhooks"]:
        assert (hook["failurePolicy"], hook["timeoutSeconds"], hook["sideEffects"]) == ("Ignore", 3, "None")
    own = pick(items, "Deployment", "-injector")["spec"]["template"]["metadata"]["labels"]
    assert own["lockstep-injection"] == "disabled"


@pytest.mark.parametrize("version", ["1.34", "1.35", POLICIES_SINCE, NEWEST])
def test_the_policy_is_valid_and_needs_no_service(version):
    """Strictly, as beta where it is that; nothing of the webhook is there, and a failure starts the pod as it is."""
    api = "v1" if version in (POLICIES_SINCE, NEWEST) else "v1beta1"
    items = render(merged(POLICY, {"injection": {"policy": {"apiVersion": f"admissionregistration.k8s.io/{api}"}}}))
    found = [item for item in items if item["metadata"]["labels"]["app.kubernetes.io/component"] == "injector"]
    assert sorted(item["kind"] for item in found) == [
        "MutatingAdmissionPolicy",
        *["MutatingAdmissionPolicyBinding"] * 2,
    ]
    for item in found:
        check(item, version)
    policy = pick(found, "MutatingAdmissionPolicy")
    assert policy["spec"]["failurePolicy"] == "Ignore"
    assert {item["spec"].get("policyName", policy["metadata"]["name"]) for item in found} == {
        policy["metadata"]["name"]
    }


def test_literals_of_the_policy_have_one_type():
    """Kubernetes refuses mixed ones, so that every value of the chart's is made dynamic."""
    values = merged(ci_values(CHART / "ci" / "sidecar-values.yaml"), POLICY)
    variables = pick(render(values), "MutatingAdmissionPolicy")["spec"]["variables"]
    texts = [one["expression"] for one in variables if one["name"].endswith("Operations")]
    assert len(texts) == 5
    assert [found for text in texts for found in re.findall(r'"[^"]*": (?!dyn\()', text)] == []


@pytest.mark.parametrize("way", [VALUES, POLICY], ids=["webhook", "policy"])
def test_in_mode_sidecar_only_namespaces_with_its_configuration_are_asked_for(way):
    """A pod elsewhere would wait for a ConfigMap that is not there."""
    values = merged(ci_values(CHART / "ci" / "sidecar-values.yaml"), way)
    for each in selectors(values):
        (names,) = [
            one for one in each["namespaceSelector"]["matchExpressions"] if one["key"].startswith("kubernetes.io")
        ]
        assert names["values"] == ["lockstep", "team-a", "team-b"]


@pytest.mark.parametrize("mode", ["webhook", "policy"])
def test_it_needs_exporters(mode):
    """A pod joins one."""
    with pytest.raises(Exception, match=r"injection\.enabled: got true with exporter\.enabled false"):
        render({"injection": {"enabled": True, "mode": mode}, "exporter": {"enabled": False}})


def test_the_wrapper_keeps_the_images_path():
    """Empty, absent, and with a program whose arguments have spaces."""
    start = ROOT / "lockstep" / "agent" / "site" / "start.sh"
    program = [sys.executable, "-S", "-c", "import os, sys; print(os.environ['PYTHONPATH'], sys.argv[1:])", "a b", ""]
    for own, expected in ((None, str(start.parent)), ("", str(start.parent)), ("/x:/y", f"{start.parent}:/x:/y")):
        environment = {"PATH": os.environ["PATH"]} | ({} if own is None else {"PYTHONPATH": own})
        done = subprocess.run(["sh", start, *program], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout == f"{expected} ['a b', '']\n"


def templates(value):
    """Return the pod templates anywhere in a manifest."""
    if isinstance(value, list):
        return [found for each in value for found in templates(each)]
    if not isinstance(value, dict):
        return []
    if isinstance(value.get("spec"), dict) and "containers" in value["spec"]:
        return [value]
    return [found for each in value.values() for found in templates(each)]


LABELLED = ["clustertrainingruntime", "jobset", "leaderworkerset", "pytorchjob", "rayjob", "volcano"]


@pytest.mark.parametrize("name", LABELLED)
def test_examples_with_the_label_join_without_another_change(name):
    """Each pod template with it is strictly valid once it is patched, and nothing about it needs a warning."""
    part = yaml.safe_load(pick(render(VALUES), "ConfigMap", "-join")["data"]["pod.yaml"])
    example = yaml.safe_load((ROOT / "examples" / "kubernetes" / f"{name}.yaml").read_text())
    check(example, NEWEST)
    found = [one for one in templates(example) if "lockstep-injection" in one.get("metadata", {}).get("labels", {})]
    assert found
    for template in found:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod", **template["metadata"]}}
        pod["spec"] = template["spec"]
        if name == "rayjob":  # as KubeRay starts a worker; its template has no command
            pod["spec"]["containers"][0] |= {"command": ["/bin/bash", "-c", "--"], "args": ["ray start --block"]}
        patch = patch_pod(pod, read_addition(part, "pod.yaml"))
        assert (patch.reason, patch.warnings) == ("", [])
        check(apply_patch(pod, patch.operations), NEWEST)
