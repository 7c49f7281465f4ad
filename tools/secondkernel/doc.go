// Secondkernel runs a command on a kernel that can do what the ipvs mode needs.
//
//	go test -exec "$PWD/build/tools/secondkernel" ./modules/ipvs/...
//	build/tools/secondkernel -- ipvsadm --list
//
// If the machine's own kernel has IPVS the command simply runs, on that kernel.
// Otherwise it runs as root on Debian's user-mode-linux, an ordinary program
// that is a kernel (package user-mode-linux, kernel 6.1): its file system is the
// machine's, read-only, so a compiled test runs as it is, in the same directory,
// with the same arguments; what it prints, signals and its exit code pass
// through. It boots in about two seconds and leaves nothing behind.
//
// What differs inside: one processor; no network but a loopback interface, and
// with -tap one to the machine, vec0, which is down; nothing to read on standard
// input; empty /tmp and /run, except for the folders of the command and of
// -writable; iptables is iptables-legacy, since that kernel has no nftables for
// IP; a system call costs about 17 microseconds and starting a program 0.1
// seconds and more. Environment variables pass if their names begin with GO or
// PORTWAY, or are in a short list (PATH, HOME, LANG, TZ and others), or are named
// by -env. Modules load by themselves when a netlink family, a device or an
// extension of iptables wants them.
package main
