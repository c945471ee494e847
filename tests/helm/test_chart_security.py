"""Pod Security, NetworkPolicies and identity: as tight as each mode allows, each exception by name."""

import base64
import subprocess

import pytest

from lockstep.contracts import topics
from tests.helm.charts import CI, WORKLOADS, ci_values, clear, join_pod, merged, pick, pod_of, render

HOST_PATH, HOST_PID, ROOT = "hostPath", "hostPID", "root init container"
EXCEPTIONS = {
    ("DaemonSet", "default"): {HOST_PATH, ROOT},
    ("DaemonSet", "prepared nodes"): {HOST_PATH},
    ("DaemonSet", "host watch"): {HOST_PATH, HOST_PID, ROOT},
}
"""What the chart's README.md declares; anything else that the restricted profile forbids is a failure."""
VOLUMES = {"configMap", "secret", "emptyDir", "persistentVolumeClaim", "projected", "downwardAPI", "csi", "ephemeral"}


def violations(pod: dict) -> set[str]:
    """Return what the restricted profile of Pod Security forbids in this pod, and a token or a writable root."""
    found = {key for key in ("hostPID", "hostIPC", "hostNetwork") if pod.get(key)}
    found |= {kind for volume in pod.get("volumes", []) for kind in volume if kind != "name" and kind not in VOLUMES}
    outer = pod.get("securityContext", {})
    for container in pod.get("initContainers", []) + pod["containers"]:
        inner = outer | container.get("securityContext", {})
        is_root = not inner.get("runAsNonRoot") or not inner.get("runAsUser")
        allowed = {"NET_BIND_SERVICE"}
        if is_root:
            found.add(ROOT if container["name"] == "prepare" else f"{container['name']} as root")
            allowed = {"CHOWN", "FOWNER"} if container["name"] == "prepare" else allowed
        capabilities = inner.get("capabilities", {})
        wrong = {
            "capabilities": capabilities.get("drop") != ["ALL"] or not set(capabilities.get("add", [])) <= allowed,
            "privileged": bool(inner.get("privileged")),
            "escalation": inner.get("allowPrivilegeEscalation") is not False,
            "writable root": inner.get("readOnlyRootFilesystem") is not True,
            "seccomp": inner.get("seccompProfile", {}).get("type") != "RuntimeDefault",
            "hostPort": any("hostPort" in port for port in container.get("ports", [])),
        }
        found |= {f"{container['name']}: {name}" for name, is_wrong in wrong.items() if is_wrong}
    return found


@pytest.mark.parametrize("path", CI, ids=lambda path: path.stem)
def test_only_the_exporter_over_a_hostpath_is_an_exception(path):
    """All else fits the restricted profile, the test hook included, and no pod has a token."""
    for item in render(ci_values(path)):
        if item["kind"] in WORKLOADS:
            pod = pod_of(item)
            assert pod["automountServiceAccountToken"] is False
            # Variables of services would be read as unknown keys: LOCKSTEP_COORDINATOR_SERVICE_HOST.
            assert pod["enableServiceLinks"] is False
            if item["kind"] != "DaemonSet":
                assert violations(pod) == set(), item["metadata"]["name"]


def test_who_writes_a_temporary_file_has_where_to():
    """The root is read-only: `mosquitto_passwd` gave up there, and no broker came up."""
    items = render({})
    for kind, part, name in (
        ("Deployment", "initContainers", "passwords"),
        ("StatefulSet", "containers", "coordinator"),
        ("DaemonSet", "containers", "exporter"),
    ):
        container = next(one for one in pod_of(pick(items, kind))[part] if one["name"] == name)
        assert "/tmp" in {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}


def test_a_quota_and_a_private_registry_are_met_by_every_container():
    """Each states what it takes and comes from the registry, with the secret for it, in training pods too."""
    items = render(ci_values(next(path for path in CI if path.stem == "hardened-values")))
    pods = [pod_of(item) for item in items if item["kind"] in WORKLOADS]
    pods.append(pod_of(join_pod(items)))
    for pod in pods:
        assert pod["imagePullSecrets"] == [{"name": "own-pull"}]
        for container in pod.get("initContainers", []) + pod["containers"]:
            if container["name"] != "trainer":
                assert container["resources"]["requests"].keys() == {"cpu", "memory"}, container["name"]
                assert container["image"].startswith("registry.example.internal/")


def test_the_exporters_exceptions_are_the_declared_ones():
    """Each appears with the value that asks for it, and not without."""
    settings = {
        "default": {},
        "prepared nodes": {"exporter": {"hostPath": {"prepare": {"enabled": False}}}},
        "host watch": {"exporter": {"hostWatch": {"enabled": True}}},
    }
    for name, values in settings.items():
        assert violations(pod_of(pick(render(values), "DaemonSet"))) == EXCEPTIONS["DaemonSet", name]


