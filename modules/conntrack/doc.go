// Package conntrack removes stale UDP flows from the kernel's connection
// tracking table.
//
// A UDP flow has no end that the kernel could see, so the entry that sends it
// to an endpoint lives on for as long as the client keeps sending, although the
// endpoint, the port or the whole Service has gone (kubernetes#19029, #139628),
// and an entry made before there was any endpoint keeps a client from ever
// reaching one (kubernetes#48370).
//
// [Judge] says of one entry whether it is stale; it is pure and costs a look-up
// in a [dataplane.Snapshot]. A [Cleaner] puts every entry of the table before
// it after each good Sync of a plane, on a goroutine of its own. A [Table] is
// the kernel's table over netlink.
//
// It is not for modes that keep their own memory of UDP flows, such as
// userspace: there the kernel translates to a socket of the relay, which is no
// endpoint.
package conntrack
