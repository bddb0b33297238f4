#!/bin/bash
# Says which images of a kustomization are not named by digest; exit code 0 where all are.
#
#     deploy/kubernetes/production/pinned.sh my-training
set -euo pipefail

rendered=$(kubectl kustomize "${1:?name a folder with a kustomization.yaml}")
mapfile -t images < <(sed -n 's/^[ -]*image: *"\{0,1\}\([^" ]*\)"\{0,1\} *$/\1/p' <<<"$rendered" | sort -u)
if [ "${#images[@]}" -eq 0 ]; then
    echo "no image in $1: is it the folder that is applied?" >&2
    exit 2
fi
code=0
for image in "${images[@]}"; do
    if [[ $image =~ @sha256:[0-9a-f]{64}$ ]]; then
        echo "named by digest: $image"
    else
        echo "not named by digest: $image" >&2
        code=1
    fi
done
[ "$code" -eq 0 ] ||
    echo 'give it a digest under "images" (docs/kubernetes.md, "Your image"); a tag can change under a job' >&2
exit "$code"
