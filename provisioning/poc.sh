#!/usr/bin/env bash
# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
# The consortium in FLARE's POC mode on this machine:
#   provisioning/poc.sh [JOB_FOLDER]
# In the environment: PORT, RESULTS (folder for the results), TIMEOUT (seconds for the job), FEDPEFT_DATA.
# shellcheck source=provisioning/loopback.sh
source "$(dirname "$0")/loopback.sh"

export NVFLARE_POC_WORKSPACE=$scratch/poc
run nvflare poc prepare -i "$scratch/project.yml" --force
run nvflare poc start --no-wait
kits=$(echo "$scratch"/poc/*/prod_00)
lead=lead@coordinator.org
wait_for_sites "$(sites_of "$kits" | wc -l)" --kit-id "$lead"

job=$(submit --kit-id "$lead")
follow "$kits/$lead" "$job"
run nvflare job wait "$job" --timeout "$timeout" --kit-id "$lead" || true # the manifest says how it ended
run nvflare job download "$job" -o "$results" --kit-id "$lead"
run nvflare poc stop || true # what is still there is ended in any case

run fedpeft verify "$results/$job"
