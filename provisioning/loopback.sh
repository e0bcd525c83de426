# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034
# For consortium.sh and poc.sh: a scratch folder for everything that they write, and an end that leaves nothing behind.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
name=$(basename "$0" .sh)
job_folder=${1:-$root/jobs/fedpia_task1}
project=${PROJECT:-$root/provisioning/project.yml}
results=${RESULTS:-}
port=${PORT:-8002}
timeout=${TIMEOUT:-3600}

fail() {
    echo "$name: $*" >&2
    exit 1
}

exec 3>&1

# Show a command and run it. It runs beside the shell, which can thus be interrupted meanwhile.
run() {
    echo "\$ $*" >&3
    "$@" &
    wait $!
}

# Submit the job, with the arguments given, and print its id.
submit() {
    run nvflare --format json job submit -j "$job_folder" "$@" |
        python3 -c 'import json, sys
text = sys.stdin.read()
try:
    print(json.loads(text)["data"]["job_id"])
except (ValueError, KeyError, TypeError):
    sys.exit("the job was not accepted: " + text.strip())'
}

# The sites that have a start-up kit below this folder.
sites_of() {
    local kit
    for kit in "$1"/*; do
        if [[ -f $kit/startup/fed_client.json ]]; then basename "$kit"; fi
    done
}

# Wait until so many sites are connected, asking the server with the arguments given. It needs some seconds before it answers,
# the sites before they are connected. FLARE 2.9 may hang while it closes a connection: each question gets a minute.
wait_for_sites() {
    local count=$1 began=$SECONDS
    shift
    until [[ $(connected "$@") -ge $count ]]; do
        if [[ $((SECONDS - began)) -gt 180 ]]; then fail "not all of $count sites are connected after three minutes."; fi
    done
    run nvflare system status "$@"
}

connected() {
    python3 -c 'import json, subprocess, sys
command = ["nvflare", "--format", "json", "system", "status", *sys.argv[1:]]
try:
    answer = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60).stdout
    print(len(json.loads(answer)["data"]["clients"]))
except (subprocess.TimeoutExpired, ValueError, KeyError, TypeError):
    print(0)' "$@"
}

# Show how far the job is until it ends, with this kit's rights, while other commands run.
follow() {
    fedpeft status "$2" --startup-kit "$1" --follow &
}

# Whatever happened: end what was started, by process id, and remove the scratch folder. After a failure the logs stay.
finish() {
    local code=$? kit
    trap - EXIT
    trap '' INT TERM
    # shellcheck disable=SC2046
    python3 -m fedpeft.core.processes $(jobs -p; cat "$scratch"/{,poc/}*/prod_00/*/{daemon_pid,pid}.fl 2>/dev/null)
    if [[ $code -ne 0 ]]; then
        mkdir -p "$results/logs"
        for kit in "$scratch"/{,poc/}*/prod_00/*; do
            if [[ -f $kit/log.txt ]]; then cp "$kit/log.txt" "$results/logs/$(basename "$kit").txt"; fi
        done
        echo "$name: ended with exit code $code; logs of server and sites: $results/logs" >&2
    fi
    rm -rf "$scratch"
    exit "$code"
}

command -v nvflare >/dev/null || fail "nvflare is not found: run \`make install\` and activate the environment."
[[ -f $job_folder/meta.json ]] || fail "$job_folder is no FLARE job folder, it has no meta.json: name one of jobs/."
if (: </dev/tcp/127.0.0.1/"$port") 2>/dev/null; then
    fail "port $port is taken: name a free one, e.g. PORT=9002 make $name."
fi

if [[ -z $results ]]; then
    results=$root/results/$name
    rm -rf "$results"
elif [[ -n $(ls -A "$results" 2>/dev/null) ]]; then
    fail "$results is not empty: name a new folder in RESULTS."
fi
mkdir -p "$results"

scratch=$(mktemp -d)
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# nvflare writes into the home directory: it gets one of its own, while caches and packages of the user stay in use.
export HF_HOME=${HF_HOME:-$HOME/.cache/huggingface} PYTHONUSERBASE=${PYTHONUSERBASE:-$HOME/.local}
export HOME=$scratch/home TMPDIR=$scratch/tmp
unset FEDPEFT_STATE # what this run keeps lies in its kits, which are removed
mkdir "$HOME" "$TMPDIR"
if [[ -n ${FEDPEFT_DATA:-} ]]; then FEDPEFT_DATA=$(cd "$FEDPEFT_DATA" && pwd); fi

# The project as committed, except for the port and the server's storage.
sed -e "s|fed_learn_port: [0-9]*|fed_learn_port: $port|" -e "s|storage: [^ ]*|storage: $scratch/storage|" \
    "$project" >"$scratch/project.yml"
