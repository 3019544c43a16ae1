#!/usr/bin/env bash
# Removes what texts leave on the cluster that are not followed to their end. The cluster stays.
set -eu
# shellcheck source=env.sh
. "$(dirname "$0")/env.sh"
kubectl delete pod --selector demo --now
kubectl delete pod --ignore-not-found --now nginx like-minded-pod with-pod-affinity with-pod-antiaffinity
kubectl label node "$A" "$B" meal- >/dev/null
forget busybox redis:4 debian:9 redis:5 nginx nginx:1.10 nginx:1.20
scheduler_config "$(dirname "$0")/scheduler.yaml"
