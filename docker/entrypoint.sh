#!/bin/sh
# What a container of the cdr image does: entrypoint.sh ROLE. Secrets are files; they reach the environment of the one
# process that needs them, and no command line.
set -eu

secrets=${SECRETS_DIR:-/run/secrets}
state=${CDR_HOME:-/var/lib/cdr}

fail() {
    echo "entrypoint: $1" >&2
    exit 64
}

secret() { # NAME: the content of a secret's file, which must not be empty
    [ -s "$secrets/$1" ] || fail "the secret $1 is missing or empty in $secrets; docker/make-secrets.sh makes one"
    cat "$secrets/$1"
}

encoded() { # as it is written in a URL
    python -c 'import sys, urllib.parse; print(urllib.parse.quote(sys.stdin.read().strip(), safe=""), end="")'
}

with_s3() {
    AWS_ACCESS_KEY_ID=$(secret s3_access_key)
    AWS_SECRET_ACCESS_KEY=$(secret s3_secret_key)
    export AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY
}

with_databases() {
    password=$(secret postgres_password) # alone: the end of a pipe would hide that there is none
    password=$(printf '%s' "$password" | encoded)
    server="postgresql+psycopg://cdr:$password@${POSTGRES_HOST:-postgres}:${POSTGRES_PORT:-5432}"
    CDR_DATABASE_URL="$server/cdr"
    AIRFLOW__DATABASE__SQL_ALCHEMY_CONN="$server/airflow"
    # Said, because Airflow would guess a driver that is not installed; this one is both.
    AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC="$server/airflow"
    export CDR_DATABASE_URL AIRFLOW__DATABASE__SQL_ALCHEMY_CONN AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC
}

with_airflow() {
    with_s3
    with_databases
    AIRFLOW__CORE__FERNET_KEY=$(secret fernet_key)
    AIRFLOW__API__SECRET_KEY=$(secret api_secret_key)
    AIRFLOW__API_AUTH__JWT_SECRET=$(secret jwt_secret)
    AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE="$state/passwords.json"
    export AIRFLOW__CORE__FERNET_KEY AIRFLOW__API__SECRET_KEY AIRFLOW__API_AUTH__JWT_SECRET
    export AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE
}

keep_password() { # the login's, in the file that Airflow reads
    password=$(secret admin_password)
    (
        umask 077
        printf '%s' "$password" |
            python -c 'import json, sys; json.dump({"admin": sys.stdin.read()}, open(sys.argv[1], "w"))' \
                "$state/passwords.json.part"
    )
    mv "$state/passwords.json.part" "$state/passwords.json"
}

make_bucket() {
    python - "${S3_BUCKET:-cdr}" <<'PYTHON'
import os
import sys

import boto3

client = boto3.client("s3", endpoint_url=os.environ.get("CDR_S3_ENDPOINT") or None)
if sys.argv[1] not in {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}:
    client.create_bucket(Bucket=sys.argv[1])
    print(f"bucket {sys.argv[1]} created")
PYTHON
}

spark() { # CLASS ARGUMENT…
    JAVA_HOME=$(python -c 'import sys, pathlib, cdr_core.spark.java as java
print(java.java_home(pathlib.Path(sys.argv[1])))' "$state")
    export JAVA_HOME
    unset SPARK_HOME
    exec spark-class "$@"
}

role=${1:-}
[ -n "$role" ] || fail "which role? api-server, scheduler, dag-processor, triggerer, init, spark-master, spark-worker, s3"
case $role in
    api-server | scheduler | dag-processor | triggerer)
        with_airflow
        exec airflow "$@"
        ;;
    init)
        with_airflow
        keep_password
        airflow db migrate
        cdr db upgrade
        make_bucket
        ;;
    spark-master)
        spark org.apache.spark.deploy.master.Master --host "$(hostname)" --port 7077 --webui-port 8080
        ;;
    spark-worker)
        with_s3
        mkdir -p "$state/work" "${CDR_SCRATCH:-$state/scratch}"
        spark org.apache.spark.deploy.worker.Worker --host "$(hostname)" --webui-port 8081 --work-dir "$state/work" \
            "${SPARK_MASTER:?}"
        ;;
    s3)
        data=${S3_DATA:-/var/lib/s3}
        access=$(secret s3_access_key)
        key=$(secret s3_secret_key)
        (
            umask 077
            printf '%s\n%s\n' "$access" "$key" | python -c 'import json, sys
access, key = sys.stdin.read().split("\n")[:2]
user = {"name": "cdr", "credentials": [{"accessKey": access, "secretKey": key}], "actions": ["Admin"]}
json.dump({"identities": [user]}, open(sys.argv[1], "w"))' "$state/s3.json"
        )
        exec weed -logtostderr=true server -dir="$data" -ip="$(hostname)" -ip.bind=0.0.0.0 -s3 -s3.port=8333 \
            -s3.config="$state/s3.json" -s3.port.iceberg=0 -s3.port.lance=0 -master.volumeSizeLimitMB=1024
        ;;
    *)
        exec "$@"
        ;;
esac
