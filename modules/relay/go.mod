module github.com/portway/portway/modules/relay

go 1.26.0

require (
	github.com/portway/portway/modules/dataplane v0.0.0
	golang.org/x/sys v0.50.0
)

require (
	github.com/vishvananda/netlink v1.3.1 // indirect
	github.com/vishvananda/netns v0.0.5 // indirect
)

replace github.com/portway/portway/modules/dataplane => ../dataplane
