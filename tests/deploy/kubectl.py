"""Stands in for kubectl where there is no cluster, for test_guide_pods.sh. What it applies is what the real kubectl renders, checked
as far as the operator would; `logs -f` of the master runs all pods as ranks on this host, with the commands and variables rendered
for them, and the flags in $POD_FLAGS after their own.
usage: kubectl.py kustomize FOLDER, apply|delete -k FOLDER, -n NAMESPACE get pods, -n NAMESPACE logs -f POD"""
import json
import os
import re
import subprocess
import sys

import jsonschema
import yaml

STATE = os.environ["KUBECTL_STATE"]  # what is applied


def fail(text):
    sys.exit("error: " + text)


def render(folder):
    rendered = subprocess.run([os.environ["REAL_KUBECTL"], "kustomize", folder], check=True, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL).stdout
    documents = list(yaml.safe_load_all(rendered))
    with open(os.path.join(os.path.dirname(os.path.realpath(__file__)), "pytorchjob.schema.json")) as file:
        schema = json.load(file)
    for document in documents:
        if document["kind"] == "PyTorchJob":
            jsonschema.validate(document, schema)
    return documents


def name_of(document):
    kind = {"PyTorchJob": "pytorchjob.kubeflow.org"}.get(document["kind"], document["kind"].lower())
    return kind + "/" + document["metadata"]["name"]


def applied(namespace):
    if not os.path.exists(STATE):
        fail("nothing is applied")
    with open(STATE) as file:
        documents = json.load(file)
    if not any(d["kind"] == "Namespace" and d["metadata"]["name"] == namespace for d in documents):
        fail("no namespace " + namespace)
    return documents


def pods(documents):
    """(name, container) of each pod that the operator makes, in the order of their ranks."""
    for job in documents:
        for role in ("Master", "Worker") if job["kind"] == "PyTorchJob" else ():
            replica = job["spec"]["pytorchReplicaSpecs"][role]
            for i in range(replica["replicas"]):
                yield f"{job['metadata']['name']}-{role.lower()}-{i}", replica["template"]["spec"]["containers"][0]


def run_pods(all_pods):
    """Rank 0 speaks; /data is the folder $POD_DATA."""
    ranks = []
    for rank, (_, container) in enumerate(all_pods):
        variables = {entry["name"]: re.sub("^/data", os.environ["POD_DATA"], entry["value"]) for entry in container["env"]}
        words = container["command"] + container["args"] + os.environ["POD_FLAGS"].split()
        words = [re.sub(r"\$\((\w+)\)", lambda m: variables[m[1]], word) for word in words]
        variables.update(RANK=str(rank), WORLD_SIZE=str(len(all_pods)), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(len(all_pods)),
                         MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["POD_PORT"])
        ranks.append(subprocess.Popen(words, env={**os.environ, **variables}, stdout=None if rank == 0 else subprocess.DEVNULL))
    if any([rank.wait() for rank in ranks]):
        fail("a pod failed")


def main(words):
    if words[0] == "kustomize":
        os.execv(os.environ["REAL_KUBECTL"], ["kubectl", *words])
    elif words[0] in ("apply", "delete") and words[1] == "-k":
        documents = render(words[2])
        for document in documents:
            print(name_of(document), {"apply": "created", "delete": "deleted"}[words[0]])
        if words[0] == "apply":
            with open(STATE, "w") as file:
                json.dump(documents, file)
        else:
            os.remove(STATE)
    elif words[0] == "-n" and words[2:] == ["get", "pods"]:
        print("NAME  READY  STATUS")
        for name, _ in pods(applied(words[1])):
            print(name, "1/1", "Running")
    elif words[0] == "-n" and words[2:4] == ["logs", "-f"]:
        all_pods = list(pods(applied(words[1])))
        if words[4] != all_pods[0][0]:
            fail(f"no pod {words[4]}, or not the master")
        run_pods(all_pods)
    else:
        fail("kubectl.py does not know " + " ".join(words))


main(sys.argv[1:])