def test_the_sidecar_fits_the_restricted_profile():
    """What the chart adds to a training pod breaks nothing there; the trainer itself is the user's."""
    pod = join_pod(render({"exporter": {"mode": "sidecar"}}))["spec"]
    added = pod | {"containers": pod["initContainers"], "initContainers": []}
    assert violations(added) == set()
    names = {container["name"]: container for container in pod["initContainers"]}
    assert names["lockstep-exporter"]["restartPolicy"] == "Always"


def test_a_spool_on_the_node_needs_who_makes_it():
    """Only root can; without `prepare` the exporter would never start."""
    with pytest.raises(Exception, match="prepare"):
        render({"exporter": {"hostPath": {"spool": "/var/lib/lockstep", "prepare": {"enabled": False}}}})


def test_nothing_asks_the_api_server():
    """No role, no binding."""
    kinds = {item["kind"] for path in CI for item in render(ci_values(path))}
    assert not {kind for kind in kinds if "Role" in kind}


def test_the_network_lets_in_and_out_who_has_business():
    """Broker: in from exporters and coordinator, nothing out; services: out to names and broker."""
    items = render({"exporter": {"podMonitor": {"enabled": True}}})
    broker = pick(items, "NetworkPolicy", "-mosquitto")["spec"]
    assert broker["egress"] == []
    (rule,) = broker["ingress"]
    peers = {peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for peer in rule["from"]}
    assert peers == {"exporter", "coordinator"}
    for name in ("exporter", "coordinator"):
        policy = pick(items, "NetworkPolicy", f"-{name}")["spec"]
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        ports = {port["port"] for way in policy["egress"] for port in way["ports"]}
        assert ports == {53, 8883}
        assert "from" not in policy["ingress"][0]
    hook = pick(items, "NetworkPolicy", "-test")["spec"]
    assert hook["podSelector"]["matchLabels"].items() <= pick(items, "Pod", "-test")["metadata"]["labels"].items()
    assert {port["port"] for way in hook["egress"] for port in way["ports"]} == {53, 9856}
    sidecars = pick(render({"exporter": {"mode": "sidecar"}}), "NetworkPolicy", "-mosquitto")["spec"]["ingress"][0]
    assert {
        "namespaceSelector": {},
        "podSelector": {"matchLabels": {"lockstep-exporter": "demo-lockstep"}},
    } in sidecars["from"]


@pytest.mark.parametrize(
    ("config", "port"),
    [
        ({"evidence_prometheus_url": "http://prometheus:9090"}, 9090),
        ({"notify_webhook_url": "https://hooks.example.org:8443/x"}, 8443),
        ({"notify_webhook_url": "http://hooks.example.org/x"}, 80),
        ({"notify_slack_url_file": "/etc/slack/url"}, 443),
    ],
)
def test_the_coordinator_reaches_what_it_is_configured_to_reach(config, port):
    """Prometheus for evidence and the receivers of notifications, by their ports."""
    policy = pick(render({"coordinator": {"config": config}}), "NetworkPolicy", "-coordinator")["spec"]
    assert {way["port"] for rule in policy["egress"] for way in rule["ports"]} == {53, 8883, port}


