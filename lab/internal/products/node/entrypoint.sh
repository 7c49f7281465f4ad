#!/bin/sh
# The first process of an offline node: makes the node a good neighbour of the
# machine, then becomes kind's entrypoint. Runs at every boot of the node.
set -eu

# Sysctls that the kubelet or systemd set belong to the whole machine. Both
# write only what differs, so a file of the node's own over each, with the value
# that is wanted, keeps the machine's.
mkdir -p /run/lab
over() {
	echo "$2" >"/run/lab/$(echo "$1" | tr / .)"
	mount --bind "/run/lab/$(echo "$1" | tr / .)" "/proc/sys/$1"
}
over vm/overcommit_memory 1
over vm/panic_on_oom 0
over kernel/panic 10
over kernel/panic_on_oops 1
over kernel/keys/root_maxkeys 1000000
over kernel/keys/root_maxbytes 25000000
for name in fs/file-max fs/nr_open; do
	over "$name" "$(cat "/proc/sys/$name")"
done

# A Service address that nothing translated must not look alive: beyond the
# node something may answer to any address.
nft -f /kind/lab/guard.nft

# Written by the lab once the pod networks are known; a node that restarts finds
# them here.
if [ -f /kind/lab/routes ]; then
	sh /kind/lab/routes || echo "lab: the routes to other nodes are incomplete" >&2
fi

exec /usr/local/bin/entrypoint "$@"
