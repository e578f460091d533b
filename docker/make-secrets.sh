#!/bin/sh
# Draws the secrets that compose.yaml hands to its containers, each once: what is there is kept.
#
# The directory is its owner's alone. The files in it can be read by anybody who gets that far, because a container sees
# them with the rights they have here and runs as another user.
set -eu

folder=${1:-"$(dirname "$0")/secrets"}
mkdir -p "$folder"
chmod 700 "$folder"

draw() { # NAME BYTES: as URL-safe text
    [ -s "$folder/$1" ] && return
    python3 -c 'import base64, os, sys
print(base64.urlsafe_b64encode(os.urandom(int(sys.argv[1]))).decode(), end="")' "$2" >"$folder/$1.part"
    chmod 444 "$folder/$1.part"
    mv "$folder/$1.part" "$folder/$1"
    echo "$1 drawn"
}

draw postgres_password 24
draw fernet_key 32
draw api_secret_key 48
draw jwt_secret 48
draw admin_password 12
draw s3_access_key 15
draw s3_secret_key 30
echo "Log in as admin with the password in $folder/admin_password"
