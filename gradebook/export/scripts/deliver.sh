#!/usr/bin/env bash
# Opens an issue with the feedback in each student's repository, ORG/PREFIX-LOGIN. Needs GitHub's command `gh`, logged in.
#   ./deliver.sh ORG PREFIX          shows what would be done
#   ./deliver.sh ORG PREFIX --send   does it; give it again to go on: nobody gets the same twice
# Ends with 3 if somebody's could not be sent.
set -euo pipefail
cd "$(dirname "$0")"
org=${1:?the organization} prefix=${2:?what stands before -LOGIN} send=${3:-} failed=0
for file in *.md; do
  login=${file%.md} repository="$org/$prefix-${file%.md}"
  again=
  if cmp -s "$file" "$login.sent"; then continue; fi
  if [ -e "$login.sent" ]; then again=", again: the feedback has changed"; fi
  if [ "$send" != --send ]; then echo "would open an issue in $repository$again"; continue; fi
  if gh issue create --repo "$repository" --title "Feedback" --body-file "$file"; then
    cp "$file" "$login.sent"
  else
    echo "not sent: $repository" >&2
    failed=3
  fi
done
exit "$failed"
