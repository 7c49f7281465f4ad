#!/bin/sh
# Runs at every boot of an offline node, before containerd and the kubelet.
set -eu

# The kubelet sets some sysctls that belong to the whole machine. It writes only
# what differs, so a file with the wanted value over each keeps the machine's.
for file in /kind/lab/sysctl/*; do
	mount --bind "$file" "/proc/sys/$(basename "$file" | tr . /)"
done

# A Service address that nothing translated must not look alive: beyond the
# node something may answer to any address.
nft -f /kind/lab/guard.nft

# Written by the lab when the cluster's pod networks are known; a restarted
# node finds them here.
if [ -f /kind/lab/routes ]; then
	while read -r subnet gateway; do
		ip route replace "$subnet" via "$gateway"
	done </kind/lab/routes
fi
