"""Renders the Helm chart with Helm's own engine and validates it, and the manifests beside it, against the schemas of Kubernetes."""

import pathlib
import re
import sys

import helm_python
import kubernetes_validate
import yaml

PACKAGING = pathlib.Path(__file__).parent
CHART = PACKAGING / "helm" / "tollgate"
# The oldest version that the chart admits and the newest that the tool knows.
VERSIONS = ["1.30", "1.37"]
# Resources of operators and of the Gateway API: they have no schema in Kubernetes itself.
OPERATORS = ("monitoring.coreos.com/", "gateway.networking.k8s.io/")
ALWAYS = ["ConfigMap", "Deployment", "NetworkPolicy", "Service", "Service"]
# What the examples of values make beside that.
EXAMPLES = {
    "edge-values.yaml": ["HTTPRoute", "HorizontalPodAutoscaler", "Ingress", "PodDisruptionBudget", "Service", "ServiceAccount"],
    "redis-values.yaml": ["ConfigMap", "PodDisruptionBudget", "PrometheusRule", "ServiceMonitor"],
}
# What the manifests of edge-values.yaml must say somewhere.
EDGE = [
    ("Service", "type: LoadBalancer"),
    ("Service", "externalTrafficPolicy: Local"),
    ("Service", "loadBalancerClass: example.com/network"),
    ("Service", "nodePort: 30443"),
    ("Service", "port: 9190, targetPort: decide-9190"),
    ("NetworkPolicy", "port: https"),
    ("NetworkPolicy", "port: decide-8081"),
    ("NetworkPolicy", "app: proxy"),
    ("Deployment", "serviceAccountName: edge-tollgate"),
    ("Deployment", "containerPort: 8443"),
]
# Values that the chart must refuse.
MISTAKES = [
    {"replicaCount": "three"},
    {"replicas": 3},
    {"image": {"repository": "tollgate", "version": "1"}},
    {"ports": {"http": 80800, "admin": 9180}},
    {"ports": {"http": None}},
    {"service": {"port": 80}},
    {"httpRoute": {"enabled": True}},
    {"config": ""},
]
problems = []


def validate(source, text):
    """Validates every document of `text`; what they are."""
    kinds = []
    for document in filter(None, yaml.safe_load_all(text)):
        kind = document["kind"]
        kinds.append(kind)
        if document["apiVersion"].startswith(OPERATORS):
            continue
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(document, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                place = ".".join(map(str, error.path))
                problems.append(f"{source}: {kind} for Kubernetes {version}: {place}: {error.message}")
    return kinds


def render(values):
    """All manifests of the chart with these values, as one text."""
    rendered = helm_python.Chart.load(CHART).render(values, name="edge", namespace="web")
    return "\n---\n".join(text for path, text in rendered.items() if not path.endswith(".txt"))


def expect(source, kinds, expected):
    if sorted(kinds) != sorted(expected):
        problems.append(f"{source}: made {sorted(kinds)} where {sorted(expected)} were expected")


def check_page():
    """The values that the book names are those of the chart."""
    page = (PACKAGING.parent / "docs" / "src" / "do" / "kubernetes.md").read_text(encoding="utf-8")
    table = page.split("| value | default |", 1)[1].split("\n\n", 1)[0]
    for name in re.findall(r"`([a-z][A-Za-z]*(?:\.[A-Za-z]+)*)`", "\n".join(row.split("|")[1] for row in table.splitlines()[1:])):
        values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
        for part in name.split("."):
            if part not in values:
                problems.append(f"kubernetes.md: the chart has no value {name}")
                break
            values = values[part]


def check_versions():
    """What is installed here is of the version that is built here."""
    cargo = (PACKAGING.parent / "Cargo.toml").read_text(encoding="utf-8")
    version = re.search(r'^version = "(.*)"', cargo, re.M).group(1)
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    for where, found in [("version", chart["version"]), ("appVersion", chart["appVersion"])]:
        if found != version:
            problems.append(f"Chart.yaml: {where} is {found}, Cargo.toml has {version}")
    for manifest in (PACKAGING / "kubernetes").glob("*.yaml"):
        for found in re.findall(r"image: tollgate:(.*)", manifest.read_text(encoding="utf-8")):
            if found != version:
                problems.append(f"{manifest.name}: the image is {found}, Cargo.toml has {version}")


def main():
    check_versions()
    check_page()
    for manifest in sorted((PACKAGING / "kubernetes").glob("*.yaml")):
        if not validate(manifest.name, manifest.read_text(encoding="utf-8")):
            problems.append(f"{manifest.name}: there is nothing in it")

    expect("the chart", validate("the chart", render({})), ALWAYS)
    for file in sorted((CHART / "ci").glob("*-values.yaml")):
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
        expect(file.name, validate(file.name, render(values)), ALWAYS + EXAMPLES[file.name])
        report = helm_python.lint(CHART, values, strict=True, kube_version="v1.30.0")
        # 1 is information: the chart has no icon.
        problems.extend(f"{file.name}: {m['error']}" for m in report["messages"] if m["severity"] > 1)
        rules = [d["spec"] for d in yaml.safe_load_all(render(values)) if d and d["kind"] == "PrometheusRule"]
        written = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text(encoding="utf-8"))
        if "PrometheusRule" in EXAMPLES[file.name] and rules != [written]:
            problems.append(f"{file.name}: the rules in the cluster are not those of files/alerts.yaml")
    edge = render(yaml.safe_load((CHART / "ci" / "edge-values.yaml").read_text(encoding="utf-8"))).split("\n---\n")
    for kind, words in EDGE:
        if not any(f"kind: {kind}\n" in manifest and words in manifest for manifest in edge):
            problems.append(f"edge-values.yaml: no {kind} says {words}")
    if any("kind: Deployment" in manifest and "replicas:" in manifest for manifest in edge):
        problems.append("edge-values.yaml: the Deployment's replicas would undo what the autoscaler sets")
    for values in MISTAKES:
        try:
            render(values)
        except helm_python.HelmError:
            continue
        problems.append(f"the chart takes {values}")

    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
