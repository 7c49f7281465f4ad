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
// In a mode like userspace the kernel translates to sockets of our own process;
// [Cleaner.Spare] is for the plane to tell which of them there are.
package conntrack
