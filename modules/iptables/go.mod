module github.com/portway/portway/modules/iptables

go 1.26.0

require (
	github.com/portway/portway/modules/dataplane v0.0.0
	github.com/portway/portway/modules/netfilter v0.0.0
	github.com/vishvananda/netlink v1.3.1
	pgregory.net/rapid v1.3.0
)

require (
	github.com/coreos/go-iptables v0.8.0 // indirect
	github.com/rogpeppe/go-internal v1.16.0 // indirect
	github.com/vishvananda/netns v0.0.5 // indirect
	golang.org/x/sys v0.50.0 // indirect
	golang.org/x/tools v0.49.0 // indirect
)

replace (
	github.com/portway/portway/modules/dataplane => ../dataplane
	github.com/portway/portway/modules/netfilter => ../netfilter
)
