#!/bin/sh
# The first process of a node with a kernel of its own: does for it what Docker
# and the entrypoint of kind's image do for the others, then becomes systemd.
set -eu
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /tmp
cp -r /run/lab /tmp # the container's, which the next one covers
mount -t tmpfs tmpfs /run
mv /tmp/lab /run/lab
mount --bind /run/lab/cpuinfo /proc/cpuinfo
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t cgroup2 cgroup2 /sys/fs/cgroup
hostname "$guest_name"

# hostfs has no extended attributes, which overlayfs needs, no size, which the
# kubelet wants to know, and does not tell those who watch a directory (for CNI's
# configuration, for logs) what is new in it.
mount /dev/ubda /mnt
for dir in /var/lib/kubelet /var/lib/containerd/io.containerd.snapshotter.v1.overlayfs /etc/cni/net.d /var/log/pods; do
	mkdir -p "$dir" "/mnt$dir"
	mount --bind "/mnt$dir" "$dir"
done

modprobe overlay
modprobe ipv6
ip link set lo up
ip -batch /run/lab/network
labexec serve &

sysctl -q -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
# This kernel has no IPv4 and IPv6 in nf_tables.
for program in iptables ip6tables; do
	update-alternatives --set "$program" "/usr/sbin/$program-legacy" >/dev/null
done
# What guard.nft does for the others: the proxy's own rules are put first.
for chain in FORWARD OUTPUT; do
	iptables -A "$chain" ! -o lo -d 10.96.0.0/16 -j DROP
	ip6tables -A "$chain" ! -o lo -d fd00:10:96::/112 -j DROP
done

# kind's own are for cgroups below another kernel's. Its hook shows containers
# serial numbers that this machine has not, and would take a second for each.
cp /kind/lab/guest-kubelet.conf /etc/systemd/system/kubelet.service.d/12-guest.conf
jq 'del(.hooks)' /etc/containerd/cri-base.json >/run/lab/cri-base.json
mv /run/lab/cri-base.json /etc/containerd/cri-base.json

exec /sbin/init
