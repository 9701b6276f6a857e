"""What we ship for Kubernetes: it renders, it fits the schemas of four versions, and it keeps rules no schema knows."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from bdn import config
from bdn.membership.dns import NEWS_S

ROOT = Path(__file__).resolve().parents[2]
RENDERED = ["base", "tts", "overlays/dev"]
VERSIONS = ["1.34", "1.35", "1.36", "1.37"]
Object = dict[str, Any]


def render(directory: str) -> list[Object]:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed: it renders the kustomizations")
    command = ["kubectl", "kustomize", str(ROOT / "k8s" / directory)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [doc for doc in yaml.safe_load_all(done.stdout) if doc]


def pod_specs(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    for o in objects:
        if o["kind"] in ("DaemonSet", "Deployment"):
            yield f"{o['kind']}/{o['metadata']['name']}", o["spec"]["template"]["spec"]


def containers(spec: Object) -> list[Object]:
    return [*spec.get("initContainers", []), *spec["containers"]]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("directory", RENDERED)
def test_every_object_fits_the_schema(directory: str, version: str) -> None:
    for o in render(directory):
        kubernetes_validate.validate(o, version, strict=True)


def test_the_validation_can_fail() -> None:
    bad = next(o for o in render("base") if o["kind"] == "DaemonSet")
    bad["spec"]["template"]["spec"]["containers"][0]["imagePul"] = "typo"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(bad, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("directory", RENDERED)
def test_no_container_may_do_more_than_it_must(directory: str) -> None:
    for name, spec in pod_specs(render(directory)):
        assert spec["automountServiceAccountToken"] is False and spec["enableServiceLinks"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] == 65532, name
        for c in containers(spec):
            rights = c["securityContext"]
            assert rights["capabilities"]["drop"] == ["ALL"] and not rights["allowPrivilegeEscalation"], name
            assert rights["readOnlyRootFilesystem"] and "privileged" not in rights, name
            assert "memory" in c["resources"]["limits"] and "cpu" not in c["resources"]["limits"], name


@pytest.mark.parametrize("directory", RENDERED)
def test_selectors_find_their_pods_and_services_their_ports(directory: str) -> None:
    objects = render(directory)
    pods = [o["spec"]["template"] for o in objects if o["kind"] in ("DaemonSet", "Deployment")]
    for o in objects:
        if o["kind"] in ("DaemonSet", "Deployment"):
            labels = o["spec"]["template"]["metadata"]["labels"]
            assert o["spec"]["selector"]["matchLabels"].items() <= labels.items()
        if o["kind"] == "Service":
            found = [p for p in pods if o["spec"]["selector"].items() <= p["metadata"]["labels"].items()]
            ports = {port["name"] for p in found for c in p["spec"]["containers"] for port in c["ports"]}
            assert found and {p["targetPort"] for p in o["spec"]["ports"]} <= ports, o["metadata"]["name"]


def test_agent_and_reader_see_one_store_at_one_path() -> None:
    specs = dict(pod_specs(render("overlays/dev")))
    seen = set()
    for spec in specs.values():
        paths = {v["name"]: v["hostPath"]["path"] for v in spec["volumes"] if "hostPath" in v}
        for c in containers(spec):
            mounts = {m["name"]: m["mountPath"] for m in c["volumeMounts"]}
            seen.add((paths["nvme"], mounts["nvme"]))
    assert len(seen) == 1
    stores = {e["value"] for s in specs.values() for c in containers(s) for e in c.get("env", [])
              if e["name"] == "BDN_STORE"}  # fmt: skip
    assert stores == {"/nvme/bdn"}


def test_a_disk_that_is_not_mounted_fails_loudly_and_readers_cannot_write() -> None:
    specs = dict(pod_specs([*render("base"), *render("tts")]))
    for spec in specs.values():
        assert [v["hostPath"]["type"] for v in spec["volumes"] if "hostPath" in v] == ["Directory"]
    [tts] = specs["Deployment/tts"]["containers"]
    assert all(m["readOnly"] for m in tts["volumeMounts"])


def test_probes_ask_the_node_alone_and_draining_leaves_membership() -> None:
    for name, spec in pod_specs([*render("base"), *render("tts")]):
        for c in spec["containers"]:
            assert c["livenessProbe"]["httpGet"]["path"] == "/livez", name
            assert c["readinessProbe"]["httpGet"]["path"] == "/readyz", name
    service = next(o for o in render("base") if o["kind"] == "Service")
    assert service["spec"]["clusterIP"] == "None" and not service["spec"].get("publishNotReadyAddresses")


def test_every_bdn_setting_in_the_manifests_exists() -> None:
    known = {s.env: s for s in config.all_settings()}
    objects = [*render("base"), *render("tts")]
    given = {e["name"]: e.get("value", "") for _, s in pod_specs(objects) for c in containers(s) for e in c["env"]}
    given |= {k: v for o in objects if o["kind"] == "ConfigMap" for k, v in o["data"].items()}
    ours = {k: v for k, v in given.items() if k.startswith("BDN_")}
    assert {"BDN_ORIGIN", "BDN_NAME", "BDN_PEERS_DNS"} <= ours.keys()
    for name, value in ours.items():
        known[name].parse(value, name)


def test_members_from_dns_are_waited_for_as_long_as_their_news_may_take() -> None:
    [data] = [o["data"] for o in render("base") if o["kind"] == "ConfigMap"]
    assert float(data.get("BDN_SETTLE_S", NEWS_S)) >= NEWS_S, "with less, nodes that join read the origin in groups"


def test_the_gate_is_a_command_line_that_parses() -> None:
    from bdn.cli import _split, build_parser, run

    specs = dict(pod_specs(render("tts")))
    [gate] = specs["Deployment/tts"]["initContainers"]
    assert gate["args"][0] == "run"
    own, command = _split(gate["args"][1:])
    args = build_parser("run", run).parse_args(own)  # type: ignore[arg-type]
    assert args.ref and command[0] == "ln" and "{}" in command
