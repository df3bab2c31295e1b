#!/bin/sh
# Any runner that writes an identity token into a file, such as a Kubernetes job with a projected service account token:
# CRMCTL_BASE_URL is the service, CRMCTL_ID_TOKEN_FILE the token, whose audience is the same address.
set -eu
crmctl auth login --oidc
crmctl bulk import people data/people.csv --key email --max-changes 1000
crmctl mirror sync people
crmctl check --report junit=checks.xml
