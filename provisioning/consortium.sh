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
while IFS= read -r site; do sites+=("$site"); done < <(sites_of "$kits")
for participant in server "${sites[@]}"; do
    run "$kits/$participant/startup/start.sh" >"$kits/$participant/console.txt" 2>&1
done
wait_for_sites "${#sites[@]}" --startup-kit "$lead"

job=$(submit --startup-kit "$lead")
follow "$lead" "$job"
run nvflare job wait "$job" --timeout "$timeout" --startup-kit "$lead" || true # the manifest says how it ended
run nvflare job download "$job" -o "$results" --startup-kit "$lead"
run nvflare system shutdown all --force --startup-kit "$admin" || true # what is still there is ended in any case

run fedpeft verify "$results/$job"
