#!/usr/bin/env bash
# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
# A consortium on this machine, every participant with its own start-up kit, over mutual TLS:
#   provisioning/consortium.sh [JOB_FOLDER]
# In the environment: PORT, RESULTS (folder for the results), TIMEOUT (seconds for the job), FEDPEFT_DATA.
# shellcheck source=provisioning/loopback.sh
source "$(dirname "$0")/loopback.sh"

run nvflare provision -p "$scratch/project.yml" -w "$scratch"
kits=$(echo "$scratch"/*/prod_00)
lead=$kits/lead@coordinator.org
admin=$kits/project-admin@coordinator.org

sites=()
for kit in "$kits"/*; do
    if [[ -f $kit/startup/fed_client.json ]]; then sites+=("$(basename "$kit")"); fi
done
for participant in server "${sites[@]}"; do
    run "$kits/$participant/startup/start.sh" >"$kits/$participant/console.txt" 2>&1
done

# The server needs some seconds before it answers, the sites before they are connected.
connected() {
    nvflare --format json system status --startup-kit "$lead" 2>/dev/null |
        python3 -c 'import json, sys; print(len(json.load(sys.stdin).get("data", {}).get("clients", [])))' 2>/dev/null
}
until [[ $(connected) -ge ${#sites[@]} ]]; do
    if [[ $SECONDS -gt 180 ]]; then fail "not all of ${sites[*]} are connected after three minutes."; fi
done
run nvflare system status --startup-kit "$lead"

job=$(submit --startup-kit "$lead")
follow "$lead" "$job"
run nvflare job wait "$job" --timeout "$timeout" --startup-kit "$lead" || true # the manifest says how it ended
run nvflare job download "$job" -o "$results" --startup-kit "$lead"
run nvflare system shutdown all --force --startup-kit "$admin" || true # what is still there is ended in any case

run fedpeft verify "$results/$job"
