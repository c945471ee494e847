"""The chart renders, strictly valid, for every file of ci/ and for mixtures of them."""

import json
import random
import re

import jsonschema
import pytest
import yaml
from helm_python.chart import lint

from tests.helm.charts import CHART, CI, WORKLOADS, ci_values, clear, join_pod, merged, pick, pod_of, render
from tests.helm.kubernetes import NEWEST, OLDEST, POLICIES_SINCE, SIDECARS_SINCE, check


def check_all(items, version):
    """Every object is valid, and its name not too long."""
    for item in items:
        check(item, version)
        assert len(item["metadata"]["name"]) <= 63


@pytest.mark.parametrize("path", CI, ids=lambda path: path.stem)
def test_every_feature_is_valid_on_oldest_and_newest(path):
    """Objects of each file of ci/, and the training pod that it describes."""
    items = render(ci_values(path))
    has_policy = any(item["kind"] == "MutatingAdmissionPolicy" for item in items)
    check_all(items, POLICIES_SINCE if has_policy else OLDEST)
    check_all(items, NEWEST)
    pod = join_pod(items)
    check(pod, NEWEST)
    check(pod, SIDECARS_SINCE)


@pytest.mark.parametrize("seed", range(6))
def test_features_mix(seed):
    """Files of ci/ laid over each other at random stay valid."""
    dice = random.Random(seed)
    chosen = dice.sample(CI, 3)
    values = merged(*(ci_values(path) for path in chosen))
    if not values.get("broker", {}).get("mosquitto", {}).get("enabled", True):
        values["broker"]["external"] = {"host": "mqtt.example.internal"}
    for switch in ("exporter", "coordinator", "networkPolicy", "tests"):
        values = merged(values, {switch: {"enabled": dice.random() < 0.7}})
    values = merged(values, {"serviceAccount": {"create": dice.random() < 0.5}})
    if not values["exporter"]["enabled"]:  # refused together, by name
        values = merged(values, {"injection": {"enabled": False}})
    check_all(render(values), NEWEST)


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_lint_is_strict_and_silent(version):
    """Helm finds nothing above information."""
    report = lint(str(CHART), {}, strict=True, kube_version=f"v{version}.0")
    assert report["errors"] == []
    assert [message for message in report["messages"] if message["severity"] > 1] == []


def test_an_unknown_field_would_be_found():
    """The check itself: a misspelt field of Kubernetes or of the operator fails."""
    items = render({"exporter": {"podMonitor": {"enabled": True}}})
    pod_of(pick(items, "DaemonSet"))["hostPid"] = True
    with pytest.raises(jsonschema.ValidationError):
        check(pick(items, "DaemonSet"), NEWEST)
    pick(items, "PodMonitor")["spec"]["sampleLimits"] = 1
    with pytest.raises(jsonschema.ValidationError):
        check(pick(items, "PodMonitor"), NEWEST)
    job = yaml.safe_load((CHART.parents[1] / "examples" / "kubernetes" / "pytorchjob.yaml").read_text())
    check(job, NEWEST)
    container = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    for place, name in ((job["spec"], "nprocPerNodes"), (container, "commands")):
        place[name] = ["8"]
        with pytest.raises(jsonschema.ValidationError, match=name):
            check(job, NEWEST)
        del place[name]


def test_two_releases_in_one_namespace_do_not_clash():
    """No object of two releases has the same name, and no selector of one finds pods of the other."""
    features = merged(*(ci_values(path) for path in CI if path.stem in ("monitoring-values", "web-config-values")))
    first, second = render(features, name="alpha"), render(features, name="beta")
    identity = {(item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]) for item in first}
    assert len(identity) == len(first)
    assert not identity & {(i["kind"], i["metadata"].get("namespace"), i["metadata"]["name"]) for i in second}
    pods = [item["spec"]["template"]["metadata"]["labels"] for item in second if "template" in item.get("spec", {})]
    for item in first:
        spec = item.get("spec", {})
        selector = spec.get("selector", spec.get("podSelector"))
        if selector is not None:
            wanted = selector.get("matchLabels", selector)
            assert not any(wanted.items() <= labels.items() for labels in pods), clear(item)


def test_names_stay_short_and_can_be_given():
    """A long release's objects keep names that Kubernetes takes; fullnameOverride and namespaceOverride win."""
    check_all(render({}, name="a" * 53), NEWEST)
    # A release's name may have dots, which a Service's may not.
    assert all(item["metadata"]["name"].startswith("team-a-lockstep") for item in render({}, name="team.a"))
    items = render({"fullnameOverride": "steps", "namespaceOverride": "elsewhere"})
    assert {item["metadata"]["namespace"] for item in items} == {"elsewhere"}
    assert all(item["metadata"]["name"].startswith("steps") for item in items)


