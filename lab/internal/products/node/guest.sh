#!/bin/sh
# The first process of a container that lends its place in the network to a
# kernel of its own (user-mode-linux), and its files: the node that runs on that
# kernel is made of the same image as the others.
#
# The kernel's first network device takes the container's addresses, and the
# container bridges for it. The second is a link between the two alone, by which
# labexec runs programs on the node.
set -eu
dir=/run/lab
mkdir -p "$dir"

ip link add br0 type bridge
for tap in tap0 tap1; do
	ip tuntap add "$tap" mode tap
	ip link set "$tap" up
done
# The command lines that give the addresses and routes of eth0 to the other.
{
	ip -oneline address show dev eth0 scope global |
		awk '{ print "address add " $4 " dev vec0" ($3 == "inet6" ? " nodad" : "") }'
	echo link set vec0 up
	for family in -4 -6; do
		ip "$family" route show default | awk '{ print "route add default via " $3 " dev vec0" }'
	done
	echo link set vec1 up
	echo address add fe80::2/64 dev vec1 nodad
} >"$dir/network"
# The kubelet insists on a clock speed, of which the kernel's own says nothing.
sed '/^$/q' /proc/cpuinfo >"$dir/cpuinfo"

ip address flush dev eth0 scope global
ip link set eth0 master br0
ip link set tap0 master br0
ip link set br0 up
ip address add fe80::1/64 dev tap1 nodad

# For what hostfs cannot hold; guest-init.sh says what. Sparse.
if ! [ -e /kind/lab/disk ]; then
	truncate --size=16G /kind/lab/disk.new
	mkfs.ext4 -q -F /kind/lab/disk.new
	mv /kind/lab/disk.new /kind/lab/disk
fi

# The kernel's memory is a file, which must be on a mount that allows execution
# (/dev/shm of a container does not).
export TMPDIR=/kind/lab/memory
exec linux.uml mem="$GUEST_MEMORY" root=none rootfstype=hostfs rootflags=/ rw init=/kind/lab/guest-init.sh \
	ubd0=/kind/lab/disk vec0:transport=tap,ifname=tap0,depth=128 vec1:transport=tap,ifname=tap1,depth=128 \
	con=null con0=null,fd:1 con1=null,fd:1 "guest_name=$(hostname)"