def test_node_conditions_need_one_rule_and_are_off():
    """By default there is no role and no token; with an API server the coordinator alone may patch the status of nodes."""
    kinds = {item["kind"] for item in render({})}
    assert not kinds & {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
    items = render({"coordinator": {"config": {"kubernetes_api_url": "https://kubernetes.default.svc"}}})
    (role,) = [item for item in items if item["kind"] == "ClusterRole"]
    (binding,) = [item for item in items if item["kind"] == "ClusterRoleBinding"]
    assert role["rules"] == [{"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    with_token = [
        item["metadata"]["name"]
        for item in items
        if item["kind"] in ("DaemonSet", "Deployment", "StatefulSet")
        and item["spec"]["template"]["spec"]["automountServiceAccountToken"]
    ]
    pod = pick(items, "StatefulSet", "-coordinator")
    assert with_token == [pod["metadata"]["name"]]
    (subject,) = binding["subjects"]
    assert subject["name"] == pod["spec"]["template"]["spec"]["serviceAccountName"]
    policy = pick(items, "NetworkPolicy", "-coordinator")["spec"]
    assert {443, 6443} <= {way["port"] for rule in policy["egress"] for way in rule["ports"]}


def test_scrapes_can_be_kept_to_prometheus_and_the_hook_still_passes():
    """Named peers and no one else, but for `helm test`."""
    values = {"networkPolicy": {"allowCoordinatorFrom": [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]}}
    items = render(values)
    (rule,) = pick(items, "NetworkPolicy", "-coordinator")["spec"]["ingress"]
    hook = pick(items, "Pod", "-test")["metadata"]["labels"]
    assert len(rule["from"]) == 2
    assert rule["from"][1]["podSelector"]["matchLabels"].items() <= hook.items()


def test_promtool_takes_the_web_configuration(tmp_path):
    """And probes ask by HTTPS, or only connect where a password is needed."""
    values = ci_values(next(path for path in CI if path.stem == "web-config-values"))
    items = render(values)
    text = pick(items, "Secret", "-web-config")["stringData"]["web-config.yml"]
    file = tmp_path / "web-config.yml"
    file.write_text(text.replace("/etc/lockstep-web-tls", str(tmp_path)))
    certificate = pick(items, "Secret", "-broker-tls")["data"]
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).write_bytes(base64.b64decode(certificate[name]))
    done = subprocess.run(["promtool", "check", "web-config", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    container = pod_of(pick(items, "StatefulSet"))["containers"][0]
    assert "--web.config.file=/etc/lockstep-web/web-config.yml" in container["args"]
    assert "tcpSocket" in container["livenessProbe"]
    open_items = render(merged(values, {"webConfig": {"basicAuth": False}}))
    probe = pod_of(pick(open_items, "StatefulSet"))["containers"][0]["livenessProbe"]
    assert probe["httpGet"]["scheme"] == "HTTPS"
    assert "web.config" not in clear({"items": render({})})


def test_rollouts_go_by_percent():
    """A number of nodes would take hours on a large cluster."""
    assert pick(render({}), "DaemonSet")["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == "10%"


def test_the_access_rules_are_those_of_the_topics():
    """Each topic that a service writes or reads is in its part of the ACL, and nothing else is."""
    read = set(topics.coordinator_filters())
    own = {f"{topics.PREFIX}/coordinator/+/{topics.ALIVE}"}
    orders = (topics.REQUEST, topics.STACK_REQUEST)
    ordered = {f"{topics.PREFIX}/node/+/{topics.ACK}", *(f"{topics.PREFIX}/run/+/{each}/+" for each in orders)}
    assert own < read
    coordinator = {f"topic read {one}" for one in read} | {f"topic write {one}" for one in ordered | own}
    shared = {f"topic write {one}" for one in read - own} | {f"topic read {one}" for one in ordered}
    fixed = {rule.replace("topic", "pattern", 1).replace("/run/+", "/run/@") for rule in shared}
    per_node = {rule.replace("+", "%u").replace("/run/@", "/run/+") for rule in fixed}
    assert access_rules({}) == {"lockstep-exporter": shared, "lockstep-coordinator": coordinator}
    assert access_rules({"nodesSecret": "nodes"}) == {"": per_node, "lockstep-coordinator": coordinator}
    renamed = access_rules({"exporterUsername": "node", "coordinatorUsername": "detector"})
    assert renamed == {"node": shared, "detector": coordinator}


def access_rules(auth):
    """Return the lines of the rendered ACL by user; those for all users under no name."""
    acl = pick(render({"broker": {"auth": auth}}), "ConfigMap", "-mosquitto")["data"]["acl"]
    rules: dict[str, set[str]] = {}
    user = ""
    for line in acl.splitlines():
        words = line.split()
        if words[:1] == ["user"]:
            user = words[1]
        elif words and words[0] != "#":
            rules.setdefault(user, set()).add(line)
    return rules


def test_a_node_reads_its_own_password_only():
    """Of the secret with all of them, one file is mounted, that of its node, and its user is the node."""
    items = render({"broker": {"auth": {"nodesSecret": "nodes"}}})
    pod = pod_of(pick(items, "DaemonSet"))
    mounts = [one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "broker-password"]
    path = "/etc/lockstep-broker/password"
    expression = "$(LOCKSTEP_EXPORTER_NODE)"
    expected = {"name": "broker-password", "mountPath": path, "subPathExpr": expression, "readOnly": True}
    assert mounts == [expected]
    environment = {one["name"]: one["valueFrom"]["fieldRef"]["fieldPath"] for one in pod["containers"][0]["env"]}
    assert environment["LOCKSTEP_EXPORTER_NODE"] == environment["LOCKSTEP_EXPORTER_BROKER_USERNAME"] == "spec.nodeName"
    with pytest.raises(Exception, match="expected daemonset"):
        render({"broker": {"auth": {"nodesSecret": "nodes"}}, "exporter": {"mode": "sidecar"}})