def test_selectors_hold_no_version():
    """They cannot change at an upgrade."""
    for item in render({}):
        selector = item.get("spec", {}).get("selector", {})
        text = clear(selector)
        assert "version" not in text
        assert "helm.sh/chart" not in text


def test_the_dashboards_are_those_that_are_generated():
    """One ConfigMap each, the file unchanged, with the label that Grafana's sidecar looks for, below a mebibyte."""
    boards = [item for item in render({"dashboards": {"enabled": True}}) if "-dashboard-" in item["metadata"]["name"]]
    sources = {path.name: path.read_text() for path in (CHART.parents[1] / "dashboards" / "rendered").glob("*.json")}
    assert len(boards) == len(sources) > 0
    for item in boards:
        ((name, text),) = item["data"].items()
        assert json.loads(text) == json.loads(sources[name.removeprefix("lockstep-")])
        assert len(text) < 1 << 20
        assert item["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert item["metadata"]["annotations"]["grafana_folder"] == "Lockstep"


def test_monitors_name_the_jobs_of_the_rules():
    """The label `job` that rules select is the one that both monitors set."""
    values = ci_values(CHART / "ci" / "monitoring-values.yaml") | {
        "monitoring": {"exporterJob": "nodes", "coordinatorJob": "detector"}
    }
    items = render(values)
    jobs = []
    for kind, key in (("PodMonitor", "podMetricsEndpoints"), ("ServiceMonitor", "endpoints")):
        (endpoint,) = pick(items, kind)["spec"][key]
        jobs.append(endpoint["relabelings"][0])
    assert jobs == [{"targetLabel": "job", "replacement": "nodes"}, {"targetLabel": "job", "replacement": "detector"}]
    rules = clear(pick(items, "PrometheusRule"))
    assert 'job=\\"nodes\\"' in rules
    assert 'job=\\"detector\\"' in rules
    assert "lockstep-exporter" not in rules


@pytest.mark.parametrize(("service", "monitor"), [("exporter", "podMonitor"), ("coordinator", "serviceMonitor")])
def test_a_timeout_beyond_the_interval_is_refused(service, monitor):
    """The operator would drop such a monitor with a line in its own log, and no one would be scraped."""
    with pytest.raises(Exception, match="scrapeTimeout: got 10s, expected at most the interval, 5s"):
        render({service: {monitor: {"enabled": True, "interval": "5s"}}})
    for interval, timeout in (("5s", "5s"), ("1m", "10s"), ("", "10s"), ("5s", "")):
        assert render({service: {monitor: {"enabled": True, "interval": interval, "scrapeTimeout": timeout}}})


def test_both_brokers_at_once_are_refused():
    """And none at all: reported at the install, not by exporters that never connect."""
    for broker in ({"external": {"host": "mqtt"}}, {"mosquitto": {"enabled": False}}):
        with pytest.raises(Exception, match=r"broker.*expected"):
            render({"broker": broker})


def test_a_broker_elsewhere_with_tls_needs_its_authority():
    """Without the secret's name every pod would wait for one that no one makes."""
    elsewhere = {"mosquitto": {"enabled": False}, "external": {"host": "mqtt"}}
    with pytest.raises(Exception, match="existingAuthoritySecret: got '', expected"):
        render({"broker": elsewhere})
    for tls in ({"enabled": False}, {"existingAuthoritySecret": "ours"}, {"existingSecret": "ours"}):
        assert render({"broker": elsewhere | {"tls": tls}})


def test_a_client_certificate_needs_tls():
    """A certificate that would never be shown is a mistake in the values."""
    with pytest.raises(Exception, match=r"broker\.tls\.enabled: got false, expected true"):
        render({"broker": {"tls": {"enabled": False}, "clientCertificate": {"exporterSecret": "ours"}}})


@pytest.mark.parametrize(
    ("kind", "service", "secret"),
    [("DaemonSet", "exporter", "mqtt-exporter"), ("StatefulSet", "coordinator", "mqtt-coordinator")],
)
def test_each_service_shows_the_broker_its_own_certificate(kind, service, secret):
    """The files that the configuration names are those that are mounted, from that service's secret."""
    items = render(ci_values(CHART / "ci" / "external-broker-values.yaml"))
    pod = pod_of(pick(items, kind))
    (volume,) = [one["secret"] for one in pod["volumes"] if one["name"] == "broker-client"]
    (mount,) = [one["mountPath"] for one in pod["containers"][0]["volumeMounts"] if one["name"] == "broker-client"]
    config = yaml.safe_load(pick(items, "ConfigMap", f"-{service}")["data"][f"{service}.yaml"])
    assert volume["secretName"] == secret
    assert {f"{mount}/{item['path']}" for item in volume["items"]} == {
        config["broker_cert_file"],
        config["broker_key_file"],
    }


def test_a_password_reaches_only_who_uses_it():
    """Trainers' namespaces get the exporter's password and the authority, never the coordinator's or the broker's key."""
    items = render(ci_values(CHART / "ci" / "sidecar-values.yaml"))
    elsewhere = [item for item in items if item["metadata"]["namespace"] == "team-a"]
    assert sorted(item["kind"] for item in elsewhere) == ["ConfigMap", "Secret", "Secret"]
    secrets = {tuple(item["data"]) for item in elsewhere if item["kind"] == "Secret"}
    assert secrets == {("exporter-password",), ("ca.crt",)}
    volumes = {v["name"]: v for v in pod_of(pick(items, "StatefulSet"))["volumes"]}
    assert [item["key"] for item in volumes["broker-password"]["secret"]["items"]] == ["coordinator-password"]


def test_images_by_registry_tag_and_digest():
    """A digest wins over the tag, the global registry over none."""
    items = render(ci_values(CHART / "ci" / "extras-values.yaml"))
    exporter = pod_of(pick(items, "DaemonSet"))["containers"][0]["image"]
    assert exporter.startswith("registry.example.internal/lockstep/exporter@sha256:")
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    coordinator = pod_of(pick(items, "StatefulSet"))["containers"][0]["image"]
    assert coordinator == f"registry.example.internal/lockstep/coordinator:{version}"


@pytest.mark.parametrize("mode", ["daemonset", "sidecar"])
def test_an_exporter_gives_discovery_the_address_of_its_pod(mode):
    """Its host name is unknown outside the pod; an address that is reported in the values wins over the pod's."""

    def advertised(values):
        items = render(merged({"exporter": {"mode": mode}}, values))
        pod = (
            join_pod(items)["spec"]["initContainers"]
            if mode == "sidecar"
            else pod_of(pick(items, "DaemonSet"))["containers"]
        )
        (found,) = [one["env"] for one in pod if one["name"].endswith("exporter")]
        return [one["valueFrom"] for one in found if one["name"] == "LOCKSTEP_EXPORTER_ADVERTISE_ADDRESS"]

    assert advertised({}) == [{"fieldRef": {"fieldPath": "status.podIP"}}]
    assert advertised({"exporter": {"config": {"advertise_address": "gate.example:9855"}}}) == []


CHANGES = [
    {"broker": {"clientCertificate": {"exporterSecret": "ours"}}},
    {"broker": {"clientCertificate": {"coordinatorSecret": "ours"}}},
    {"broker": {"auth": {"coordinatorUsername": "detector"}}},
    {"broker": {"auth": {"exporterUsername": "node"}}},
    {"broker": {"mosquitto": {"port": 2883}}},
    {"broker": {"mosquitto": {"maxPacketBytes": 1 << 24}}},
    {"broker": {"mosquitto": {"extraConfig": "max_connections 20000"}}},
    {"coordinator": {"apiToken": {"enabled": False}}},
    {"coordinator": {"config": {"runs_max": 7}}},
    {"exporter": {"config": {"batch_seconds": 2}}},
    {"coordinator": {"policy": {"excess.floor_ratio": 0.03}}},
]


@pytest.mark.parametrize("values", CHANGES, ids=lambda values: "-".join(clear(values).split('"')[1::2]))
def test_a_changed_configuration_is_a_new_pod(values):
    """Of each workload whose files differ, and of no other; thresholds are read again without one."""
    for owner, files in (("DaemonSet", "-exporter"), ("StatefulSet", "-coordinator"), ("Deployment", "-mosquitto")):
        texts, notes = [], []
        for release in ({}, values):
            items = render(release)
            texts.append(pick(items, "ConfigMap", files)["data"] | {"policy.yaml": ""})
            notes.append(pick(items, owner)["spec"]["template"]["metadata"]["annotations"])
        assert (texts[0] != texts[1]) == (notes[0] != notes[1]), owner


def test_a_pair_of_coordinators_shares_nothing():
    """Each has its own claim and the name of its pod; they start at once, on two hosts, and one may be drained."""
    items = render({"coordinator": {"replicas": 2}})
    workload = pick(items, "StatefulSet", "-coordinator")
    specification, pod = workload["spec"], pod_of(workload)
    assert (specification["replicas"], specification["podManagementPolicy"]) == (2, "Parallel")
    (claim,) = specification["volumeClaimTemplates"]
    assert claim["metadata"]["name"] in {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    (term,) = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    labels = specification["template"]["metadata"]["labels"]
    assert term["podAffinityTerm"]["labelSelector"]["matchLabels"].items() <= labels.items()
    assert pick(items, "Service", "-coordinator")["spec"]["selector"].items() <= labels.items()
    assert pick(items, "PodDisruptionBudget", "-coordinator")["spec"]["maxUnavailable"] == 1
    file = pick(items, "ConfigMap", "-coordinator")["data"]["coordinator.yaml"]
    assert not yaml.safe_load(file).get("name")
    alone = render({})
    assert "affinity" not in pod_of(pick(alone, "StatefulSet", "-coordinator"))
    assert not [one for one in alone if one["kind"] == "PodDisruptionBudget"]


@pytest.mark.parametrize("shared", [{"config": {"name": "c"}}, {"persistence": {"existingClaim": "data"}}])
def test_what_a_pair_cannot_share_is_refused(shared):
    """One name on the bus, one volume."""
    with pytest.raises(Exception, match=r"coordinator.replicas above 1"):
        render({"coordinator": {"replicas": 2, **shared}})


RECIPES = re.findall(r"```yaml\n(.*?)```", (CHART / "README.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("recipe", RECIPES, ids=range(len(RECIPES)))
def test_recipes_of_the_readme_render_and_are_valid(recipe):
    """Alone, on the newest Kubernetes."""
    assert len(RECIPES) == 8
    check_all(render(yaml.safe_load(recipe)), NEWEST)


def test_the_annotated_images_are_those_that_are_rendered():
    """For the scans of Artifact Hub; its list of changes parses."""
    annotations = yaml.safe_load((CHART / "Chart.yaml").read_text())["annotations"]
    named = {one["image"] for one in yaml.safe_load(annotations["artifacthub.io/images"])}
    items = render({})
    pods = [pod_of(item) for item in items if item["kind"] in WORKLOADS] + [join_pod(items)["spec"]]
    images = {
        container["image"]
        for pod in pods
        for container in [*pod.get("initContainers", []), *pod["containers"]]
        if not container["image"].startswith("example.org/")
    }
    assert images == named
    kinds = {one["kind"] for one in yaml.safe_load(annotations["artifacthub.io/changes"])}
    assert kinds <= {"added", "changed", "deprecated", "removed", "fixed", "security"}


def test_a_gateway_of_our_own_needs_a_class_and_a_route_needs_a_gateway():
    """Without either nothing would serve the page."""
    with pytest.raises(Exception, match=r"coordinator\.gateway\.className: got ''"):
        render({"coordinator": {"gateway": {"enabled": True}}})
    with pytest.raises(Exception, match=r"coordinator\.httpRoute\.parentRefs: got \[\]"):
        render({"coordinator": {"httpRoute": {"enabled": True}}})


def test_every_way_in_leads_to_the_coordinators_service():
    """By its name and a port that it has; the route joins the Gateway of the release and those of the site."""
    for path in ("ingress", "gateway"):
        items = render(ci_values(CHART / "ci" / f"{path}-values.yaml"))
        service = pick(items, "Service", "-coordinator")
        (port,) = service["spec"]["ports"]
        if path == "ingress":
            (rule,) = pick(items, "Ingress")["spec"]["rules"]
            backend = rule["http"]["paths"][0]["backend"]["service"]
            assert (rule["host"], backend["port"]) == ("lockstep.example.org", {"name": port["name"]})
        else:
            route, gateway = pick(items, "HTTPRoute"), pick(items, "Gateway")
            (backend,) = route["spec"]["rules"][0]["backendRefs"]
            assert backend["port"] == port["port"]
            assert [one["name"] for one in route["spec"]["parentRefs"]] == ["shared", gateway["metadata"]["name"]]
            assert gateway["spec"]["listeners"][0]["hostname"] == route["spec"]["hostnames"][0]
        assert backend["name"] == service["metadata"]["name"]
