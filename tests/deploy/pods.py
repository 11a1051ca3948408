"""What a rendered overlay would start, for scripts/test-k8s: checks each object against its schema, and writes a folder a pod with
the environment, command and volumes that Kubernetes and the training operator would give it.
usage: pods.py RENDERED.yaml FOLDER"""
import json
import os
import re
import sys

import jsonschema
import kubernetes_validate
import yaml

KUBERNETES = "1.30"
PORT = "pytorchjob-port"
METRICS_PORT = 9400


def fail(text):
    sys.exit("pods.py: " + text)


def check(document):
    """Against the API's schema; the templates of a PyTorchJob as the pods they become. The operator looks for a container named
    pytorch."""
    if document["kind"] != "PyTorchJob":
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
        return
    with open(os.path.join(os.path.dirname(__file__), "pytorchjob.schema.json")) as file:
        jsonschema.validate(document, json.load(file))
    for role, replica in document["spec"]["pytorchReplicaSpecs"].items():
        template = replica["template"]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": role.lower(), **template.get("metadata", {})}, "spec": template["spec"]}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)
        container = template["spec"]["containers"][0]
        if container["name"] != "pytorch" or [p["containerPort"] for p in container["ports"] if p["name"] == PORT] != [23456]:
            fail(f"{role}: the operator wants a container pytorch with {PORT} 23456")


def check_metrics(template):
    """Prometheus finds the port by annotation or by name, and the run listens there, for others too."""
    container = template["spec"]["containers"][0]
    named = [p["containerPort"] for p in container["ports"] if p["name"] == "metrics"]
    annotations = template["metadata"]["annotations"]
    if named != [METRICS_PORT] or annotations.get("prometheus.io/port") != str(METRICS_PORT):
        fail("a pod has no port metrics, or its annotation names another")
    for flag in (f"--metrics_port={METRICS_PORT}", "--metrics_address=0.0.0.0"):
        if flag not in container["args"]:
            fail(f"a pod does not listen: {flag} is missing")


def operator_variables(job, rank, n_pods):
    """What the training operator adds to the pod of this number."""
    per_node = job["spec"].get("nprocPerNode")
    address = job["metadata"]["name"] + "-master-0"
    variables = {"PYTHONUNBUFFERED": "1", "MASTER_ADDR": address, "MASTER_PORT": "23456", "RANK": str(rank),
                 "WORLD_SIZE": str(n_pods * int(per_node or 1)), "PET_MASTER_ADDR": address, "PET_MASTER_PORT": "23456",
                 "PET_NODE_RANK": str(rank), "PET_NNODES": str(n_pods)}
    if per_node:
        variables["PET_NPROC_PER_NODE"] = per_node
    return variables


def value_of(entry):
    source = entry.get("valueFrom")
    if not source:
        return entry["value"]
    if source.get("fieldRef", {}).get("fieldPath") == "status.podIP":
        return "127.0.0.1"
    if "secretKeyRef" in source:
        return "a secret of the cluster"
    fail(f"{entry['name']}: where from?")


def expand(text, variables):
    """$(NAME) in commands, as the kubelet does it."""
    return re.sub(r"\$\(([A-Za-z_0-9]+)\)", lambda m: variables.get(m[1], m[0]), text)


def write(folder, hostname, template, variables, maps):
    spec, container = template["spec"], template["spec"]["containers"][0]
    check_metrics(template)
    for entry in container.get("env", []):
        variables[entry["name"]] = expand(value_of(entry), variables)
    os.makedirs(folder)
    with open(folder + "/env", "w") as file:
        file.writelines(f"{name}={value}\0" for name, value in variables.items())
    with open(folder + "/command", "w") as file:
        file.writelines(expand(word, variables) + "\0" for word in container["command"] + container.get("args", []))
    with open(folder + "/probe", "w") as file:
        file.writelines(word + "\0" for word in container["livenessProbe"]["exec"]["command"])
    with open(folder + "/hostname", "w") as file:
        file.write(hostname)
    with open(folder + "/user", "w") as file:
        file.write(str(spec["securityContext"]["runAsUser"]))
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    with open(folder + "/mounts", "w") as file:
        for mount in container["volumeMounts"]:
            volume = volumes[mount["name"]]
            kind = "claim" if "persistentVolumeClaim" in volume else "memory" if "emptyDir" in volume else "map"
            file.write(f"{kind} {mount['mountPath']}\n")
            if kind == "map":
                os.makedirs(folder + "/map", exist_ok=True)
                for name, text in maps[volume["configMap"]["name"]].items():
                    with open(f"{folder}/map/{name}", "w") as out:
                        out.write(text)


def main(rendered, folder):
    with open(rendered) as file:
        documents = [d for d in yaml.safe_load_all(file) if d]
    for document in documents:
        check(document)
    by_kind = {}
    for document in documents:
        by_kind.setdefault(document["kind"], []).append(document)
    maps = {m["metadata"]["name"]: m["data"] for m in by_kind.get("ConfigMap", [])}
    claims = {c["metadata"]["name"] for c in by_kind["PersistentVolumeClaim"]}
    if claims != {"training"} or [n["metadata"]["name"] for n in by_kind["Namespace"]] != ["pytorch"]:
        fail("the namespace or the volume is missing")
    for document in documents:
        if document["kind"] != "Namespace" and document["metadata"].get("namespace") != "pytorch":
            fail(f"{document['kind']} is not in the namespace pytorch")
    for job in by_kind.get("PyTorchJob", []):
        if job["metadata"]["name"] != "pytorch-dist-job":
            fail("the job has another name")
        replicas = job["spec"]["pytorchReplicaSpecs"]
        pods = [(role, i) for role in ("Master", "Worker") if role in replicas for i in range(replicas[role]["replicas"])]
        for rank, (role, i) in enumerate(pods):
            hostname = f"{job['metadata']['name']}-{role.lower()}-{i}"
            write(f"{folder}/{rank}", hostname, replicas[role]["template"], operator_variables(job, rank, len(pods)), maps)
    for job in by_kind.get("Job", []):
        service = by_kind["Service"][0]
        spec = job["spec"]["template"]["spec"]
        if service["spec"]["clusterIP"] != "None" or spec["subdomain"] != service["metadata"]["name"]:
            fail("pods of the Indexed Job would have no names")
        if not service["spec"]["selector"].items() <= job["spec"]["template"]["metadata"]["labels"].items():
            fail("the service does not select the pods of the job")
        for i in range(job["spec"]["completions"]):
            hostname = f"{job['metadata']['name']}-{i}"
            write(f"{folder}/{i}", hostname, job["spec"]["template"], {"JOB_COMPLETION_INDEX": str(i)}, maps)
    if not os.path.isdir(folder):
        fail("nothing would be started")


main(*sys.argv[1:])
