#!/bin/sh
# real_adbd.sh PHONE ADBD COMMAND...: makes the directory PHONE the root of Google's adbd, unpacked
# in the directory ADBD, and runs COMMAND beside it. Call it in namespaces of its own: adbd listens
# on every address, and what is mounted here vanishes with them.
set -eu
phone=$1 adbd=$2
shift 2
PATH=$PATH:/usr/sbin:/sbin

ip link set lo up
for place in usr bin lib lib64 dev; do
    mkdir -p "$phone/$place"
    [ ! -e "/$place" ] || mount --rbind "/$place" "$phone/$place"
done
mkdir -p "$phone/adbd"
mount --bind "$adbd" "$phone/adbd"

loader=$(cd "$adbd" && find usr/lib64 usr/lib lib64 lib -name 'ld-linux*.so.*' 2>/dev/null | head -n 1)
libraries=$(cd "$adbd" && find usr/lib lib -name 'lib*.so*' -printf '/adbd/%h\n' 2>/dev/null | sort -u | paste -sd:)
chroot "$phone" /usr/bin/env PHONE_ROOT= PATH=/system/bin:/usr/bin:/bin \
    "/adbd/$loader" --library-path "$libraries" /adbd/usr/lib/android-sdk/platform-tools/adbd >"$phone/adbd.log" 2>&1 &
"$@"
